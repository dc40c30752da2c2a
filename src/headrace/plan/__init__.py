"""Numbers in, decisions out. Pure: no clock, no I/O, no torch."""
