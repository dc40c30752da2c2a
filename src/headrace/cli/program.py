"""A program that a command runs: what stands behind ``--`` on the command line."""

import argparse

from headrace.cli import UsageError


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
