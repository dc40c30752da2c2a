"""What a wheel must have: ``python -m tests.wheel FILE`` says what is wrong with it."""

import re
import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
NAME = re.compile(r"headrace-[^-]+-cp311-abi3-[a-z0-9_]+\.whl")
NATIVE = "headrace/sched/native.abi3.so"


def faults(wheel: Path) -> list[str]:
    """One line each; none when it is complete and has nothing that is not the package's."""
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    wanted = {name for name in ours if not name.endswith((".pyc", ".c"))} | {NATIVE}
    found = [f"{name} is missing" for name in sorted(wanted - inside)]
    found += [f"{name} does not belong there" for name in sorted(inside - wanted)]
    if not NAME.fullmatch(wheel.name):
        found.append(f"{wheel.name} is not one for every version of Python from 3.11 on")
    return found


if __name__ == "__main__":
    wrong = [f"{name}: {fault}\n" for name in sys.argv[1:] for fault in faults(Path(name))]
    sys.stderr.writelines(wrong)
    sys.exit(bool(wrong))
