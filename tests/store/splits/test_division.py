"""Divisions: nothing lost, nothing in two parts, ratios as close as can be, the same from the same seed."""

import hashlib
import itertools
import random as random_module
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import FilterError, SplitError
from headrace.store.splits.assignment import ranks, split
from headrace.store.splits.cut import cut
from headrace.store.splits.grouping import Cells, Search, assigned
from headrace.store.splits.shares import Shares
from tests.selection import examples

THREE = {"train": 0.8, "val": 0.1, "test": 0.1}


def patients(rows=4000, groups=250, classes=5):
    """Patients of very different numbers of slides, each with a disease that most of their slides show."""
    random = random_module.Random(1)
    patient = [int(groups * random.random() ** 2) for _ in range(rows)]
    disease = [who * 7 % classes if random.random() < 0.7 else int(random.random() * classes) for who in patient]
    return {
        "key": [f"slide-{number:05d}" for number in range(rows)],
        "label": np.array(disease),
        "patient_id": [f"P{number}" for number in patient],
        "age": np.array([20 + int(random.random() * 70) for _ in range(rows)]),
    }


def shares_of(splits, frame):
    whole = Counter(frame["label"].tolist())
    for name in splits.names:
        there = Counter(frame["label"][splits.rows(name)].tolist())
        yield {label: there[label] / whole[label] for label in whole}


class TestWithoutGroups:
    @given(
        st.lists(st.integers(0, 60), min_size=1, max_size=8),
        st.lists(st.integers(1, 20), min_size=1, max_size=5),
        st.integers(0, 10),
    )
    def test_every_class_gets_its_share_to_within_one_and_so_does_every_part(self, sizes, weights, rest):
        whole = sum(weights) + rest
        shares = Shares.of([weight / whole for weight in weights])
        kinds = np.repeat(np.arange(len(sizes)), sizes)
        order = ranks(map(str, range(len(kinds))), 1, "rows")
        parts = cut(np.ones(len(kinds), np.int64), kinds, order, ranks(map(str, range(len(sizes))), 1, "kinds"), shares)
        for kind, size in enumerate(sizes):
            for part, weight in enumerate([*weights, rest]):
                number = int(((parts == part) & (kinds == kind)).sum())
                assert abs(number - size * weight / whole) < 1 + 1e-6
        for part, weight in enumerate([*weights, rest]):
            assert abs(int((parts == part).sum()) - len(kinds) * weight / whole) <= len(sizes)

    def test_every_row_is_in_one_part(self):
        frame = patients()
        splits = split(frame, THREE, stratify="label", seed=7)
        every = [key for name in splits.names for key in splits.keys(name)]
        assert sorted(every) == frame["key"]
        assert [len(splits.keys(name)) for name in splits.names] == [3200, 400, 400]
        for name, ratios in zip(THREE.values(), shares_of(splits, frame), strict=True):
            assert all(abs(ratio - name) < 0.01 for ratio in ratios.values())
        assert splits.concerns() == []

    def test_fractions_that_leave_something_are_said(self):
        frame = patients()
        splits = split(frame, {"train": 0.8, "test": 0.1}, seed=7)
        assert splits.concerns() == ["fractions add up to 0.9: what they leave of 1 is in no split"]
        assert split(frame, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}).concerns() == []

    def test_labels_go_by_the_names_of_their_classes(self):
        frame = {"label": [0, 1, 2] * 30, "class": ["cat", "dog", "10"] * 30}
        options = {"stratify": "label", "balance": {"cat": 1, "dog": 2, "10": 1}}
        assert split(frame, {"all": 1}, **options).facts["counts"]["splits"]["all"]["classes"] == {
            "cat": 15,
            "dog": 30,
            "10": 15,
        }
        with pytest.raises(SplitError, match="there is no class '0'; there are cat, dog, 10"):
            split(frame, {"all": 1}, stratify="label", balance={"0": 1})
        mixed = {"label": [0, 1] * 30, "class": ["cat"] * 59 + ["dog"]}  # names that are not those of the labels
        assert set(split(mixed, {"all": 1}, stratify="label").facts["counts"]["total"]["classes"]) == {"0", "1"}

    def test_a_thousand_classes_of_one_row_do_not_spoil_the_sizes(self):
        splits = split({"key": [str(i) for i in range(1000)], "label": [str(i // 2) for i in range(1000)]}, THREE)
        rare = split({"label": np.arange(2000) // 2}, THREE, stratify="label")
        assert repr(splits) == "Splits(train=800, val=100, test=100)"
        assert repr(rare) == "Splits(train=1600, val=200, test=200)"

    def test_what_fractions_leave_is_left_out(self):
        splits = split(patients(), {"train": 0.5, "test": 0.25}, stratify="label")
        assert (len(splits), splits.facts["left_out"]) == (3000, 1000)

    def test_thirds_are_a_whole(self):
        splits = split({"key": ["a", "b", "c"]}, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
        assert [len(splits.keys(name)) for name in "abc"] == [1, 1, 1]


class TestGroups:
    @pytest.mark.parametrize("stratify", [None, "label"])
    def test_no_group_is_in_two_parts(self, stratify):
        frame = patients()
        splits = split(frame, THREE, group_by="patient_id", stratify=stratify, folds=4, seed=3)
        patient = np.array(frame["patient_id"])
        parts = [set(patient[splits.rows(name)]) for name in splits.names]
        folds = [set(patient[splits.rows(f"fold{number}.val")]) for number in range(4)]
        for one, other in [*itertools.combinations(parts, 2), *itertools.combinations(folds, 2)]:
            assert not one & other
        assert set.union(*parts) == set(frame["patient_id"])
        assert set.union(*folds) == parts[0]
        assert len(splits) == 4000

    def test_ratios_are_kept_as_closely_as_groups_allow(self):
        frame = patients()
        splits = split(frame, THREE, group_by="patient_id", stratify="label", seed=3)
        for name, ratios in zip(THREE.values(), shares_of(splits, frame), strict=True):
            assert all(abs(ratio - name) < 0.03 for ratio in ratios.values())

    @settings(max_examples=examples(25))
    @given(st.data())
    def test_no_other_place_of_a_group_would_be_better_by_more_than_a_group(self, data):
        number, kinds = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 3))
        extra = data.draw(st.lists(st.tuples(st.integers(0, number - 1), st.integers(0, kinds - 1)), max_size=40))
        groups = np.array([*range(number), *(group for group, _ in extra)])
        classes = np.unique(
            [*(each % kinds for each in range(number)), *(kind for _, kind in extra)], return_inverse=True
        )[1]
        shares = Shares.of(data.draw(st.sampled_from([[0.7, 0.3], [0.6, 0.2, 0.2], [0.5]])))
        cells = Cells.of(groups, classes)

        def harm(parts):
            return Search(cells, parts, shares).harm()

        def alone(group):
            counts = np.array(
                [*np.bincount(classes[groups == group], minlength=len(cells.totals)), sum(groups == group)]
            )
            wanted = np.outer(np.array(shares.weights) / shares.whole, [*cells.totals, len(groups)])
            each = counts**2 / np.maximum(wanted, 1) / [*[len(cells.totals)] * len(cells.totals), 1]
            return np.sort(each.sum(axis=1))[-2:].sum()

        names = ranks(map(str, range(number)), 5, "test")
        parts = assigned(cells, names, ranks(map(str, range(int(classes.max()) + 1)), 5, "classes"), shares)
        used = [part for part, weight in enumerate(shares.weights) if weight]
        for group, part in itertools.product(range(number), used):
            other = parts.copy()
            other[group] = part
            assert harm(parts) <= harm(other) + alone(group) + 1e-6

    def test_harm_is_added_up_alike_by_any_python(self):
        cells = Cells.of(np.zeros(1, np.int64), np.zeros(1, np.int64))
        search = Search(cells, np.array([0]), Shares((1,), 1))
        search._off, search._weight = [[1e8, 1.0, 1.0]], [[1.0, 1.0, 1.0]]
        assert search.harm() == 1e16 + 2  # until Python 3.11, sum() gives 1e16

    def test_many_small_groups_come_out_almost_exact(self):
        random = np.random.default_rng(3)
        frame = {"label": random.integers(0, 50, 30_000), "patient_id": random.integers(0, 9000, 30_000)}
        splits = split(frame, THREE, group_by="patient_id", stratify="label")
        for name, ratios in zip(THREE.values(), shares_of(splits, frame), strict=True):
            assert all(abs(ratio - name) < 0.01 for ratio in ratios.values())

    def test_a_huge_group_goes_where_it_fits_and_is_told_of(self):
        frame = {"patient_id": ["big"] * 900 + [f"P{i}" for i in range(100)]}
        splits = split(frame, {"train": 0.5, "test": 0.5}, group_by="patient_id")
        assert sorted(len(splits.keys(name)) for name in splits.names) == [100, 900]
        assert any("the largest group has 900 rows" in concern for concern in splits.concerns())

    def test_too_few_groups_are_told_of(self):
        frame = {"patient_id": ["a", "a", "b"]}
        with pytest.raises(SplitError, match=r"is empty: there are too few groups for its share\. .*allow_empty"):
            split(frame, THREE, group_by="patient_id")
        splits = split(frame, THREE, group_by="patient_id", allow_empty=True)
        assert any("is empty: there are too few groups" in concern for concern in splits.concerns())

    def test_every_fold_has_rows(self):
        frame = {"patient_id": [row // 10 for row in range(1200)]}
        with pytest.raises(
            SplitError, match=r"380 of 500 folds are empty \(.*\): there are too few groups for so many"
        ):
            split(frame, folds=500, group_by="patient_id")
        splits = split(frame, folds=500, group_by="patient_id", allow_empty=True)
        assert any("380 of 500 folds are empty" in concern for concern in splits.concerns())
        assert len(splits.facts["counts"]["folds"]) == 500
        assert split(frame, folds=120, group_by="patient_id").concerns() == []

    def test_a_row_without_a_group_could_belong_to_any(self):
        frame = {"patient_id": ["a", None, "b", None]}
        with pytest.raises(SplitError, match=r"2 of 4 rows have no patient_id.*patient_id IS NOT NULL"):
            split(frame, THREE, group_by="patient_id")
        assert len(split(frame, {"all": 1}, group_by="patient_id", where="patient_id IS NOT NULL")) == 2


class TestRepeatable:
    def test_the_seed_decides_not_the_order_of_the_rows(self):
        frame = patients(1000, 60)
        order = np.random.default_rng(5).permutation(1000)
        mixed = {name: [values[row] for row in order] for name, values in frame.items()}
        options = {"group_by": "patient_id", "stratify": "label", "balance": {"train": "uniform"}, "folds": 3}
        one, same, other = (split(f, THREE, seed=s, **options) for f, s in [(frame, 7), (mixed, 7), (frame, 8)])
        for name in (*THREE, "fold1.val"):
            assert sorted(one.keys(name)) == sorted(same.keys(name))
        assert sorted(one.keys("train")) != sorted(other.keys("train"))

    def test_it_is_the_same_on_every_machine_and_python(self):
        """These digests may change only with a word in the changelog: published splits depend on them."""
        frame = patients(500, 60)
        found = []
        for options in ({}, {"stratify": "label"}, {"group_by": "patient_id", "stratify": "label", "folds": 3}):
            splits = split(frame, THREE, seed=7, **options)
            folds = [] if splits.folds is None else splits.folds.tolist()
            text = repr((splits.every, splits.parts.tolist(), folds))
            found.append(hashlib.sha256(text.encode()).hexdigest()[:12])
        assert found == GOLDEN

    def test_frames_of_any_kind_are_divided_alike(self):
        columns = patients(300, 30)
        frame = pd.DataFrame(columns)
        indexed = frame.set_index("key")
        table = pa.table(columns)
        options = {"group_by": "patient_id", "stratify": "label", "where": "age > 30 AND patient_id LIKE 'P%'"}
        made = [split(data, THREE, seed=2, **options) for data in (columns, frame, indexed, table)]
        for other in made[1:]:
            assert (other.every, other.parts.tolist()) == (made[0].every, made[0].parts.tolist())
            assert other.labels == made[0].labels
        rows = made[1].rows("val")
        assert frame.iloc[rows]["key"].tolist() == made[1].keys("val")

    def test_missing_values_of_any_kind_are_missing(self):
        kinds = {
            "n": pd.array([1, None, 3], dtype="Int64"),
            "s": pd.array(["a", None, "b"], dtype="string"),
            "c": pd.Categorical(["x", None, "y"]),
            "t": pd.to_datetime(["2020-01-01", None, "2021-01-01"]),
            "x": [0.5, float("nan"), 1.5],
        }
        frame = pd.DataFrame(kinds)
        for data in (frame, pa.Table.from_pandas(frame), {name: list(values) for name, values in kinds.items()}):
            for name in kinds:
                splits = split(data, {"all": 1}, where=f"{name} IS NULL")
                assert len(splits) == 1, (type(data), name)
            assert len(split(data, {"all": 1}, where="t < '2020-06-01'")) == 1
            assert len(split(data, {"all": 1}, where="n >= 1 AND s = 'a' AND c = 'x'")) == 1


GOLDEN = ["7776fb016db8", "d8c989b61959", "8951a786200b"]


class TestBalance:
    def test_uniform(self):
        frame = patients()
        splits = split(frame, THREE, stratify="label", balance="uniform")
        for part in splits.facts["counts"]["splits"].values():
            assert len(set(part["classes"].values())) == 1
            assert part["rows"] > 0

    def test_weights_by_class(self):
        frame = {"label": ["cat"] * 300 + ["dog"] * 100}
        splits = split(frame, {"train": 0.5, "test": 0.5}, stratify="label", balance={"cat": 1, "dog": 2})
        for part in splits.facts["counts"]["splits"].values():
            assert part["classes"] == {"cat": 25, "dog": 50}
        none = split(frame, {"train": 1}, stratify="label", balance={"cat": 0, "dog": 1})
        assert none.facts["counts"]["splits"]["train"]["classes"] == {"cat": 0, "dog": 100}

    def test_only_of_some_parts(self):
        frame = {"label": [0] * 300 + [1] * 100}
        splits = split(frame, {"train": 0.5, "test": 0.5}, stratify="label", balance={"train": "uniform"})
        counts = splits.facts["counts"]["splits"]
        assert counts["train"]["classes"] == {"0": 50, "1": 50}
        assert counts["test"]["classes"] == {"0": 150, "1": 50}

    def test_groups_shrink_in_proportion(self):
        frame = {"label": [0] * 600 + [1] * 60, "patient_id": [f"P{row % 3}" for row in range(660)]}
        splits = split(frame, {"all": 1}, stratify="label", group_by="patient_id", balance="uniform")
        healthy = Counter(frame["patient_id"][row] for row in splits.rows("all") if frame["label"][row] == 0)
        assert sum(healthy.values()) == 60
        assert all(abs(number - 20) <= 1 for number in healthy.values())

    @pytest.mark.parametrize(
        ("balance", "complaint"),
        [
            ("even", "takes 'original', 'uniform' or a weight"),
            ({"bird": 1, "cat": 1, "dog": 1}, "no class 'bird'; there are cat, dog"),
            ({"cat": 1}, "class 'dog' has no weight"),
            ({"cat": -1, "dog": 1}, "a number from 0"),
            ({"cat": 0, "dog": 0}, "all weights are 0"),
            ({"valid": "uniform"}, "no split 'valid'; there are train"),
        ],
    )
    def test_mistakes(self, balance, complaint):
        with pytest.raises(SplitError, match=complaint):
            split({"label": ["cat", "dog"]}, {"train": 1}, stratify="label", balance=balance)


class TestFolds:
    def test_alone_they_divide_everything(self):
        frame = patients(1000)
        splits = split(frame, folds=5, stratify="label")
        for number in range(5):
            held, rest = splits.keys(f"fold{number}.val"), splits.keys(f"fold{number}.train")
            assert abs(len(held) - 200) <= 2
            assert sorted([*held, *rest]) == frame["key"]
        assert splits.names == ("all",)

    def test_with_fractions_they_divide_the_first_part(self):
        splits = split(patients(1000), {"train": 0.7, "test": 0.3}, folds=2)
        assert sorted([*splits.keys("fold0.val"), *splits.keys("fold0.train")]) == sorted(splits.keys("train"))
        assert sorted([*splits.keys("train+test")]) == sorted(splits.every)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "into what"),
        ({"fractions": {}}, "there are none"),
        ({"fractions": {"train": 8, "test": 2}}, "train=8 is no share of the whole"),
        ({"fractions": {"train": 0.8, "test": 0.3}}, "add up to 1.1"),
        ({"fractions": {"a b": 0.8}}, "cannot name a split"),
        ({"fractions": {"fold1": 0.8}}, "cannot name a split"),
        ({"folds": 1}, "two are the least"),
        ({"fractions": THREE, "group_by": "doctor"}, "no column 'doctor'; there are key, label, patient_id, age"),
        ({"fractions": THREE, "stratify": "doctor"}, "no column 'doctor'"),
        ({"fractions": THREE, "stratify": "key"}, "different values in 4000 rows"),
        ({"fractions": THREE, "balance": "uniform"}, "needs stratify"),
        ({"fractions": THREE, "where": "age > 1000"}, "no row is left"),
    ],
)
def test_mistakes_are_named(options, complaint):
    with pytest.raises(SplitError, match=complaint):
        split(patients(), **options)


def test_keys_must_be_keys():
    with pytest.raises(SplitError, match="'b' is there twice"):
        split({"key": ["a", "b", "b"]}, THREE)
    with pytest.raises(SplitError, match="no value in some rows"):
        split({"id": ["a", None]}, THREE)
    with pytest.raises(SplitError, match="a has 2, b has 1"):
        split({"a": [1, 2], "b": [1]}, THREE)
    with pytest.raises(SplitError, match="no rows to divide"):
        split({"a": []}, THREE)
    with pytest.raises(TypeError, match="not list"):
        split([1, 2], THREE)
    with pytest.raises(FilterError, match="no column 'x'"):
        split({"a": [1]}, THREE, where="x = 1")


def test_several_columns_are_stratified_together():
    frame = {"sex": ["f", "m"] * 200, "label": [0, 0, 1, 1] * 100}
    splits = split(frame, {"train": 0.5, "test": 0.5}, stratify=["sex", "label"])
    assert splits.facts["counts"]["splits"]["test"]["classes"] == {"f / 0": 50, "f / 1": 50, "m / 0": 50, "m / 1": 50}
