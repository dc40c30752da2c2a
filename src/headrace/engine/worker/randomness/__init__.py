"""Random numbers in a worker: generators, seeds, and a number for every index."""
