"""Parts of ``headrace demo``."""
