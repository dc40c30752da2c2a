"""Values every layer shares: options, errors, statistics. Standard library only."""
