"""Does what ``sched`` says: processes, shared memory, collation, devices. torch lives here and above."""
