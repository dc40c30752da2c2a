"""What people install: complete, without tests, and working with nothing but its plain dependencies."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheel import faults

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
VERSIONS = ("3.11", "3.12", "3.13")
PROGRAM = """
import torch, headrace
from headrace.sched import twin
assert twin.module is not None, "its native part is not used"
def main():
    dataset = [torch.full((8,), float(index)) for index in range(64)]
    loader = headrace.DataLoader(dataset, batch_size=8, num_workers=2, shuffle=True)
    rows = torch.cat(list(loader))[:, 0]
    assert sorted(rows.tolist()) == list(range(64)), rows
    print("ok", headrace.__file__)
if __name__ == "__main__":
    main()
"""


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _interpreter(version: str) -> Path | None:
    """One that runs: version managers put launchers on PATH for versions that are not active."""
    named = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    managed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for python in [*named, *managed]:
        if subprocess.run([python, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return python
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    if not UV.exists():
        pytest.skip("uv is not installed: make setup")
    _run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT, cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.soak
def test_it_has_the_native_part_and_the_types_and_no_tests(wheel: Path) -> None:
    assert faults(wheel) == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", VERSIONS)
def test_it_installs_without_extras_and_runs(wheel: Path, version: str, tmp_path: Path) -> None:
    python = _interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    venv = tmp_path / "venv"
    try:
        _run(UV, "venv", "--quiet", "--python", python, venv, cwd=tmp_path)
        _run(UV, "pip", "install", "--quiet", "--python", venv / "bin" / "python", wheel, cwd=tmp_path)
        _run(UV, "pip", "check", "--quiet", "--python", venv / "bin" / "python", cwd=tmp_path)
        (tmp_path / "program.py").write_text(PROGRAM)
        said = _run(venv / "bin" / "python", "-W", "error", "program.py", cwd=tmp_path)
        assert said.startswith(f"ok {venv}")
        assert "usage" in _run(venv / "bin" / "headrace", "--help", cwd=tmp_path).lower()
    finally:
        shutil.rmtree(venv, ignore_errors=True)  # it has gigabytes
