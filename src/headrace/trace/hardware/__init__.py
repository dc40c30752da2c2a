"""Work of the processor during each operation: samples of the kernel's perf events, joined to spans by time."""
