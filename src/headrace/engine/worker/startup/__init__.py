"""The start of a worker: its orders, the moment they are of, and the process it is forked from."""
