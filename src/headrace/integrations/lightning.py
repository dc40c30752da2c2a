"""Meaning of a loader's state to Lightning's trainer.

A state that was taken after an epoch's last batch, and before the loop over it has ended, goes on with nothing: that
ends the epoch. Lightning saves such a state with a checkpoint of an epoch's last step, but resumes from it with the
next epoch, for it has counted the batches itself. Given nothing, it would take that epoch for trained. So what it loads
is taken as it means it. Nothing of Lightning is imported for that.
"""

import sys

PACKAGES = frozenset({"lightning", "pytorch_lightning"})


def is_asking() -> bool:
    """True if the function that calls this one was called by Lightning itself."""
    name = sys._getframe(2).f_globals.get("__name__", "")  # noqa: SLF001  (it gives no other sign)
    return str(name).partition(".")[0] in PACKAGES
