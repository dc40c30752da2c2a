"""The trainer's side of the ledger: an epoch is begun, published, overseen and mended."""
