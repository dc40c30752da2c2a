"""Divisions of data that change: few samples move by themselves, none where an earlier division is kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import SplitError
from headrace.store.splits.assignment import split
from headrace.store.splits.earlier import changes
from headrace.store.splits.split_file import read
from tests.selection import examples

THREE = {"train": 0.8, "val": 0.1, "test": 0.1}


def scans(groups=60, each=8, skip=(), changed=()):
    """Scans of patients, named by their paths; those in ``changed`` have another key, as if made of their content."""
    rows = [row for row in range(groups * each) if row not in set(skip)]
    return {
        "key": [f"P{row // each:03}/{row:05}{'-new' if row in changed else ''}.png" for row in rows],
        "patient": [f"P{row // each:03}" for row in rows],
        "label": ["sick" if row // each % 4 == 0 else "well" for row in rows],
    }


def sides(splits):
    return {key: splits.names[part] for key, part in zip(splits.every, splits.parts.tolist(), strict=True)}


class TestOfItself:
    """The same command, on data that have changed a little."""

    @settings(max_examples=examples(40))
    @given(st.integers(5, 80), st.integers(1, 9), st.integers(0, 10**6), st.integers(0, 9))
    def test_a_group_less_moves_one_other_at_most_at_each_boundary(self, groups, each, choice, seed):
        whole = split(scans(groups, each), THREE, group_by="patient", seed=seed, allow_empty=True)
        gone = choice % groups
        less = scans(groups, each, skip=range(gone * each, (gone + 1) * each))
        found = changes(whole, split(less, THREE, group_by="patient", seed=seed, allow_empty=True))
        assert sum(found.moved.values()) <= 2 * each
        assert ("train", "test") not in found.moved
        assert ("test", "train") not in found.moved

    @settings(max_examples=examples(40))
    @given(st.integers(10, 400), st.lists(st.integers(0, 399), min_size=1, max_size=5, unique=True), st.integers(0, 9))
    def test_a_row_less_moves_one_other_at_most_at_each_boundary(self, rows, skip, seed):
        options = {"seed": seed, "allow_empty": True}
        less = scans(rows, 1, skip)
        if not less["key"]:
            return
        found = changes(split(scans(rows, 1), THREE, **options), split(less, THREE, **options))
        assert sum(found.moved.values()) <= 2 * len(found.went)

    def test_a_changed_and_a_deleted_file_of_500(self):
        """The case of a user: 222 of 498 samples changed sides, 56 of them from test to train."""
        before, now = scans(100, 5), scans(100, 5, skip=[7], changed=[321])
        for options in (
            {},
            {"group_by": "patient"},
            {"stratify": "label"},
            {"group_by": "patient", "stratify": "label"},
        ):
            found = changes(split(before, THREE, seed=7, **options), split(now, THREE, seed=7, **options))
            assert (found.both, found.new, len(found.went)) == (498, 1, 2)
            assert sum(found.moved.values()) <= 10, options
            assert not {("train", "test"), ("test", "train")} & set(found.moved)

    @pytest.mark.parametrize("stratify", [None, "label"])
    def test_a_patient_who_withdraws(self, stratify):
        """The case of another: 171 of 492 samples changed sides when one of some 60 patients went."""
        whole = split(scans(), THREE, group_by="patient", stratify=stratify, seed=7)
        for gone in range(60):
            less = scans(skip=range(gone * 8, gone * 8 + 8))
            found = changes(whole, split(less, THREE, group_by="patient", stratify=stratify, seed=7))
            assert sum(found.moved.values()) <= 4 * 8

    def test_many_small_groups_mostly_stay_where_classes_are_mixed(self):
        random = np.random.default_rng(3)
        frame = {"key": np.arange(9000), "label": random.integers(0, 10, 9000), "who": random.integers(0, 2000, 9000)}
        whole = split(frame, THREE, group_by="who", stratify="label")
        rest = frame["who"] != 77
        less = split({name: values[rest] for name, values in frame.items()}, THREE, group_by="who", stratify="label")
        assert sum(changes(whole, less).moved.values()) < 0.12 * len(less)


class TestKept:
    @settings(max_examples=examples(40))
    @given(
        st.sampled_from([None, "patient"]),
        st.sampled_from([None, "label"]),
        st.sampled_from([None, 3]),
        st.sets(st.integers(0, 239), max_size=120),
        st.integers(0, 9),
    )
    def test_every_row_that_is_still_there_stays_and_new_ones_go_with_their_group(
        self, group, stratify, folds, skip, n
    ):
        every = scans(40, 6)
        early = {
            name: [value for row, value in enumerate(values) if row % 240 not in skip] for name, values in every.items()
        }
        if len(early["key"]) < 60:
            return
        before = split(early, THREE, group_by=group, stratify=stratify, folds=folds, seed=n, allow_empty=True)
        later = scans(46, 6, skip=range(0, 240, 17))
        now = split(later, keep=before, allow_empty=True)
        was, found = sides(before), sides(now)
        assert {key: found[key] for key in was if key in found} == {key: was[key] for key in was if key in found}
        assert set(now.facts["kept"]["went"]) == set(was) - set(found)
        assert (now.facts["kept"]["kept"], now.facts["kept"]["new"]) == (
            len(set(was) & set(found)),
            len(set(found) - set(was)),
        )
        assert sorted(found) == sorted(later["key"])
        if folds is not None:
            held = dict(zip(before.every, before.folds.tolist(), strict=True))
            assert all(held.get(key, fold) == fold for key, fold in zip(now.every, now.folds.tolist(), strict=True))
        if group is not None:
            for patient in set(later["patient"]):
                assert len({side for key, side in found.items() if key.startswith(patient)}) == 1

    def test_new_ones_go_where_they_are_needed(self):
        before = split(scans(100, 1), THREE, seed=7)
        lost = [int(key[:4].strip("P")) for key in before.keys("test")[:8]]
        now = split(scans(100, 1, skip=lost) | {}, keep=before)
        assert [len(now.keys(name)) for name in THREE] == [80, 10, 2]
        more = scans(120, 1, skip=lost)
        assert len(split(more, keep=before).keys("test")) >= 10

    def test_balance_leaves_out_new_ones_first(self):
        options = {"stratify": "label", "balance": "uniform", "seed": 7}
        before = split(scans(100, 1), {"train": 0.8, "test": 0.2}, **options)
        now = split(scans(140, 1), keep=before)
        was, found = sides(before), sides(now)
        assert {key: found[key] for key in was} == was
        counts = now.facts["counts"]["splits"]["train"]["classes"]
        assert counts["sick"] == counts["well"]

    def test_options_are_those_of_the_earlier_one_unless_they_are_given(self, tmp_path):
        made = split(scans(), THREE, group_by="patient", stratify="label", where="label != 'none'", folds=2, seed=5)
        made.save(tmp_path / "old.json")
        now = split(scans(70), keep=tmp_path / "old.json")
        for name in ("fractions", "group_by", "stratify", "where", "folds", "seed", "balance"):
            assert now.facts[name] == made.facts[name]
        assert split(scans(70), {"train": 0.7, "val": 0.1, "test": 0.1}, keep=made).facts["fractions"]["train"] == 0.7

    def test_mistakes_are_named(self, tmp_path):
        made = split(scans(), THREE, folds=3)
        with pytest.raises(SplitError, match="fractions do not name 'val'"):
            split(scans(), {"train": 0.8, "test": 0.2}, keep=made)
        with pytest.raises(SplitError, match="there are 3 folds, and 4 are asked for"):
            split(scans(), keep=made, folds=4)
        with pytest.raises(SplitError, match=r"the rows of the group 'P0.*' are on two sides"):
            split(scans(), keep=made, group_by="patient")
        with pytest.raises(SplitError, match="none of the 480 samples of the earlier split is among the rows"):
            split({"key": ["a", "b"]}, keep=made)
        with pytest.raises(SplitError, match="no such file"):
            split(scans(), keep=tmp_path / "none.json")

    def test_a_file_that_says_nonsense_of_itself_is_refused(self):
        made = split(scans(), THREE)
        for name, value in [
            ("fractions", {"train": "x"}),
            ("group_by", 7),
            ("stratify", [1]),
            ("where", []),
            ("seed", "x"),
        ]:
            broken = type(made)(**{**vars(made), "facts": {**made.facts, name: value}})
            with pytest.raises(SplitError, match=f"does not say its {name}"):
                split(scans(), keep=broken)


def test_writing_over_another_says_what_would_change(tmp_path):
    path = tmp_path / "splits.json"
    made = split(scans(), THREE, group_by="patient", seed=7)
    made.save(path)
    other = split(scans(), THREE, group_by="patient", seed=8)
    with pytest.raises(SplitError, match=r"\d+ of 480 samples would change sides \(\d+ from .*--keep"):
        other.save(path)
    with pytest.raises(SplitError, match="0 of 480 samples would change sides, 0 would be new, 0 would go; --force"):
        made.save(path)
    with pytest.raises(SplitError, match="of other samples"):
        split({"key": ["a", "b"]}, {"train": 1}).save(path)
    assert sides(read(path)) == sides(made)
    path.write_text("something else")
    with pytest.raises(SplitError, match="is there already; --force"):
        made.save(path)
