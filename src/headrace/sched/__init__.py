"""Which sample next, for whom, into which row. No I/O, no clock, no lock: callers bring the lock."""
