"""The processes on other hosts."""
