"""Batches on an accelerator."""
