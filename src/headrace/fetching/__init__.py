"""The fetcher process: rows of a remote store into shared memory, with many requests in flight. No torch here."""
