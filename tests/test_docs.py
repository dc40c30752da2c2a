"""Every Python block of the README and the documentation runs, page by page, in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import programs

ROOT = Path(__file__).parent.parent
PAGES = sorted(page for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")] if "```python" in page.read_text())
EXAMPLES = sorted(ROOT.glob("examples/*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = programs.run(script, tmp_path, strict=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_run(example, tmp_path):
    done = programs.run(example, tmp_path, strict=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_batches_are_jaxs_without_a_copy(tmp_path):
    pytest.importorskip("jax")
    done = programs.run(ROOT / "examples" / "arrays.py", tmp_path, strict=False)
    assert "jax: no copy" in done.stdout, done.stderr


@pytest.mark.parametrize("page", [ROOT / "README.md", *ROOT.glob("docs/**/*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_site_is_built_without_a_complaint(tmp_path):
    """Links, anchors and names in the API pages; whatever is wrong with them is a warning, and an error here."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        check=False, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert "load_state_dict" in (tmp_path / "site" / "api" / "index.html").read_text()
