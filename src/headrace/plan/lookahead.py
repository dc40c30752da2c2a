"""Number of batches to have made ahead, where the user leaves it open. Pure.

In sampler order whatever was made behind a slow sample waits for it, and lanes that have made all that was asked for
stand idle meanwhile: what they did not do then is missing once the sample is there. So they are given more while it is
waited for. As long as the slow sample takes less than the batches ahead of it, nobody notices it.
"""

USUAL = 2
"""Batches per lane, as in torch."""
MOST = 8
"""More would hide samples that are slower still, and keep the samplers of stateful users ever further ahead."""
HELD_UP_SECONDS = 0.02
"""A trainer that waited for less was not held up by a slow sample."""


class Lookahead:
    """Batches per lane that are drawn and not delivered, at most. Memory may allow fewer."""

    def __init__(self, batches: int = USUAL, most: int = MOST) -> None:
        """``most`` is ``batches`` where the user chose them."""
        self.batches, self._most = batches, most

    @property
    def patience(self) -> float | None:
        """Seconds after which a trainer that waits asks again; None where nothing would change."""
        return HELD_UP_SECONDS if self.batches < self._most else None

    def waited(self, seconds: float, idle: int, lanes: int) -> None:
        """All that may be was drawn; the trainer waits, so long already; ``idle`` of the ``lanes`` have no work."""
        if seconds >= HELD_UP_SECONDS and 2 * idle >= lanes:
            self.batches = min(2 * self.batches, max(self._most, self.batches))
