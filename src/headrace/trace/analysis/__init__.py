"""Figures, verdicts and advice, read out of a trace."""
