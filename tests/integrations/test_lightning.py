"""Our loader in Lightning's Trainer, unmodified: also where it is built anew and where its state is saved."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.data import _update_dataloader
from torch.utils.data import DistributedSampler, SequentialSampler

import headrace
from tests.integrations.rank_script import Numbers

pytestmark = pytest.mark.integration

SAMPLES = 22
STEPS = 6


class Model(pl.LightningModule):
    """Notes which samples it is shown in each epoch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained: dict[int, list[int]] = {}
        self.validated: dict[int, list[int]] = {}

    def training_step(self, batch):
        self.trained.setdefault(self.current_epoch, []).extend(batch.tolist())
        return self.layer(batch[:, None].float()).mean()

    def predict_step(self, batch):
        return batch

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Validated(Model):
    def validation_step(self, batch):
        self.validated.setdefault(self.current_epoch, []).extend(batch.tolist())


class ModelWithLoader(Model):
    """Makes the loader itself, under Lightning's watch."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def train_dataloader(self):
        return self.make()


def train_loader(**options):
    return headrace.DataLoader(Numbers(SAMPLES), batch_size=4, shuffle=True, num_workers=1, **options)


@pytest.fixture
def trainer(tmp_path):
    def make(**options):
        return pl.Trainer(
            accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, **{"max_epochs": 2} | options,
        )  # fmt: skip

    return make


def test_fit_with_validation(trainer):
    model, train = Validated(), train_loader()
    validation = headrace.DataLoader(Numbers(7), batch_size=2, num_workers=1)
    trainer = trainer(num_sanity_val_steps=0)
    trainer.fit(model, train, validation)
    assert [sorted(model.trained[epoch]) for epoch in range(2)] == [list(range(SAMPLES))] * 2
    assert model.trained[0] != model.trained[1]
    assert [model.validated[epoch] for epoch in range(2)] == [list(range(7))] * 2
    assert trainer.train_dataloader is train
    assert (train.stats().batches, validation.stats().batches) == (2 * STEPS, 8)


def test_sanity_check_leaves_validation_whole(trainer):
    model = Validated()
    validation = headrace.DataLoader(Numbers(20), batch_size=2, num_workers=1, persistent_workers=True)
    train = train_loader(persistent_workers=True)
    trainer(num_sanity_val_steps=2, max_epochs=1).fit(model, train, validation)
    assert model.validated[0] == [0, 1, 2, 3, *range(20)]


def test_loader_made_in_a_hook(trainer):
    model = ModelWithLoader(lambda: train_loader(on_error=headrace.Skip()))
    trainer = trainer(max_epochs=1)
    trainer.fit(model)
    assert sorted(model.trained[0]) == list(range(SAMPLES))
    assert trainer.train_dataloader.stats().batches == STEPS


@pytest.mark.parametrize("hook", [False, True], ids=["argument", "hook"])
@pytest.mark.filterwarnings("ignore:You requested to overfit but enabled train dataloader shuffling")
def test_loader_replaced_for_overfitting(trainer, hook):
    def make():
        loading = headrace.Loading(memory_limit=1 << 24)
        return train_loader(on_error=headrace.Skip(), loading=loading, timeout=240)

    model = ModelWithLoader(make) if hook else Model()
    trainer = trainer(overfit_batches=2)
    trainer.fit(model, *([] if hook else [make()]))
    used = trainer.train_dataloader
    assert type(used) is headrace.DataLoader
    assert isinstance(used.sampler, SequentialSampler)
    assert (used.on_error, used.loading) == (headrace.Skip(), headrace.Loading(memory_limit=1 << 24))
    assert (used.num_workers, used.timeout, used.batch_size) == (1, 240, 4)
    # Not the order that was chosen for a loader that shuffles: overfitting repeats the same batches.
    assert used.in_order is None
    assert [model.trained[epoch] for epoch in range(2)] == [list(range(8))] * 2
    assert used.stats().batches == 4


@pytest.mark.parametrize("workers", [None, 0, 1])
def test_loader_replaced_for_a_distributed_sampler(workers):
    loader = headrace.DataLoader(Numbers(SAMPLES), batch_size=4, shuffle=True, num_workers=workers)
    shards = [
        _update_dataloader(loader, DistributedSampler(loader.dataset, num_replicas=2, rank=rank)) for rank in range(2)
    ]
    assert {type(shard) for shard in shards} == {headrace.DataLoader}
    assert [shard.num_workers for shard in shards] == [loader.num_workers] * 2
    seen = [value for shard in shards for batch in shard for value in batch.tolist()]
    assert sorted(seen) == list(range(SAMPLES))


def test_predict_returns_every_sample_in_order(trainer):
    loader = headrace.DataLoader(Numbers(SAMPLES), batch_size=4, num_workers=1, drop_last=True)
    trainer = trainer()
    predicted = trainer.predict(Model(), loader)
    assert torch.cat(predicted).tolist() == list(range(SAMPLES))
    assert type(trainer.predict_dataloaders) is headrace.DataLoader


@pytest.mark.parametrize("limit", [1, 3, STEPS])
def test_checkpoint_within_an_epoch_resumes_exactly(trainer, tmp_path, limit):
    class Save(Callback):
        def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
            if trainer.global_step == limit:
                trainer.save_checkpoint(tmp_path / "mid.ckpt")

    first, second = Model(), Model()
    trainer(max_steps=limit, max_epochs=-1, callbacks=[Save()]).fit(first, train_loader())
    assert len(first.trained[0]) == min(4 * limit, SAMPLES)
    trainer(max_epochs=2).fit(second, train_loader(), ckpt_path=tmp_path / "mid.ckpt", weights_only=True)
    assert sorted(first.trained[0] + second.trained.get(0, [])) == list(range(SAMPLES))
    assert sorted(second.trained[1]) == list(range(SAMPLES))
