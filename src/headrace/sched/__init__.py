"""Scheduling: the choice of the next sample, of its worker and of its row. No I/O, no clock, no lock: callers bring
the lock.
"""
