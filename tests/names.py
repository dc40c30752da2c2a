"""Names of things that all processes of a machine see, of which other test sessions have some too."""

import os
import secrets

OURS = f"test-{os.getpid()}-"


def new_name() -> str:
    """One that nobody has."""
    return OURS + secrets.token_hex(6)
