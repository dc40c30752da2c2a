"""What the processor did during each operation: samples of the kernel's perf events, joined to spans by time."""
