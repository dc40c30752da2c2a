"""Notes on samples while they are made: costs, operations, records of a trace."""
