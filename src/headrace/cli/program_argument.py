"""A program that a command runs: what stands behind ``--`` on the command line, and where its trace is to go."""

import argparse
from pathlib import Path

from headrace.cli import UsageError
from headrace.trace.format import MAGIC


def add_program(parser: argparse.ArgumentParser, about: str = "what to run, as you would start it") -> None:
    """The last argument of a command: all that follows."""
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help=about)


def given(options: argparse.Namespace) -> list[str]:
    """The program and its arguments; nothing where none was given."""
    program: list[str] = options.program
    return program[1:] if program[:1] == ["--"] else program


def required(options: argparse.Namespace) -> list[str]:
    """The same. Raises UsageError where none was given."""
    program = given(options)
    if not program:
        raise UsageError("nothing to run: give the program after --, as in: -- python train.py")
    return program


def in_the_way(output: Path) -> bool:
    """True if something is there that no trace would replace. Only files are read: a FIFO would wait."""
    if not output.is_file():
        return output.exists()
    with output.open("rb") as file:
        head = file.read(len(MAGIC))
    return head not in (b"", MAGIC)
