"""What people install: complete, without tests, for machines that can load it, and working with nothing else there."""

from pathlib import Path

import pytest

from tests import wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    if not wheel.UV.exists():
        pytest.skip("uv is not installed: make setup")
    wheel.run(wheel.UV, "build", "--quiet", "--sdist", "--out-dir", folder, wheel.ROOT, cwd=folder)
    (made,) = folder.glob("*.tar.gz")
    return made


def test_what_the_source_makes_without_a_compiler_is_complete(source: Path, tmp_path: Path) -> None:
    made = wheel.built(source, tmp_path, native=False)
    assert made.name.endswith("-py3-none-any.whl")
    assert wheel.faults(made) == []


def test_what_it_makes_with_one_is_for_every_machine_that_has_what_it_asks_for(source: Path, tmp_path: Path) -> None:
    made = wheel.built(source, tmp_path)
    assert "-cp311-abi3-manylinux_2_" in made.name
    assert wheel.faults(made) == []
    older = made.rename(tmp_path / "headrace-0.1.0-cp311-abi3-manylinux_2_5_x86_64.whl")
    (fault,) = wheel.faults(older)
    assert fault.startswith("it says manylinux_2_5_x86_64 and is for manylinux_2_")
    linux = older.rename(tmp_path / "headrace-0.1.0-cp311-cp311-linux_x86_64.whl")
    assert wheel.faults(linux) == ["its name is not one for every version of Python from 3.11 on"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", wheel.VERSIONS)
def test_it_installs_without_extras_and_runs(source: Path, version: str, tmp_path: Path) -> None:
    python = wheel.interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    wheel.tried(wheel.built(source, tmp_path), python, tmp_path)
