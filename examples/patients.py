"""Patients, not pictures: a sample knows who it is, so metrics by patient, weights and bags need no wrapper.

Run it with ``python examples/patients.py``. It fills a small store, trains nothing, and shows three uses of
``StoreDataset(keys=True, metadata=[...])``: a score per patient, weights that make rare classes frequent, and bags of
one patient's samples for multiple-instance learning.
"""

import collections
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import WeightedRandomSampler

import headrace
from headrace.store import Kind, LabelKind, Record, Schema, open_writable

PATIENTS, SCANS = 6, 4


def number(payload: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(payload, np.float32).copy())


def fill(url: str) -> None:
    store = open_writable(url)
    store.create(Schema(LabelKind.INTEGER, {"patient_id": Kind.TEXT, "age": Kind.INTEGER}))
    rows = []
    for scan in range(PATIENTS * SCANS):
        patient = scan // SCANS
        payload = np.full(8, scan, np.float32).tobytes()
        rows.append(
            Record(f"scan-{scan:02}", payload, int(patient == 0), {"patient_id": f"p{patient}", "age": 50 + patient})
        )
    with store.writer() as writer:
        writer.put(rows)
    store.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'scans.db'}"
        fill(url)
        data = headrace.StoreDataset(url, decode=number, keys=True, metadata=["patient_id", "age"])

        scores = collections.defaultdict(list)
        with headrace.DataLoader(data, batch_size=5, shuffle=True, num_workers=1) as loader:
            for scans, _, who in loader:
                for key, patient, score in zip(who["key"], who["patient_id"], scans.mean(1).tolist(), strict=True):
                    assert score == int(key.removeprefix("scan-"))
                    scores[patient].append(score)
        print({patient: sum(each) / len(each) for patient, each in sorted(scores.items())})

        labels = data.labels  # from the store's metadata: no payload is read
        weights = (1 / np.bincount(labels))[labels]
        sampler = WeightedRandomSampler(weights.tolist(), 200, generator=torch.Generator().manual_seed(0))
        with headrace.DataLoader(data, batch_size=20, sampler=sampler, num_workers=0) as loader:
            share = torch.cat([labels for _, labels, _ in loader]).float().mean()
        print(f"class 1 is {labels.mean():.0%} of the store and {share:.0%} of what was drawn")

        of_patient = collections.defaultdict(list)
        for index, patient in enumerate(data.metadata["patient_id"]):
            of_patient[patient].append(index)
        with headrace.DataLoader(data, batch_sampler=list(of_patient.values()), num_workers=1) as loader:
            for _, _, who in loader:
                assert len(set(who["patient_id"])) == 1  # a bag
        print(f"{len(of_patient)} bags")


if __name__ == "__main__":
    main()
