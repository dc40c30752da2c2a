"""Stages: what a dataset's samples go through, and what of it is always alike."""

import copy
import functools
import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets, transforms
from torchvision.transforms import v2

from headrace.cache.backends import entry_word as W
from headrace.cache.fingerprints.fingerprint import fingerprint
from headrace.core.errors import CacheError
from headrace.dataset import StoreDataset
from headrace.staging.lists import steps
from headrace.staging.prefix import cut, deterministic, is_deterministic
from headrace.staging.stages import staged


class Mine:
    def __call__(self, value):
        return value


class Derived(transforms.Resize):
    """Its ``forward`` may do anything."""


def names(operations):
    return [type(each).__name__ for each in operations]


class TestPrefix:
    def test_ends_at_what_is_random(self):
        pipeline = transforms.Compose(
            [transforms.Resize(9), transforms.Pad(1), transforms.RandomHorizontalFlip(), transforms.CenterCrop(4)]
        )
        parts = cut(pipeline)
        assert names(parts.kept) == ["Resize", "Pad"]
        assert names(parts.rest) == ["RandomHorizontalFlip", "CenterCrop"]
        assert parts.random

    def test_pictures_are_kept_as_bytes(self):
        parts = cut(
            transforms.Compose(
                [
                    transforms.Resize(9),
                    transforms.ToTensor(),
                    transforms.Normalize([0.5], [0.5]),
                    transforms.CenterCrop(4),
                ]
            )
        )
        assert names(parts.kept) == ["Resize"]
        assert names(parts.rest) == ["ToTensor", "Normalize", "CenterCrop"]
        assert not parts.random

    def test_of_the_new_transforms(self):
        pipeline = v2.Compose(
            [
                v2.ToImage(),
                v2.Compose([v2.Resize(9, antialias=True), v2.ToDtype(torch.uint8, scale=True)]),
                v2.ToDtype(torch.float32, scale=True),
                v2.RandomErasing(),
            ]
        )
        parts = cut(pipeline)
        assert names(parts.kept) == ["ToImage", "Resize", "ToDtype"]
        assert names(parts.rest) == ["ToDtype", "RandomErasing"]

    def test_unknown_operations_count_as_random(self):
        for unknown in (Mine(), Derived(3), lambda value: value, transforms.Lambda(abs), np.asarray):
            assert not is_deterministic(unknown)
            assert cut(transforms.Compose([transforms.Resize(3), unknown])).rest == (unknown,)

    def test_the_user_may_know_better(self):
        @deterministic
        def halve(value):
            return value

        @deterministic
        class Halve:
            def __call__(self, value):
                return value

        parts = cut(
            transforms.Compose([halve, Halve(), deterministic(Mine()), deterministic(len), transforms.RandomCrop(2)])
        )
        assert len(parts.kept) == 4
        assert parts.kept[0] is halve
        assert parts.kept[3]([1, 2]) == 2
        assert names(parts.rest) == ["RandomCrop"]

    def test_a_mark_is_of_the_class_that_has_it(self):
        @deterministic(version=1)
        class Halve:
            def __init__(self, by):
                self.by = by

            def __call__(self, value):
                return value

            @deterministic
            def method(self, value):
                return value

        class Jittered(Halve):
            def __call__(self, value):
                return value * torch.rand(())

        assert is_deterministic(Halve(1))
        assert is_deterministic(Jittered(1).method)
        assert not is_deterministic(Jittered(1))
        assert fingerprint(Halve(1)) == fingerprint(Halve(2))
        assert fingerprint(Jittered(1)) != fingerprint(Jittered(2))

    def test_a_mark_is_of_what_was_marked_and_not_of_what_wraps_it(self):
        @deterministic(version=1)
        def halve(value):
            return value / 2

        @functools.wraps(halve)
        def jittered(value):
            return halve(value) * torch.rand(())

        @functools.wraps(halve)
        def shifted(value):
            return halve(value) + 1

        class Held:
            def __init__(self, operation):
                functools.update_wrapper(self, operation)

            def __call__(self, value):
                return self.__wrapped__(value) * torch.rand(())

        assert not any(map(is_deterministic, (jittered, shifted, Held(halve), functools.wraps(Mine())(jittered))))
        assert fingerprint(jittered) != fingerprint(shifted), "the version is halve's"
        assert is_deterministic(deterministic(shifted))
        assert is_deterministic(halve)

    def test_a_mark_goes_with_what_is_copied_or_sent(self):
        marked = deterministic(Mine())
        for copied in (pickle.loads(pickle.dumps(marked)), copy.deepcopy(marked)):
            assert is_deterministic(copied)
            assert fingerprint(copied) == fingerprint(marked)

    def test_sequences_of_modules(self):
        pipeline = torch.nn.Sequential(transforms.CenterCrop(3), transforms.RandomErasing())
        assert names(cut(pipeline).kept) == ["CenterCrop"]
        assert list(steps(None)) == []
        assert cut(None) == ((), (), False)


class Compose:
    """The user's own, with a way of its own."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, value):
        for transform in reversed(self.transforms):
            value = transform(value)
        return value


class Watched(transforms.Compose):
    def __call__(self, value):
        return super().__call__(value).rotate(90)


class Doubled(torch.nn.Sequential):
    def __call__(self, value):
        return super().__call__(super().__call__(value))


class TestOtherPeoplesLists:
    @pytest.mark.parametrize("kind", [Compose, Watched, lambda ops: Doubled(*ops)])
    def test_are_not_opened(self, kind, folder):
        pipeline = kind([transforms.CenterCrop(8), transforms.Pad((1, 2, 3, 4))])
        assert cut(pipeline) == ((), (pipeline,), True)
        dataset = datasets.ImageFolder(str(folder), pipeline)
        assert composed(staged(dataset), 1)[0].tobytes() == dataset[1][0].tobytes()


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(2)
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        for number in range(3):
            pixels = rng.integers(0, 255, (20 + number, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / kind / f"{number}.jpg")
    return tmp_path


def pipeline(size=16):
    return transforms.Compose(
        [transforms.Resize(size), transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.RandomErasing()]
    )


def composed(stages, given, form=W.NOWHERE):
    for stage in stages.after(form):
        given = stage.run(given)
    return given


class TestFolder:
    def test_the_steps_are_those_of_the_dataset(self, folder):
        dataset = datasets.ImageFolder(str(folder), pipeline(), target_transform=lambda target: target + 10)
        stages = staged(dataset)
        for index in range(6):
            torch.manual_seed(index)
            picture, target = dataset[index]
            torch.manual_seed(index)
            found, label = composed(stages, index)
            assert torch.equal(found, picture)
            assert label == target
        fetch, decode, augment = stages.steps
        content, target = fetch.run(4)
        assert content == (folder / "dog" / "1.jpg").read_bytes()
        decoded = decode.run((content, target))
        assert (decoded[0].mode, min(decoded[0].size), target) == ("RGB", 16, 1)
        torch.manual_seed(4)
        from_decoded = composed(stages, decoded, W.DECODED)
        torch.manual_seed(4)
        assert torch.equal(from_decoded[0], dataset[4][0]), "going on from a form is the same as from the beginning"
        assert [stage.form for stage in stages.steps] == list(W.FORMS)
        assert [stage.name for stage in stages.steps] == ["fetch", "decode", "augment"]
        assert fetch.keeps
        assert augment.keeps

    def test_what_changes_changes_the_fingerprint_from_there_on(self, folder):
        def scopes(transform, **options):
            return staged(datasets.ImageFolder(str(folder), transform, **options)).scopes

        first = scopes(pipeline())
        assert scopes(pipeline()) == first
        assert len(set(first)) == 3
        resized = scopes(pipeline(12))
        assert (resized[0] == first[0], resized[1] == first[1], resized[2] == first[2]) == (True, False, False)
        later = pipeline()
        later.transforms[1].p = 0.9
        flipped = scopes(later)
        assert (flipped[1] == first[1], flipped[2] == first[2]) == (True, False)
        (folder / "cat" / "9.jpg").write_bytes((folder / "cat" / "1.jpg").read_bytes())
        assert scopes(pipeline())[0] != first[0]

    def test_a_file_that_changed_has_another_stamp(self, folder):
        stages = staged(datasets.ImageFolder(str(folder), pipeline()))
        before = [stages.stamp(index) for index in range(6)]
        os.utime(folder / "cat" / "1.jpg", ns=(1, 2))
        after = [stages.stamp(index) for index in range(6)]
        assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True, True, True, True]

    def test_a_loader_of_the_user_s_own_reads_files_itself(self, folder):
        dataset = datasets.DatasetFolder(str(folder), lambda path: np.asarray(Image.open(path)), extensions=(".jpg",))
        stages = staged(dataset)
        assert [stage.keeps for stage in stages.steps] == [False, True, True], "a path is not worth keeping"
        assert np.array_equal(composed(stages, 2)[0], dataset[2][0])

    def test_a_getitem_of_the_user_s_own_is_not_ours_to_take_apart(self, folder):
        class Other(datasets.ImageFolder):
            def __getitem__(self, index):
                return index

        with pytest.raises(CacheError, match="Other cannot be cached"):
            staged(Other(str(folder)))

    def test_subsets_share_what_is_kept(self, folder):
        dataset = datasets.ImageFolder(str(folder), transforms.CenterCrop(8))
        part = torch.utils.data.Subset(torch.utils.data.Subset(dataset, [5, 3, 1]), [2, 0])
        stages = staged(part)
        assert stages.scopes == staged(dataset).scopes
        assert [stages.origin(index) for index in range(2)] == [1, 5]
        assert (stages.samples, stages.stamp(0)) == (6, staged(dataset).stamp(1))
        assert composed(stages, 1)[0].tobytes() == part[1][0].tobytes()


class Words(torch.utils.data.Dataset):
    def __init__(self, texts, factor=2):
        self.texts, self.factor = texts, factor

    def __len__(self):
        return len(self.texts)

    def fetch(self, index):
        return self.texts[index]

    def decode(self, encoded):
        return encoded.upper() * self.factor

    def augment(self, decoded):
        return decoded + "!"

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


class TestOwn:
    def test_the_dataset_s_own_stages(self):
        dataset = Words(["a", "b"])
        stages = staged(dataset)
        assert [composed(stages, index) for index in range(2)] == ["AA!", "BB!"] == [dataset[0], dataset[1]]
        assert len(set(stages.scopes)) == 3
        assert stages.stamp(0) is None
        assert staged(Words(["a", "b"])).scopes == stages.scopes
        assert staged(Words(["a", "c"])).scopes != stages.scopes
        assert staged(Words(["a", "b"], 3)).scopes[1] != stages.scopes[1]

    def test_another_decode_is_another_cache(self):
        class Changed(Words):
            def decode(self, encoded):
                return encoded

        Changed.__qualname__, Changed.__module__ = Words.__qualname__, Words.__module__
        first, second = staged(Words(["a"])).scopes, staged(Changed(["a"])).scopes
        assert first[0] == second[0]
        assert first[1] != second[1]


class TestStore:
    def test_a_store_s_dataset_has_stages(self, folder):
        def made(**options):
            return StoreDataset(f"file://{folder}", **options)

        with made(augment=float_of) as dataset:
            stages = staged(dataset)
            assert torch.equal(composed(stages, 2)[0], dataset[2][0])
            assert stages.samples == 6
        first, other = stages.scopes, staged(made()).scopes
        assert [a == b for a, b in zip(first, other, strict=True)] == [True, True, False]
        again = staged(made(decode=len, augment=float_of)).scopes
        assert [a == b for a, b in zip(first, again, strict=True)] == [True, False, False]


def float_of(picture):
    return picture.float()


class Tens:
    """Its samples are ten times their indices, whatever these are."""

    def __len__(self):
        return 4

    def fetch(self, index):
        return 10 * index

    def decode(self, encoded):
        return encoded

    def augment(self, decoded):
        return decoded


def test_several_datasets_one_after_the_other_have_no_more_samples_than_they_have():
    stages = staged(torch.utils.data.ConcatDataset([Tens(), Tens()]))
    assert [stages.origin(index) for index in (0, 3, 4, 7, -1, -8)] == [0, 3, 4, 7, 7, 0]
    assert stages.steps[0].run(-1) == (1, 30)
    for index in (8, -9):
        for ask in (stages.origin, stages.stamp, stages.steps[0].run):
            with pytest.raises(IndexError, match=f"no sample {index}"):
                ask(index)


def test_others_are_told_how(folder):
    with pytest.raises(CacheError, match=r"TensorDataset cannot be cached.*fetch\(index\).*decode\(encoded\).*augment"):
        staged(torch.utils.data.TensorDataset(torch.zeros(3)))

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(CacheError, match="needs a dataset with indices"):
        staged(Endless())
