"""The reads and draws of an epoch over shards: which ranges are read in which order, and which sample comes next.

Numbers in, numbers out: no I/O, no clock, no bytes of any sample. ``layout`` divides samples into blocks, ``plan`` puts
the blocks of an epoch in random order, ``draws`` takes samples from those that are held, ``remainder`` says what is
still to be delivered, and ``deal`` divides that among ranks.
"""
