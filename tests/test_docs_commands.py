"""Every command that a page shows is understood, and does what stands there, in a folder like its reader's."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.__main__ import main, parser
from tests.store.ingest.support import class_folders, manifest, picture

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCKS = re.compile(r"^( *)```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(headrace [a-z][^`]*)`")
TRAINING = """
import sys, torch, headrace
from torch.utils.data import DataLoader
if __name__ == "__main__":
    workers = int(sys.argv[2]) if "--workers" in sys.argv else 1
    data = headrace.StoreDataset("sqlite:///data.db", augment=torch.neg)
    for _ in range(20):
        for batch in DataLoader(data, 4, shuffle=True, num_workers=workers):
            pass
"""
GROUPS = {"store", "cache", "trace"}
PROGRAMS = {"doctor", "run", "trace"}
"""Commands that run the reader's program; what they do is tested where they are. One of each kind is run here."""


def shown(page):
    """The lines of a page's blocks for a shell, long ones joined, without remarks."""
    for _, block in BLOCKS.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            yield re.sub(r"(^|\s)#.*", "", line).strip()


def commands(page):
    """The words of those that are ours, without the variables before them."""
    for line in shown(page):
        words = shlex.split(line) if "headrace " in line else []
        if words[:1] == ["headrace"]:
            yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_understood(page, capsys):
    for words in commands(page):
        try:
            parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{page.name}: headrace {shlex.join(words)}: {capsys.readouterr().err}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_is_named_is_there(page, capsys):
    for text in INLINE.findall(page.read_text()):
        words = text.partition(" -- ")[0].split()[1:]
        called = words[: 2 if words[0] in GROUPS else 1]
        for option in re.findall(r"--[a-z-]+[a-z]", " ".join(words)):
            with pytest.raises(SystemExit):
                main([*called, "--help"])
            assert option in capsys.readouterr().out, (page.name, text)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the pages take for granted: pictures, a manifest, stores, the program that trains."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    class_folders(Path("photos"), 12)
    Path("train.py").write_text(TRAINING)
    rows = []
    for number in range(40):
        Path(f"{number}.png").write_bytes(picture(number))
        label = "sick" if number % 3 else "well"
        about = {"patient": f"p{number // 5}", "patient_id": f"P{number // 2}", "age": 15 + number, "label": label}
        rows.append({"path": f"{number}.png", "key": f"scan-{number:03}", **about})
    manifest(Path("slides.csv"), rows)
    for store in ("scans.db", "data.db"):
        assert main(["ingest", "slides.csv", f"sqlite:///{store}"]) == 0
    return tmp_path


CASSANDRA = "cassandra://db.example/path/slides"


@pytest.mark.parametrize("name", ["ingest", "splits", "stores", "plan"])
def test_what_a_page_shows_is_done(folder, capsys, name):
    page = ROOT / "docs" / f"{name}.md"
    if name == "plan":
        text = "\n".join(shown(page))
        Path("machine.json").write_text(re.search(r"cat > machine.json <<END\n(.*?)\nEND", text, re.DOTALL)[1])
        traced = {**os.environ, "HEADRACE_TRACE": "run.trace"}
        subprocess.run(
            [sys.executable, "-m", "headrace", "run", "--", sys.executable, "train.py"], env=traced, check=True
        )
    every = list(commands(page))
    assert every
    for words in every:
        given = [f"sqlite:///{name}-copy.db" if word == CASSANDRA else word for word in words]
        if words[:2] in (["store", "rm"], ["store", "prune"]):
            given.append("--yes")
        shutil.rmtree("out", ignore_errors=True)
        assert main(given) == 0, (words, capsys.readouterr().err)


def test_what_the_first_page_shows_is_done(folder, capfd):
    line = next(line for line in shown(ROOT / "docs" / "index.md") if line.startswith("HEADRACE_TRACE="))
    variable, *program = shlex.split(line)
    assert program == ["python", "train.py"]
    traced = {**os.environ, "HEADRACE_TRACE": variable.partition("=")[2]}
    arguments = [sys.executable, "-m", "headrace", "run", "--", sys.executable, *program[1:]]
    subprocess.run(arguments, env=traced, check=True)
    [report] = [words for words in commands(ROOT / "docs" / "index.md") if words[:2] == ["trace", "report"]]
    assert main(report) == 0
    assert Path("run.html").stat().st_size > 1000


@pytest.mark.soak
@pytest.mark.parametrize("page", ["index", "switch"])
def test_programs_are_run_as_a_page_shows(folder, page, capfd):
    for words in commands(ROOT / "docs" / f"{page}.md"):
        if words[0] in PROGRAMS and "--" in words:
            given = [sys.executable if word == "python" else word for word in words]
            assert main(given) == 0, (words, capfd.readouterr().err)
