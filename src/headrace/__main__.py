"""``python -m headrace`` is the command ``headrace``."""

import sys

from headrace.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
