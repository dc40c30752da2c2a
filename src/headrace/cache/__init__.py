"""The forms kept near: what is worth keeping, who has seen what, and where the bytes lie."""
