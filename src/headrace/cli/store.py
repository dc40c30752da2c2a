"""Look into a store, remove rows from it, write it out."""

import argparse

from headrace.cli import add_commands
from headrace.cli.stores import store_export, store_head, store_info, store_ls, store_prune, store_rm, store_show


def configure(parser: argparse.ArgumentParser) -> None:
    looking = {"info": store_info, "ls": store_ls, "head": store_head, "show": store_show}
    add_commands(parser, {**looking, "rm": store_rm, "prune": store_prune, "export": store_export})
