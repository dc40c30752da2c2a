"""WebDataset and the tars it consists of."""
