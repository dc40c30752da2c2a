"""An unmodified program whose torch DataLoaders are headrace's: what ``headrace run`` does inside of it."""
