"""The way of one sample is short enough to be followed, on the page that walks it and in what runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import headrace

PACKAGE = Path(headrace.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "design" / "execution.md"
FILES, LINES = 26, 300
RUN_FILES, RUN_FUNCTIONS = 60, 342
"""In the trainer, for the first batch of a later loader: 58 and 315, and some 24 functions more where it is
late, as with a fork server."""
PROGRAM = """
import json, os, sys
import torch
import headrace

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([index])

def first():
    loader = headrace.DataLoader(Numbers(), 8, shuffle=True, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    return loader, iterator

def note(frame, what, _):
    if os.getpid() != trainer:
        sys.setprofile(None)
    elif what == "call" and frame.f_code.co_filename.startswith(package) and not frame.f_code.co_name.startswith("<"):
        ran.add(frame.f_code)

if __name__ == "__main__":
    trainer, package = os.getpid(), os.path.dirname(headrace.__file__)
    first()[0].close()
    counts = []
    for _ in range(5):  # where the batch is late, waiting for it runs besides
        ran = set()
        sys.setprofile(note)
        loader, iterator = first()
        sys.setprofile(None)
        loader.close()
        counts.append([len({code.co_filename for code in ran}), len(ran)])
    print(json.dumps(min(counts)))
"""


def test_the_way_of_a_sample_is_short() -> None:
    way = PAGE.read_text().split("## The way of one sample")[1].split("\n## ")[0]
    files = sorted(set(re.findall(r"`((?:[a-z]+/)*[a-z]+\.py)`", way)))
    assert len(files) <= FILES
    lengths = {file: len((PACKAGE / file).read_text().splitlines()) for file in files}
    assert not {file: length for file, length in lengths.items() if length >= LINES}


def test_what_runs_for_a_first_batch_is_little(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=240, check=True
    )
    files, functions = json.loads(done.stdout)
    assert files <= RUN_FILES
    assert functions <= RUN_FUNCTIONS
