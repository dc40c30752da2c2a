"""Every command that a page shows: those of headrace are run, on data like that which the page speaks of."""

import csv
import io
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import headrace
from headrace.cli.__main__ import COMMANDS, main, parser
from headrace.store.ingest import ingest
from tests import programs

ROOT = Path(__file__).parents[1]
TEXTS = {
    page.relative_to(ROOT).as_posix(): page.read_text() for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
}
TEXTS.pop("CHANGELOG.md")  # what once was
BLOCK = re.compile(r"^( *)```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
WRITTEN = re.compile(r"cat > (\S+) <<END\n(.*?)\n *END\n", re.DOTALL)
NOT_HERE = {"cassandra://db.example/path/slides": "sqlite:///slides.db"}
TRAIN = """
import torch, torch.utils.data
def main():
    loader = torch.utils.data.DataLoader(torch.arange(640), batch_size=64, shuffle=True, num_workers=1)
    for _ in range(3):
        for batch in loader:
            batch.sum()
if __name__ == "__main__":
    main()
"""


def lines_of(text: str) -> list[str]:
    """One for each command, without comments; those that go on in the next line as one."""
    return [line.strip() for block in BLOCK.findall(text) for line in block[1].replace("\\\n", "").splitlines()]


SHOWN = list(dict.fromkeys((page, line) for page, text in TEXTS.items() for line in lines_of(text)))
OURS = [(page, line) for page, line in SHOWN if line.startswith("headrace ")]


def words(line: str) -> list[str]:
    return [NOT_HERE.get(word, word) for word in shlex.split(line, comments=True)]


def needs_more(line: str) -> bool:
    """A program that trains, or what another tool wrote."""
    return " -- " in line or " --import " in line


class Terminal(io.StringIO):
    """Somebody who says yes."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pages speak of: pictures, manifests, stores, a trace, a program, files that pages write."""
    folder = tmp_path_factory.mktemp("shown") / "there"
    for number in range(24):
        kind = folder / "photos" / ("cats", "dogs")[number % 2]
        kind.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 24), (10 * number, 0, 0)).save(kind / f"{number}.png")
    rows = [
        {"path": f"slides/{number:03}.npy", "key": f"scan-{number:03}", "label": ("sick", "well")[number % 3 == 0],
         "patient": f"p{number // 4}", "patient_id": f"P{number // 4:03}", "age": 15 + number % 60}
        for number in range(120)
    ]  # fmt: skip
    (folder / "slides").mkdir()
    for number, row in enumerate(rows):
        np.save(folder / row["path"], np.full((4, 4), number, np.float32))
    with (folder / "slides.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    for name in ("data", "scans"):
        ingest(str(folder / "slides.csv"), f"sqlite:///{folder}/{name}.db")
    ingest(str(folder / "photos"), f"sqlite:///{folder}/photos.db")
    parts = ["--fractions", "train=0.8,test=0.2", "--group-by", "patient_id", "-o", str(folder / "splits.parquet")]
    assert main(["split", f"sqlite:///{folder}/scans.db", *parts]) == 0
    pictures = headrace.StoreDataset(f"sqlite:///{folder}/photos.db", augment=torch.clone)
    with headrace.DataLoader(pictures, batch_size=2, num_workers=1, trace=folder / "run.trace") as loader:
        for _ in range(3):
            assert len(list(loader)) == 12
    (folder / "train.py").write_text(TRAIN)
    for text in TEXTS.values():
        for name, content in WRITTEN.findall(text):
            (folder / name).write_text(content)
    shutil.copytree(folder, folder.with_name("kept"))
    return folder


@pytest.fixture
def there(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It, as it was made, at its own place: a store knows where its rows came from."""
    shutil.rmtree(prepared)
    shutil.copytree(prepared.with_name("kept"), prepared)
    monkeypatch.chdir(prepared)
    return prepared


@pytest.mark.parametrize(("page", "line"), [each for each in OURS if not needs_more(each[1])])
def test_it_does_what_is_said(page, line, there, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    arguments = words(line)[1:]
    if "-o" in arguments:
        Path(arguments[arguments.index("-o") + 1]).unlink(missing_ok=True)
    assert main(arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("page", "line"), [each for each in OURS if needs_more(each[1])])
def test_one_that_needs_more_is_understood(page, line):
    arguments = words(line)[1:]
    assert parser([arguments[0]]).parse_args(arguments).act is not None


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("page", "line"), [each for each in OURS if " -- " in each[1]])
def test_one_that_runs_a_program_does_what_is_said(page, line, there):
    script = there / "command.py"
    arguments = [sys.executable if word == "python" else word for word in words(line)[1:]]
    script.write_text(f"import sys\nfrom headrace.cli.__main__ import main\nsys.exit(main({arguments!r}))\n")
    done = programs.run(script, there, strict=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", TEXTS)
def test_commands_in_the_text_are_there(page):
    named = re.findall(r"`headrace ([a-z]+)[ `]", TEXTS[page])
    assert set(named) <= set(COMMANDS)


def test_targets_of_make_are_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {target for text in TEXTS.values() for target in re.findall(r"`make ([a-z-]+)", text)}
    shown |= {line.split()[1] for _, line in SHOWN if line.startswith("make ")}
    assert {"test", "demo"} <= shown <= targets


def test_extras_are_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = [names for text in TEXTS.values() for names in re.findall(r"(?:headrace|'\.)\[([a-z,]+)\]", text)]
    assert shown
    assert {name for names in shown for name in names.split(",")} <= set(extras)


def test_nothing_else_is_shown():
    """Whatever is: somebody has to think of how it can be tried."""
    known = ("headrace ", "make ", "pip install ", "cat > ", "HEADRACE_TRACE=run.trace python train.py")
    others = ("vtune ", "apt-get ")
    written = [content for text in TEXTS.values() for _, content in WRITTEN.findall(text)]
    heredocs = {line.strip() for content in written for line in content.splitlines()}
    rest = {line for _, line in SHOWN if line and not line.startswith(known + others)}
    assert rest <= heredocs | {"END"}
