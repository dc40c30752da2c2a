"""What errors say: which sample it was, and why a worker could not begin."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from headrace import DataLoader, Skip, StoreDataset
from headrace.store.ingest import ingest
from tests.store.ingest.support import manifest, picture


class TestNames:
    """A sample that fails is named by its index, by that in the dataset it lies in, and by its path or key."""

    @pytest.mark.parametrize("workers", [0, 2])
    def test_of_a_part_of_a_folder_of_pictures(self, tmp_path, workers):
        for name in ("cat", "dog"):
            (tmp_path / name).mkdir()
            for number in range(4):
                (tmp_path / name / f"{number}.jpg").write_bytes(picture(number, kind="JPEG"))
        broken = tmp_path / "dog" / "2.jpg"
        broken.write_bytes(broken.read_bytes()[:200])
        part = torch.utils.data.Subset(ImageFolder(str(tmp_path), ToTensor()), np.array([0, 1, 6, 7]))
        name = f"headrace: sample 2, which is 6 of its ImageFolder: {broken}"
        with DataLoader(part, 2, num_workers=workers, in_order=True) as loader:
            with pytest.raises(OSError, match="runcated") as raised:
                list(loader)
            assert name in raised.value.__notes__
        with DataLoader(part, 2, num_workers=workers, in_order=True, on_error=Skip(max_fraction=0.5)) as loader:
            assert [len(labels) for _, labels in loader] == [2, 1]  # the others of its batch come
            [failure] = loader.stats().skipped
            assert (failure.index, name in failure.error.__notes__) == (2, True)
            assert str(failure).startswith(f"{name.removeprefix('headrace: ')}: OSError: ")

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("way", ["augment", "transform", "augment_both"])
    def test_of_a_store(self, tmp_path, workers, way):
        rows = [{"path": f"{number}.png", "label": number, "key": f"k{number}"} for number in range(4)]
        for row in rows:
            (tmp_path / row["path"]).write_bytes(picture(row["label"]))
        ingest(str(manifest(tmp_path / "m.csv", rows)), f"sqlite:///{tmp_path}/s.db")
        with (
            StoreDataset(f"sqlite:///{tmp_path}/s.db", **{way: fails}) as dataset,
            DataLoader(dataset, 2, num_workers=workers, in_order=True) as loader,
            pytest.raises(ValueError, match="no such size") as raised,
        ):
            list(loader)
        assert "headrace: sample 0: k0" in raised.value.__notes__


def fails(*_):
    raise ValueError("no such size")


PROGRAM = """
import torch, headrace
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index
for batch in headrace.DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context="spawn"):
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["program.py"], "runs {folder}/program.py once more: the program's work has to stand below if __name__ == "),
        pytest.param(
            ["-c", PROGRAM],
            "cannot find the dataset, defined in a notebook or at a prompt: put the definition into a",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_program_that_spawned_workers_cannot_import_is_told_so_first(tmp_path, arguments, says):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, *(f"{tmp_path}/{word}" if word == "program.py" else word for word in arguments)],
        check=False, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("headrace.core.errors.WorkerDied: ")]
    assert line.startswith(
        f"headrace.core.errors.WorkerDied: A worker that is started with 'spawn' {says}".format(folder=tmp_path)
    )
