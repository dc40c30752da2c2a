"""``headrace run`` on unmodified programs of other people's trainers: each gets our loader, and every sample once."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SAMPLES = 24
DATA = f"""
import json, os, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return {SAMPLES}

    def __getitem__(self, index):
        return {{"x": torch.tensor([float(index)])}}

def tell(seen, loader):
    loader = getattr(loader, "base_dataloader", loader)  # accelerate's wrapper has the loader within
    rank = os.environ.get("RANK", "0")
    with open(f"rank-{{rank}}.json", "w") as file:
        json.dump({{"seen": sorted(seen), "ours": hasattr(loader, "scheduling")}}, file)
"""
PROGRAMS = {
    "torchrun": """
torch.multiprocessing.set_start_method("fork")  # there is no main guard
torch.distributed.init_process_group("gloo")
sampler = torch.utils.data.DistributedSampler(Numbers(), shuffle=False)
loader = DataLoader(Numbers(), 4, sampler=sampler, num_workers=1)
tell([int(x) for batch in loader for x in batch["x"]], loader)
torch.distributed.destroy_process_group()
""",
    "accelerate": """
import accelerate
loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(Numbers(), 4, shuffle=True, num_workers=1))
tell([int(x) for batch in loader for x in batch["x"]], loader)
""",
    "lightning": """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []
    def training_step(self, batch, number):
        self.seen += [int(x) for x in batch["x"]]
        return self.layer(batch["x"]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-6)
module = Module()
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
)
trainer.fit(module, DataLoader(Numbers(), 4, shuffle=True, num_workers=1))
tell(module.seen, trainer.train_dataloader)
""",
    "transformers": """
import transformers
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []
    def forward(self, x):
        self.seen += [int(each) for each in x]
        return {"loss": self.layer(x).sum()}
model = Model()
arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=4, num_train_epochs=1, dataloader_num_workers=1, use_cpu=True,
    report_to=[], save_strategy="no", disable_tqdm=True, learning_rate=1e-6,
)
trainer = transformers.Trainer(model, arguments, train_dataset=Numbers())
made = []
build = trainer.get_train_dataloader
trainer.get_train_dataloader = lambda: made.append(build()) or made[0]
trainer.train()
tell(model.seen, made[0])
""",
}
SOAK = [pytest.param(name, marks=pytest.mark.soak) for name in PROGRAMS if name != "torchrun"]


@pytest.mark.parametrize("program", ["torchrun", *SOAK])
def test_an_unmodified_program_gets_our_loader(tmp_path, program):
    ranks = 2 if program == "torchrun" else 1
    if ranks == 1 and importlib.util.find_spec(program) is None:
        pytest.skip(f"{program} is not installed")
    (tmp_path / "train.py").write_text(DATA + PROGRAMS[program])
    launcher = [sys.executable]
    if program == "torchrun":
        launcher += ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
        launcher += ["--rdzv-endpoint=localhost:0", "--local-addr=localhost"]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "run", "--json", "--", *launcher, "train.py"],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    assert [each["ours"] for each in found] == [True] * ranks
    assert sorted(index for each in found for index in each["seen"]) == list(range(SAMPLES))
    used = [report for report in json.loads(done.stdout)["processes"] if report["loaders"]]
    assert [report["rank"] for report in used] == list(range(ranks))
