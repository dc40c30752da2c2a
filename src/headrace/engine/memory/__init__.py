"""Memory that processes share: the mapping, its slots, how samples lie in them, the lock."""
