"""What people install: whether a wheel is complete, says the truth about itself, and works where nothing else is."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
UV = Path(sys.executable).with_name("uv")
NAME = re.compile(r"headrace-[^-]+-(?P<python>cp311-abi3|py3-none)-(?P<platform>[a-z0-9_]+)\.whl")
NATIVE = "headrace/sched/native.abi3.so"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PROGRAM = """
import sys, torch, headrace
from headrace.sched import native_ledger
assert (native_ledger.module is not None) == (sys.argv[1] == "native"), "its native part does not match its name"
def main():
    dataset = [torch.full((8,), float(index)) for index in range(64)]
    loader = headrace.DataLoader(dataset, batch_size=8, num_workers=2, shuffle=True)
    rows = torch.cat(list(loader))[:, 0]
    assert sorted(rows.tolist()) == list(range(64)), rows
    print("ok", headrace.__file__)
if __name__ == "__main__":
    main()
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What the command prints. Raises AssertionError with all it said where it fails."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def interpreter(version: str) -> Path | None:
    """One that runs: version managers put launchers on PATH for versions that are not active."""
    named = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    managed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for python in [*named, *managed]:
        if subprocess.run([python, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def built(source: Path, into: Path, *, native: bool = True) -> Path:
    """A wheel made from a tree or a source distribution; without a compiler where it is not to be native."""
    before = set(into.glob("*.whl"))
    environment = {} if native else {"CC": str(into / "no compiler")}
    run(UV, "build", "--quiet", "--wheel", "--out-dir", into, source, cwd=into, **environment)
    (made,) = set(into.glob("*.whl")) - before
    return made


def faults(wheel: Path) -> list[str]:
    """One line each; none when it is complete, has nothing that is not the package's, and is what its name says."""
    named = NAME.fullmatch(wheel.name)
    if named is None:
        return ["its name is not one for every version of Python from 3.11 on"]
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
        native = archive.read(NATIVE) if NATIVE in inside else None
    ours = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    wanted = {name for name in ours if not name.endswith((".pyc", ".c", ".so"))}
    if named["python"] == "cp311-abi3":
        wanted.add(NATIVE)
    found = [f"{name} is missing" for name in sorted(wanted - inside)]
    found += [f"{name} does not belong there" for name in sorted(inside - wanted)]
    true = "any" if native is None else _platform(native)
    if named["platform"] != true:
        found.append(f"it says {named['platform']} and is for {true}")
    return found


def _platform(module: bytes) -> str:
    """The tag of the machines that can load it."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(module)
        return str(runpy.run_path(str(ROOT / "hatch_build.py"))["platform"](Path(file.name)))


def tried(wheel: Path, python: Path, folder: Path) -> None:
    """Installs it without extras where nothing else is, and uses it. Raises AssertionError where it does not work."""
    venv = folder / "venv"
    try:
        run(UV, "venv", "--quiet", "--python", python, venv, cwd=folder)
        run(UV, "pip", "install", "--quiet", "--python", venv / "bin" / "python", wheel, cwd=folder)
        run(UV, "pip", "check", "--quiet", "--python", venv / "bin" / "python", cwd=folder)
        (folder / "program.py").write_text(PROGRAM)
        kind = "plain" if wheel.name.endswith("none-any.whl") else "native"
        said = run(venv / "bin" / "python", "-W", "error", "program.py", kind, cwd=folder)
        assert said.startswith(f"ok {venv}"), said
        assert "usage" in run(venv / "bin" / "headrace", "--help", cwd=folder).lower()
    finally:
        shutil.rmtree(venv, ignore_errors=True)  # it has gigabytes
