"""A store whose driver is native code with threads: it runs in a process that can be killed and replaced."""
