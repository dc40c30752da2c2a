"""A worker's side of the ledger: it takes tickets, claims rows and files what it made."""
