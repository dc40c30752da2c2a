"""Parts of ``headrace plan``."""
