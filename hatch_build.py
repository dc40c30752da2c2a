"""Builds the ledger's native twin where there is a compiler; without one the package is complete, only slower."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
SCHED = ROOT / "src" / "headrace" / "sched"
MACHINES = {62: "x86_64", 183: "aarch64"}
"""Processors as ELF numbers them."""
OLDEST = 17
"""glibc 2.17: no older one has a tag."""


def header() -> str:
    """The ledger's words for C, from where they are declared."""
    names: dict[str, Any] = {}
    exec((SCHED / "ledger_layout.py").read_text(), names)  # noqa: S102  (our own file, which imports nothing of ours)
    words = {name: value for name, value in names.items() if re.fullmatch("[A-Z][A-Z_]*", name) and type(value) is int}
    lines = [f"#define W_{name} INT64_C({value})" for name, value in words.items()]
    return "\n".join([*lines, ""])


def compilers() -> list[list[str]]:
    """Commands to try, in order: ``CC`` alone where it is set, which may compile for another processor."""
    if chosen := os.environ.get("CC"):
        return [shlex.split(chosen)]
    configured = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return [[name] for name in dict.fromkeys([configured, "cc", "gcc", "clang"])]


def compiled(into: Path, *flags: str) -> bool:
    """The module, as ``into``; False where there is no compiler, or no headers."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "words.h").write_text(header())
        include = {sysconfig.get_paths()[name] for name in ("include", "platinclude")}
        options = ["-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
        options += ["-fwrapv", *flags]  # amounts may be anything: they wrap
        options += [f"-I{folder}", *(f"-I{path}" for path in include)]
        options += [str(SCHED / "native.c"), "-o", f"{folder}/made.so"]
        for compiler in compilers():
            command = [*compiler, *options]
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
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None  # free-threaded builds have no stable interface, and load no module made for it
    if not compiled(made):
        return None
    for other in SCHED.glob("native.*.so"):  # one for a single version would be preferred
        if other != made:
            other.unlink()
    return made


def platform(module: Path) -> str:
    """A tag of the machines that can load it: its processor, and the newest glibc whose symbols it asks for."""
    content = module.read_bytes()
    machine = MACHINES.get(int.from_bytes(content[18:20], "little")) if content.startswith(b"\x7fELF") else None
    asked = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", content)]
    if machine is None or not asked:
        return re.sub("[^a-z0-9]", "_", sysconfig.get_platform().lower())
    return f"manylinux_2_{max(OLDEST, *asked)}_{machine}"


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand: python hatch_build.py
    pass
else:

    class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
        """Called by hatchling for wheels and editable installs."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """A wheel with the module in it is for machines that can load it, and for every version of Python."""
            made = build()
            if made is not None:
                build_data["pure_python"] = False
                build_data["tag"] = f"cp311-abi3-{platform(made)}"
                build_data["artifacts"].append(str(made.relative_to(ROOT)))


if __name__ == "__main__":
    print(build() or "no compiler, no headers, or no stable interface: the ledger stays in Python")  # noqa: T201
