"""The way of one sample, as the design page walks it, is short enough to be followed."""

import re
from pathlib import Path

import headrace

PACKAGE = Path(headrace.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "design" / "execution.md"
FILES, LINES = 25, 300


def test_the_way_of_a_sample_is_short() -> None:
    way = PAGE.read_text().split("## The way of one sample")[1].split("\n## ")[0]
    files = sorted(set(re.findall(r"`((?:[a-z]+/)*[a-z]+\.py)`", way)))
    assert len(files) <= FILES
    lengths = {file: len((PACKAGE / file).read_text().splitlines()) for file in files}
    assert not {file: length for file, length in lengths.items() if length >= LINES}
