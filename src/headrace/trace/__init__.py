"""Where the time goes: recording, the file, what can be read out of it."""
