"""Look into a store, remove rows from it, write it out."""

import argparse

from headrace.cli import add_commands, store_export, store_info, store_prune, store_rm


def configure(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, {"info": store_info, "rm": store_rm, "prune": store_prune, "export": store_export})
