"""Two ranks of Ray Train prepare loaders: ``train_script.py ADDRESS FOLDER``. Each writes what it saw."""

import json
import sys
from pathlib import Path

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

SAMPLES = 20


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor(index)


def flat(batches):
    return [value for batch in batches for value in batch.tolist()]


def name(thing):
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def rank(config):
    import ray.train.torch

    import headrace

    seen = {}
    options = {"num_workers": 2, "timeout": 7, "prefetch_factor": 3, "on_error": headrace.Skip()}

    def prepared():
        loader = headrace.DataLoader(Numbers(), batch_size=4, shuffle=True, **options)
        return ray.train.torch.prepare_data_loader(loader)

    loader = prepared()
    epochs = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        epochs.append(flat(loader))
    settings = [loader.num_workers, float(loader.timeout), loader.prefetch_factor, type(loader.on_error).__name__]
    seen["sharded"] = {
        "class": name(loader), "sampler": type(loader.sampler).__name__, "epochs": epochs,
        "settings": [*settings, loader.in_order],
    }  # fmt: skip
    loader.close()

    with prepared() as first, prepared() as second:
        before = flat([next(iter(first))])
        second.load_state_dict(first.state_dict())
        seen["resumed"] = {"before": before, "after": flat(second)}

    own = headrace.DataLoader(Numbers(), sampler=DistributedSampler(Numbers()), num_workers=1)
    seen["own"] = [name(own), ray.train.torch.prepare_data_loader(own) is own]

    wrapped = ray.train.torch.prepare_data_loader(DataLoader(Numbers(), batch_size=4))
    seen["torchs"] = [type(wrapped).__name__, type(wrapped._dataloader).__name__, len(flat(wrapped))]
    number = ray.train.get_context().get_world_rank()
    (Path(config["folder"]) / f"{number}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    run = RunConfig(storage_path=sys.argv[2], name="run")
    scaling = ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 1})
    TorchTrainer(rank, train_loop_config={"folder": sys.argv[2]}, scaling_config=scaling, run_config=run).fit()
