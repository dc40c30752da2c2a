"""Recording of loading, the trace file, and all that is read out of it."""
