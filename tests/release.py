"""``python -m tests.release dist``: makes all that an index would be given, and tries it; nothing is uploaded."""

import platform
import shutil
import sys
import tempfile
from pathlib import Path

from tests import wheel

MACHINES = ("x86_64", "aarch64")
GLIBC = "2.17"
"""As old a one as there is a tag for: what is linked with it runs with every later one."""
BIN = Path(sys.executable).parent


def made(into: Path) -> list[Path]:
    """The source distribution, and from it the wheels with the native part for each processor, and the one without."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    wheel.run(wheel.UV, "build", "--quiet", "--sdist", "--out-dir", into, wheel.ROOT, cwd=into)
    (source,) = into.glob("*.tar.gz")
    for machine in MACHINES:
        compiler = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}"
        command = (wheel.UV, "build", "--quiet", "--wheel", "--out-dir", into, source)
        wheel.run(*command, cwd=into, CC=compiler)
    return [source, *sorted(into.glob("*.whl"))]


def faults(files: list[Path]) -> list[str]:
    """One line each, of what can be seen without running it."""
    source, *wheels = files
    found = [f"{each.name}: {fault}" for each in wheels for fault in wheel.faults(each)]
    for machine in MACHINES:
        tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
        if not any(each.name.endswith(f"-{tag}.whl") for each in wheels):
            found.append(f"there is no wheel for {tag}")
    for each in wheels:
        wheel.run(BIN / "auditwheel", "show", each, cwd=source.parent)
    wheel.run(BIN / "twine", "check", "--strict", *files, cwd=source.parent)
    return found


def trials(files: list[Path], into: Path) -> list[tuple[Path, str]]:
    """What is installed, and on which Python: this machine's wheel on each, what the source makes alone on one."""
    source, *wheels = files
    plain = wheel.built(source, into, native=False)
    here = [each for each in wheels if each.name.endswith(f"_{platform.machine()}.whl")]
    return [(plain, wheel.VERSIONS[0]), *((each, version) for each in here for version in wheel.VERSIONS)]


def main(into: Path) -> int:
    """Zero when all of it is as it should be."""
    files = made(into)
    if wrong := faults(files):
        sys.stderr.writelines(f"{line}\n" for line in wrong)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        for file, version in trials(files, Path(folder)):
            python = wheel.interpreter(version)
            if python is None:
                sys.stderr.write(f"{file.name}: not tried on Python {version}, which is not here\n")
                continue
            wheel.tried(file, python, Path(folder))
            sys.stderr.write(f"{file.name}: works on Python {version}\n")
    sys.stderr.write(f"complete, and not uploaded: {', '.join(file.name for file in files)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
