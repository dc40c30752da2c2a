"""The worker processes as the trainer has them: forked, watched, woken, replaced, ended."""
