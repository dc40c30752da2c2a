"""Builds the ledger's native twin where there is a compiler; without one the package is complete, only slower."""

import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
SCHED = ROOT / "src" / "headrace" / "sched"


def header() -> str:
    """The ledger's words for C, from where they are declared."""
    names: dict[str, Any] = {}
    exec((SCHED / "words.py").read_text(), names)  # noqa: S102  (our own file, which imports nothing of ours)
    words = {name: value for name, value in names.items() if re.fullmatch("[A-Z][A-Z_]*", name) and type(value) is int}
    lines = [f"#define W_{name} INT64_C({value})" for name, value in words.items()]
    return "\n".join([*lines, ""])


def compiled(into: Path, *flags: str) -> bool:
    """The module, as ``into``; False where there is no compiler, or no headers."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "words.h").write_text(header())
        include = {sysconfig.get_paths()[name] for name in ("include", "platinclude")}
        for name in dict.fromkeys([compiler, "cc", "gcc", "clang"]):
            command = [
                name,
                "-O2",
                "-fPIC",
                "-shared",
                "-pthread",
                "-Wall",
                "-Wextra",
                "-Wno-missing-field-initializers",
            ]
            command += ["-fwrapv", *flags]  # amounts may be anything: they wrap
            command += [f"-I{folder}", *(f"-I{path}" for path in include)]
            command += [str(SCHED / "native.c"), "-o", f"{folder}/made.so"]
            try:
                done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  (a compiler)
            except OSError:
                continue
            if done.returncode == 0:
                into.unlink(missing_ok=True)  # whoever has the old one mapped keeps it
                into.write_bytes((Path(folder) / "made.so").read_bytes())
                into.chmod(0o755)
                return True
            sys.stderr.write(done.stderr)
    return False


def build() -> Path | None:
    """The module, compiled beside its source for every version of Python; None where that cannot be done."""
    made = SCHED / "native.abi3.so"
    if not compiled(made):
        return None
    for other in SCHED.glob("native.*.so"):  # one for a single version would be preferred
        if other != made:
            other.unlink()
    return made


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand: python hatch_build.py
    pass
else:

    class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
        """Called by hatchling for wheels and editable installs."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """A wheel with the module in it is one for this platform, and for every version of Python we support."""
            made = build()
            if made is not None:
                platform = re.sub("[^a-z0-9]", "_", sysconfig.get_platform().lower())
                build_data["pure_python"] = False
                build_data["tag"] = f"cp311-abi3-{platform}"
                build_data["artifacts"].append(str(made.relative_to(ROOT)))


if __name__ == "__main__":
    print(build() or "no compiler, or no headers: the ledger stays in Python")  # noqa: T201
