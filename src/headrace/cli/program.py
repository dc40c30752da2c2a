"""A program that a command runs: what stands behind ``--`` on the command line."""

import argparse

from headrace.cli import UsageError


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
