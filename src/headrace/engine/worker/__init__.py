"""A worker process: from ticket to row, from stream to batch."""
