"""Keys and metadata: what a store knows of its rows."""
