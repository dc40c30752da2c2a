"""``headrace <command>``: parse, run, and turn a user's mistake into one line and exit code 2."""

import argparse
import errno
import importlib.metadata
import io
import os
import sys
from collections.abc import Iterable, Sequence

from headrace.cli import UsageError, add_commands
from headrace.core.errors import HeadraceError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
COMMANDS = ("cache", "completion", "demo", "doctor", "ingest", "plan", "run", "split", "store", "top", "trace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 for done, 1 for done with failures, 2 for a user's mistake."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be more than it can write
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    named = next((word for word in words if not word.startswith("-")), None)
    # Only the command that is called is imported: what others need would take longer than most commands.
    called = " ".join(["headrace", *([named] if named in COMMANDS else [])])
    try:
        options = parser([named] if named in COMMANDS else COMMANDS).parse_args(words)
        called = options.called
        code = int(options.act(options))
        print(end="", flush=True)  # also where there is no standard output
        return code
    except BrokenPipeError:  # whoever read our output has seen enough: `headrace ... | head`
        _print_no_more()
        return 141
    except (UsageError, HeadraceError) as error:
        print(f"{called}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno in FULL and error.filename is None:  # the file that our output goes to, say: writes name none
            _print_no_more()
            print(f"{called}: {error.strerror}", file=sys.stderr)
            return 2
        if error.filename is None:
            raise
        # A file that the user named, and that no command has said more about.
        print(f"{called}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{called}: interrupted", file=sys.stderr)
        return 130


def _print_no_more() -> None:
    """Drop output that could not be written, so that Python's own last flush is quiet."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser(commands: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The argument parser with these commands, whose modules are imported."""
    whole = argparse.ArgumentParser(prog="headrace", description="A data loader that never runs dry.")
    whole.add_argument("--version", action="version", version=f"headrace {_version()}")
    whole.add_argument("--json", action="store_true", help="print the result as JSON")
    add_commands(whole, {name: importlib.import_module(f"headrace.cli.{name}") for name in commands})
    return whole


def _version() -> str:
    try:
        return importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
