"""Facts that the kernel has of a process."""

from pathlib import Path


def stat_of(process: int) -> list[str]:
    """The fields of its ``stat``, from its state on, which is the third; ``OSError`` where there is none."""
    # A program's name may hold anything, and ends after 15 bytes, which may be in the middle of a letter.
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
