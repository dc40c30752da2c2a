"""Every kind of source: what is read, what becomes of labels and metadata, what is refused."""

import io
import json
import os
import tarfile

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from headrace.core.errors import HeadraceError, IngestError, StoreError
from headrace.store import Kind, LabelKind, Record, Schema, open_store, open_writable
from headrace.store.ingest import Encoding, ReadOptions, Working, ingest
from headrace.store.ingest.sources.kinds import Guess, converted
from headrace.store.ingest.sources.labels import numbered
from tests.store.ingest.support import class_folders, contents, headrace, manifest, picture


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/out/store.db"


def info(url):
    store = open_store(url)
    try:
        return store.info()
    finally:
        store.close()


class TestFolders:
    def test_folders_are_classes(self, tmp_path, url):
        made = class_folders(tmp_path / "pictures")
        outcome = ingest(str(tmp_path / "pictures"), url)
        assert (outcome.written, outcome.present, outcome.failures) == (30, 0, ())
        rows = contents(url).values()
        assert {metadata["path"]: payload for payload, _, metadata in rows} == made
        assert {(metadata["class"], label) for _, label, metadata in rows} == {("cat", 0), ("dog", 1), ("owl", 2)}
        assert info(url).classes == {"cat": 10, "dog": 10, "owl": 10}

    def test_twice_is_once(self, tmp_path, url):
        class_folders(tmp_path / "pictures")
        ingest(str(tmp_path / "pictures"), url)
        before = contents(url)
        again = ingest(str(tmp_path / "pictures"), url)
        assert (again.written, again.present) == (0, 30)
        assert contents(url) == before

    def test_keys_do_not_depend_on_where_the_folder_is(self, tmp_path, url):
        for place in ("here", "there"):
            class_folders(tmp_path / place / "pictures")
        ingest(str(tmp_path / "here" / "pictures"), url)
        again = ingest(str(tmp_path / "there" / "pictures"), url)
        assert (again.written, again.present) == (0, 30)

    def test_new_content_is_a_new_sample(self, tmp_path, url):
        class_folders(tmp_path / "pictures")
        ingest(str(tmp_path / "pictures"), url)
        (tmp_path / "pictures" / "cat" / "000.png").write_bytes(picture(999))
        assert ingest(str(tmp_path / "pictures"), url).written == 1

    def test_without_folders_there_are_no_labels(self, tmp_path, url):
        (tmp_path / "flat").mkdir()
        (tmp_path / "flat" / "a.dat").write_bytes(b"1")
        (tmp_path / "flat" / "b.txt").write_bytes(b"2")
        ingest(str(tmp_path / "flat"), url, ReadOptions(extensions=("dat",)))
        [(payload, label, metadata)] = contents(url).values()
        assert (payload, label, metadata) == (b"1", None, {"path": "a.dat"})
        assert info(url).labels is LabelKind.NONE

    def test_names_may_have_any_characters(self, tmp_path, url):
        made = class_folders(tmp_path / "what? 100% #1 é", 4, ("a&b", "c d"))
        assert ingest(str(tmp_path / "what? 100% #1 é"), url, ReadOptions(extensions=("png",))).written == 4
        assert {metadata["path"] for _, _, metadata in contents(url).values()} == set(made)

    def test_paths_can_be_the_keys(self, tmp_path, url):
        made = class_folders(tmp_path / "pictures", 6)
        ingest(str(tmp_path / "pictures"), url, ReadOptions(key="path"))
        assert contents(url).keys() == made.keys()


class TestClasses:
    def test_other_folders_agree_about_the_numbers(self, tmp_path, url):
        class_folders(tmp_path / "one", 6, ("dog", "owl"))
        class_folders(tmp_path / "two", 6, ("ant", "owl"))
        ingest(str(tmp_path / "one"), url)
        ingest(str(tmp_path / "two"), url)
        pairs = {(metadata["class"], label) for _, label, metadata in contents(url).values()}
        assert pairs == {("dog", 0), ("owl", 1), ("ant", 2)}

    def test_an_order_can_be_given(self, tmp_path, url):
        class_folders(tmp_path / "one", 6, ("dog", "owl"))
        ingest(str(tmp_path / "one"), url, ReadOptions(classes=("owl", "cat", "dog")))
        assert {(metadata["class"], label) for _, label, metadata in contents(url).values()} == {("owl", 0), ("dog", 2)}

    def test_a_name_that_is_no_text_is_refused(self, tmp_path, url):
        path = tmp_path / os.fsdecode(b"cat\xff") / "a.png"
        path.parent.mkdir()
        path.write_bytes(picture(1))
        done = headrace("ingest", tmp_path, url, check=2)
        assert "has to be renamed" in done.stderr

    def test_an_interrupted_ingest_numbers_the_rest_as_before(self):
        every = numbered("abcdef", {"x": 3})
        for some in ("", "f", "bd", "aef", "abcdef"):
            assert numbered("abcdef", {"x": 3, **{name: every[name] for name in some}}) == every

    def test_contradictions_are_refused(self):
        with pytest.raises(IngestError, match="a is number 1 in the store, not 0"):
            numbered("ab", {"a": 1}, ("a", "b"))
        with pytest.raises(IngestError, match="c is not among those given"):
            numbered("abc", {}, ("a", "b"))
        with pytest.raises(IngestError, match="both have the number 1"):
            numbered("ab", {"z": 1}, ("a", "b"))


class TestManifests:
    ROWS = (
        {"path": "a.png", "label": "sick", "patient": "007", "age": "31", "dose": "0.5", "ok": "true", "note": ""},
        {"path": "b.png", "label": "well", "patient": "008", "age": "", "dose": "2", "ok": "FALSE", "note": "x, y"},
    )

    @pytest.fixture
    def folder(self, tmp_path):
        for number, name in enumerate(("a.png", "b.png")):
            (tmp_path / name).write_bytes(picture(number))
        return tmp_path

    @pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
    def test_columns_are_metadata(self, folder, url, kind):
        path = folder / f"all.{kind}"
        if kind == "parquet":
            rows = [
                {"path": "a.png", "label": "sick", "patient": "007", "age": 31, "dose": 0.5, "ok": True, "note": None},
                {
                    "path": "b.png",
                    "label": "well",
                    "patient": "008",
                    "age": None,
                    "dose": 2.0,
                    "ok": False,
                    "note": "x, y",
                },
            ]
            pa.parquet.write_table(pa.Table.from_pylist(rows), path)
        else:
            manifest(folder / "all.csv", list(self.ROWS))
            if kind == "tsv":
                lines = [[row[name] for name in self.ROWS[0]] for row in self.ROWS]
                path.write_text("\n".join("\t".join(line) for line in [list(self.ROWS[0]), *lines]))
        ingest(str(path), url)
        found = {metadata["path"]: (label, metadata) for _, label, metadata in contents(url).values()}
        assert found["a.png"] == (
            0,
            {"path": "a.png", "patient": "007", "age": 31, "dose": 0.5, "ok": True, "note": None, "class": "sick"},
        )
        assert found["b.png"][1]["note"] == "x, y"
        assert found["b.png"][1]["age"] is None
        kinds = info(url).columns
        assert (kinds["patient"], kinds["age"], kinds["dose"], kinds["ok"]) == (
            *(Kind.TEXT, Kind.INTEGER, Kind.NUMBER, Kind.TRUTH),
        )

    def test_a_column_that_is_no_text_can_be_left_out(self, folder, url):
        table = {"path": ["a.png", "b.png", "b.png"], "vector": [[1.0], [2.0], [3.0]], "age": [1, 2, 3]}
        pa.parquet.write_table(pa.table(table), folder / "m.parquet")
        with pytest.raises(IngestError, match="not list; choose columns"):
            ingest(str(folder / "m.parquet"), url)
        assert ingest(str(folder / "m.parquet"), url, ReadOptions(columns=("age",))).written == 3
        assert sorted(metadata["age"] for _, _, metadata in contents(url).values()) == [1, 2, 3]

    def test_integer_labels_stay_what_they_are(self, folder, url):
        path = manifest(folder / "m.csv", [{"path": "a.png", "grade": 7}, {"path": "b.png", "grade": -1}])
        ingest(str(path), url, ReadOptions(label="grade"))
        assert sorted(label for _, label, _ in contents(url).values()) == [-1, 7]

    def test_labels_can_be_files(self, folder, url):
        mask = picture(5, mode="L")
        (folder / "mask.png").write_bytes(mask)
        path = manifest(folder / "m.csv", [{"path": "a.png", "mask": "mask.png", "site": "x"}])
        ingest(str(path), url, ReadOptions(label_files="mask"))
        assert list(contents(url).values()) == [(picture(0), mask, {"path": "a.png", "site": "x"})]
        assert info(url).labels is LabelKind.BLOB

    def test_a_mask_is_resized_with_its_picture_and_invents_no_values(self, folder, url):
        values = (
            np.array([[0, 0, 7, 7], [0, 0, 7, 7], [200, 200, 9, 9], [200, 200, 9, 9]], np.uint8)
            .repeat(8, 0)
            .repeat(8, 1)
        )
        Image.fromarray(values).save(folder / "mask.png")
        (folder / "p.png").write_bytes(picture(1, (32, 32)))
        path = manifest(folder / "m.csv", [{"path": "p.png", "mask": "mask.png"}])
        ingest(str(path), url, ReadOptions(label_files="mask"), Encoding(resize=10, format="jpeg"))
        [(payload, label, _)] = contents(url).values()
        assert Image.open(io.BytesIO(payload)).size == (10, 10)
        shrunk = np.asarray(Image.open(io.BytesIO(label)))
        assert shrunk.shape == (10, 10)
        assert set(np.unique(shrunk)) == {0, 7, 9, 200}

    def test_keys_can_be_given(self, folder, url):
        path = manifest(folder / "m.csv", [{"path": "a.png", "key": "k1"}, {"path": "b.png", "key": "k2"}])
        ingest(str(path), url)
        assert sorted(contents(url)) == ["k1", "k2"]
        assert ingest(str(path), url, ReadOptions(key="key")).present == 2

    @pytest.mark.parametrize("name", ["filename", "file", "image"])
    def test_the_column_of_the_paths_is_found(self, folder, url, name):
        path = manifest(folder / "m.csv", [{"id": 1, name: "a.png", "label": 3}, {"id": 2, name: "b.png", "label": 4}])
        ingest(str(path), url)
        assert sorted((label, facts) for _, label, facts in contents(url).values()) == [
            (3, {"path": "a.png", "id": 1}),
            (4, {"path": "b.png", "id": 2}),
        ]

    def test_the_column_of_the_paths_can_be_said(self, folder, url):
        rows = [{"scan": "a.png", "file": "study 1"}, {"scan": "b.png", "file": "study 2"}]
        ingest(str(manifest(folder / "m.csv", rows)), url, ReadOptions(path_column="scan", key="scan"))
        assert {key: facts for key, (_, _, facts) in contents(url).items()} == {
            "a.png": {"path": "a.png", "file": "study 1"},
            "b.png": {"path": "b.png", "file": "study 2"},
        }

    def test_rows_of_one_file_are_apart_if_they_differ(self, folder, url):
        rows = [{"path": "a.png", "x": x} for x in (0, 1, 1, 2)]
        path = manifest(folder / "m.csv", rows)
        outcome = ingest(str(path), url)
        assert (outcome.written, outcome.present, outcome.tally.repeated) == (3, 0, 1)
        assert sorted(metadata["x"] for _, _, metadata in contents(url).values()) == [0, 1, 2]
        assert ingest(str(path), url).present == 4

    def test_changed_labels_are_written_when_asked_for(self, folder, url):
        path = manifest(folder / "m.csv", [{"path": "a.png", "label": 1}])
        ingest(str(path), url)
        manifest(folder / "m.csv", [{"path": "a.png", "label": 2}])
        again = ingest(str(path), url)
        assert (again.present, again.differing, again.whole) == (0, {"label": 1}, False)
        assert [label for _, label, _ in contents(url).values()] == [1]
        assert ingest(str(path), url, working=Working(rewrite=True)).written == 1
        assert [label for _, label, _ in contents(url).values()] == [2]

    def test_what_is_wrong_with_a_row_concerns_that_row(self, folder, url):
        rows = [
            {"path": "a.png", "label": "1", "age": "3"},
            {"path": "gone.png", "label": "1", "age": "3"},
            {"path": "", "label": "1", "age": "3"},
            {"path": "b.png", "label": "", "age": "3"},
            {"path": "b.png", "label": "1", "age": "x"},
        ]
        path = manifest(folder / "m.csv", rows)
        outcome = ingest(str(path), url, ReadOptions(types={"age": Kind.INTEGER}))
        assert outcome.written == 1
        told = dict(outcome.failures)
        assert "No such file or directory" in told["gone.png"]
        assert told["row 3"] == "it has no path"
        assert len(outcome.failures) == 4

    @pytest.mark.parametrize(
        ("rows", "reading", "complaint"),
        [
            ([{"scan": "a.png"}], ReadOptions(), r"which column has the paths .*\(it has scan\)\? --path-column"),
            ([{"file": "a", "image": "b"}], ReadOptions(), r"which column has .* \(file or image\)\? --path-column"),
            ([{"scan": "a.png"}], ReadOptions(path_column="scn"), "no column 'scn'; it has scan"),
            ([{"scan": "a", "path": "b"}], ReadOptions(path_column="scan"), "stored as 'path': rename that column"),
            ([{"path": "a.png"}], ReadOptions(label="grade"), "no column 'grade'; it has path"),
            ([{"path": "a.png"}], ReadOptions(columns=("age",)), "no column 'age'"),
            ([{"path": "a.png", "bytes": "1"}], ReadOptions(), "cannot be called 'bytes'"),
            ([{"path": "a.png"}], ReadOptions(payload="x"), "payload is not for manifests"),
            ([{"path": "a.png", "label": "1"}], ReadOptions(classes=("a",)), "1 is not among those given"),
            ([{"path": "a.png"}], ReadOptions(classes=("a",)), "labels of this source are not given by name"),
        ],
    )
    def test_what_is_wrong_with_all_of_it_is_raised(self, folder, url, rows, reading, complaint):
        with pytest.raises(HeadraceError, match=complaint):
            ingest(str(manifest(folder / "m.csv", rows)), url, reading)

    @pytest.mark.parametrize(
        ("first_line", "complaint"),
        [
            ("path,age,age", "two columns are called 'age'"),
            ("path, label,age", "called ' label', with blanks around it"),
        ],
    )
    def test_names_that_would_be_taken_for_others_are_refused(self, folder, url, first_line, complaint):
        (folder / "m.csv").write_text(f"{first_line}\na.png,1,2\n")
        with pytest.raises(IngestError, match=complaint):
            ingest(str(folder / "m.csv"), url)
        table = pa.table([["a.png"], [1], [2]], names=first_line.split(","))
        pa.parquet.write_table(table, folder / "m.parquet")
        with pytest.raises(IngestError, match=complaint):
            ingest(str(folder / "m.parquet"), url)

    def test_a_column_that_contradicts_the_label_is_not_written_over(self, folder, url):
        rows = [{"path": "a.png", "label": "cat", "class": "cat"}, {"path": "b.png", "label": "dog", "class": "poodle"}]
        outcome = ingest(str(manifest(folder / "m.csv", rows)), url)
        assert outcome.written == 1
        assert outcome.failures == (
            ("b.png", "its label is 'dog', and its column 'class' says 'poodle': rename that column"),
        )

    def test_a_column_keeps_its_kind(self, folder, url):
        ingest(str(manifest(folder / "m.csv", [{"path": "a.png", "age": "3"}])), url)
        with pytest.raises(StoreError, match="column 'age' holds integer values"):
            ingest(str(manifest(folder / "m.csv", [{"path": "a.png", "age": "young"}])), url)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", ""], Kind.INTEGER),
        (["1", "2.5", "1e3"], Kind.NUMBER),
        (["true", "False"], Kind.TRUTH),
        (["007", "1"], Kind.TEXT),
        (["12345678901234567890"], Kind.TEXT),
        (["a", "1"], Kind.TEXT),
        (["", ""], Kind.TEXT),
        (["1", "true"], Kind.TEXT),
    ],
)
def test_kinds_are_guessed(texts, kind):
    guess = Guess()
    for text in texts:
        guess.see(text)
    assert guess.kind is kind
    for text in texts:
        converted(text, kind)


class TestTars:
    def shard(self, path, samples):
        with tarfile.open(path, "w") as tar:
            for name, content in samples:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return path

    def samples(self, numbers, label=lambda n: str(n % 3)):
        for n in numbers:
            yield f"photos/{n:04d}.png", picture(n)
            yield f"photos/{n:04d}.cls", label(n).encode()
            yield f"photos/{n:04d}.json", json.dumps({"age": n, "who": f"P{n}", "boxes": [1, 2]}).encode()

    def test_members_of_one_name_are_a_sample(self, tmp_path, url):
        self.shard(tmp_path / "s-00.tar", self.samples(range(5)))
        self.shard(tmp_path / "s-01.tar", self.samples(range(5, 8)))
        for source in (tmp_path, f"{tmp_path}/s-{{00..01}}.tar", f"{tmp_path}/s-*.tar"):
            outcome = ingest(str(source), url)
            assert (outcome.written + outcome.present, outcome.failures) == (8, ())
        rows = contents(url)
        assert len(rows) == 8
        for payload, label, metadata in rows.values():
            n = metadata["age"]
            assert (payload, label, metadata["who"]) == (picture(n), n % 3, f"P{n}")
            assert metadata["path"] == f"s-0{n // 5}.tar/photos/{n:04d}"
            assert set(metadata) == {"age", "who", "path"}

    def test_labels_by_name_and_captions(self, tmp_path, url):
        path = self.shard(
            tmp_path / "s.tar",
            [("a.raw", b"1"), ("a.cls", b"dog\n"), ("a.txt", b"a dog"), ("b.raw", b"2"), ("b.cls", b"cat")],
        )
        ingest(str(path), url)
        found = {
            payload: (label, metadata["class"], metadata["txt"]) for payload, label, metadata in contents(url).values()
        }
        assert found == {b"1": (1, "dog", "a dog"), b"2": (0, "cat", None)}

    @pytest.mark.parametrize(("cls", "kept"), [(b"1", "cat"), (b"dog", "dog")])
    def test_a_class_among_the_metadata_stays_where_labels_are_numbers(self, tmp_path, url, cls, kept):
        path = self.shard(tmp_path / "s.tar", [("a.raw", b"1"), ("a.cls", cls), ("a.json", b'{"class": "cat"}')])
        ingest(str(path), url)
        assert [metadata["class"] for _, _, metadata in contents(url).values()] == [kept]

    def test_masks_and_other_extensions(self, tmp_path, url):
        path = self.shard(tmp_path / "s.tar", [("a.left.raw", b"l"), ("a.right.raw", b"r"), ("a.seg.png", b"mask")])
        ingest(str(path), url, ReadOptions(payload="right.raw", label_files="seg.png"))
        assert [(payload, label) for payload, label, _ in contents(url).values()] == [(b"r", b"mask")]

    def test_a_shard_that_ends_too_early_gives_what_it_has(self, tmp_path, url):
        whole = self.shard(tmp_path / "s-0.tar", self.samples(range(6)))
        self.shard(tmp_path / "s-1.tar", self.samples(range(6, 9)))
        whole.write_bytes(whole.read_bytes()[:6000])
        outcome = ingest(str(tmp_path), url, working=Working(workers=0))
        assert outcome.written >= 4
        assert any(item.startswith("s-0.tar") for item, _ in outcome.failures)

    def test_what_is_wrong_with_a_sample_concerns_that_sample(self, tmp_path, url):
        path = self.shard(
            tmp_path / "s.tar",
            [("a.raw", b"1"), ("a.cls", b"0"), ("b.raw", b"2"), ("c.cls", b"1"), ("d.raw", b"4"), ("d.json", b"{")],
        )
        outcome = ingest(str(path), url)
        assert outcome.written == 1
        told = dict(outcome.failures)
        assert told["s.tar/b"] == "it has no label: no member .cls"
        assert told["s.tar/c"] == "it has no member .*, only .cls"
        assert "s.tar/d" in told

    def test_metadata_that_are_nested_without_end_concern_their_sample(self, tmp_path, url):
        deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
        path = self.shard(tmp_path / "s.tar", [("a.raw", b"1"), ("a.json", deep), ("b.raw", b"2"), ("b.json", b"{}")])
        outcome = ingest(str(path), url)
        assert outcome.written == 1
        assert outcome.failures == (("s.tar/a", "its metadata are nested too deeply"),)

    def test_of_two_members_with_one_name_none_is_chosen(self, tmp_path, url):
        path = self.shard(tmp_path / "s.tar", [("a.raw", b"1"), ("a.raw", b"2"), ("b.raw", b"2")])
        outcome = ingest(str(path), url)
        assert outcome.written == 1
        assert outcome.failures == (("s.tar/a", "it has two members .raw"),)

    def test_tars_beside_folders_are_not_taken_for_all(self, tmp_path, url):
        folder = tmp_path / "in"
        class_folders(folder, 3)
        self.shard(folder / "s.tar", self.samples(range(2)))
        with pytest.raises(IngestError, match=r"there are tars in it, and folders \(cat\)"):
            ingest(str(folder), url)
        assert ingest(f"{folder}/*.tar", url).written == 2
        assert ingest(f"file://{folder}", f"{url}2").written == 3

    def test_names_that_are_no_text_are_refused(self, tmp_path, url):
        path = self.shard(tmp_path / "s.tar", [("a.raw", b"1"), ("a.json", b'{"\\ud800": 1}')])
        with pytest.raises(StoreError, match="a metadata column needs a name, not"):
            ingest(str(path), url)

    def test_mistakes(self, tmp_path, url):
        with pytest.raises(IngestError, match=r"there is no file .*s-2\.tar"):
            ingest(f"{tmp_path}/s-{{2..3}}.tar", url)
        (tmp_path / "bad.tar").write_bytes(b"no tar" * 1000)
        with pytest.raises(IngestError, match="there is no sample in it"):
            ingest(f"{tmp_path}/bad.tar", url)


class TestDatasets:
    def test_torchvision_by_name(self, url):
        source = "torchvision:FakeData?size=6&image_size=4&num_classes=3"
        with pytest.raises(IngestError, match="TypeError"):
            ingest(source, url)  # its image_size is a tuple, which no text is
        outcome = ingest("torchvision:FakeData?size=6&num_classes=3", url)
        assert (outcome.written, outcome.failures) == (6, ())
        assert ingest("torchvision:FakeData?size=6&num_classes=3", url).present == 6
        for payload, label, metadata in contents(url).values():
            assert Image.open(io.BytesIO(payload)).size == (224, 224)
            assert label in range(3)
            assert metadata["index"] in range(6)

    def test_a_function_of_the_user_s(self, url):
        ingest("tests.store.ingest.made:arrays?count=5", url)
        for payload, label, metadata in contents(url).values():
            array = np.load(io.BytesIO(payload), allow_pickle=False)
            assert array.tolist() == [metadata["index"]] * 3
            assert metadata["class"] == ["even", "odd"][label]

    def test_a_label_that_is_no_class_is_not_taken_for_one(self, url):
        ingest("tests.store.ingest.made:unlabelled", url)
        assert sorted((label, metadata["class"]) for _, label, metadata in contents(url).values()) == [
            (-1, None), (0, "even"), (7, None),
        ]  # fmt: skip

    def test_labels_that_are_arrays(self, url):
        ingest("tests.store.ingest.made:several", url)
        for _, label, metadata in contents(url).values():
            assert np.load(io.BytesIO(label), allow_pickle=False).tolist() == [metadata["index"], 1]

    def test_a_sample_that_fails_is_one_failure(self, url):
        outcome = ingest("tests.store.ingest.made:broken", url)
        assert outcome.written == 3
        assert outcome.failures == (("tests.store.ingest.made:broken:2", "KeyError: 'two'"),)

    @pytest.mark.parametrize(
        ("source", "complaint"),
        [
            ("torchvision:Nothing", "no 'Nothing' in torchvision.datasets"),
            ("no_such_module:x", "no module 'no_such_module'"),
            ("tests.store.ingest.made:arrays?count=0", "the dataset is empty"),
            ("tests.store.ingest.made:arrays?wrong=1", "TypeError"),
        ],
    )
    def test_mistakes(self, url, source, complaint):
        with pytest.raises(IngestError, match=complaint):
            ingest(source, url)


class TestHuggingFace:
    @pytest.fixture
    def saved(self, tmp_path, request):
        features = datasets.Features(
            {
                "image": datasets.Image(),
                "label": datasets.ClassLabel(names=["cat", "dog"]),
                "age": datasets.Value("int64"),
                "who": datasets.Value("string"),
            }
        )
        rows = [
            {"image": {"bytes": picture(n), "path": None}, "label": n % 2, "age": n, "who": f"P{n}"} for n in range(6)
        ]
        rows[5]["label"] = getattr(request, "param", 1)
        table = pa.Table.from_pylist(rows, schema=features.arrow_schema)
        # Made by hand: on Python 3.13 the library cannot name what it makes of a list, for want of a pickle.
        return datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint="f00d"), tmp_path

    @pytest.mark.parametrize("form", ["folder", "splits", "arrow", "parquet"])
    def test_all_forms_on_disk(self, saved, url, form):
        dataset, folder = saved
        where = folder / "saved"
        if form == "splits":
            datasets.DatasetDict({"train": dataset.select([0, 1, 2]), "test": dataset.select([3, 4, 5])}).save_to_disk(
                where
            )
        else:
            dataset.save_to_disk(where)
        source = str(where)
        if form == "arrow":
            [arrow] = where.glob("*.arrow")
            source = str(arrow)
        elif form == "parquet":
            dataset.to_parquet(folder / "all.parquet")
            source = f"hf:{folder}/all.parquet"
        outcome = ingest(source, url)
        assert (outcome.written, outcome.failures) == (6, ())
        for payload, label, metadata in contents(url).values():
            assert payload == picture(metadata["age"])
            assert (label, metadata["class"]) == (metadata["age"] % 2, ["cat", "dog"][metadata["age"] % 2])
            assert metadata.get("split", "test" if metadata["age"] > 2 else "train") == (
                "test" if metadata["age"] > 2 else "train"
            )

    @pytest.mark.parametrize("saved", [-2, 2], indirect=True)
    def test_a_label_that_is_no_class_is_a_failure(self, saved, url):
        dataset, folder = saved
        dataset.save_to_disk(folder / "saved")
        outcome = ingest(str(folder / "saved"), url)
        assert outcome.written == 5
        [(_, error)] = outcome.failures
        assert "and there are 2 classes" in error

    def test_a_row_without_a_key_is_a_failure(self, saved, url):
        dataset, folder = saved
        who = pa.array([None, "P1", "", *(f"P{n}" for n in range(3, 6))], pa.string())
        table = dataset.data.table.set_column(3, dataset.data.schema.field("who"), who)
        datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint="cafe").save_to_disk(folder / "saved")
        outcome = ingest(str(folder / "saved"), url, ReadOptions(key="who"))
        assert outcome.failures == ((":0", "it has no who"), (":2", "it has no who"))
        assert sorted(contents(url)) == ["P1", "P3", "P4", "P5"]

    def test_columns_can_be_chosen(self, saved, url):
        dataset, folder = saved
        dataset.save_to_disk(folder / "saved")
        ingest(str(folder / "saved"), url, ReadOptions(label="age", columns=("who",), key="who"))
        rows = contents(url)
        assert sorted(rows) == [f"P{n}" for n in range(6)]
        assert rows["P3"][1:] == (3, {"who": "P3"})
        with pytest.raises(IngestError, match="no column 'nobody'; it has image, label, age, who"):
            ingest(str(folder / "saved"), url, ReadOptions(label="nobody"))


class TestPictures:
    def test_resize_and_encode(self, tmp_path, url):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "wide.png").write_bytes(picture(1, (60, 30)))
        (tmp_path / "in" / "high.png").write_bytes(picture(1, (30, 60)))
        ingest(str(tmp_path / "in"), url, encoding=Encoding(resize=15, format="jpeg", quality=50))
        found = {metadata["path"]: Image.open(io.BytesIO(payload)) for payload, _, metadata in contents(url).values()}
        assert {name: (image.format, image.size) for name, image in found.items()} == {
            "wide.png": ("JPEG", (30, 15)),
            "high.png": ("JPEG", (15, 30)),
        }

    def test_another_encoding_is_another_sample(self, tmp_path, url):
        class_folders(tmp_path / "in", 3)
        assert ingest(str(tmp_path / "in"), url).written == 3
        assert ingest(str(tmp_path / "in"), url, encoding=Encoding(resize=(8, 8))).written == 3

    def test_a_camera_s_upright_is_kept(self, tmp_path, url):
        (tmp_path / "in").mkdir()
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (40, 20)).save(tmp_path / "in" / "turned.jpg", exif=exif)
        ingest(str(tmp_path / "in"), url, encoding=Encoding(format="png"))
        [(payload, _, _)] = contents(url).values()
        assert Image.open(io.BytesIO(payload)).size == (20, 40)

    def test_what_cannot_be_stored_so_is_told(self, tmp_path, url):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "text.png").write_bytes(b"hello")
        Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "in" / "deep.png")
        outcome = ingest(str(tmp_path / "in"), url, encoding=Encoding(format="jpeg"))
        told = dict(outcome.failures)
        assert told["in/text.png"] == "it is called .png and is no picture: it begins with b'hello'"
        assert "encode it as png or tiff" in told["in/deep.png"]

    @pytest.mark.parametrize(
        "options", [{"resize": 0}, {"resize": (4, 0)}, {"format": "gif87"}, {"quality": 0}, {"quality": 101}]
    )
    def test_impossible_encodings(self, options):
        with pytest.raises(IngestError):
            Encoding(**options)


def test_a_column_of_a_store_can_name_its_samples(tmp_path, url):
    records = [Record(key, key.encode(), None, {"number": number}) for key, number in (("a", 0), ("b", 1), ("c", None))]
    store = open_writable(url)
    store.create(Schema(LabelKind.NONE, {"number": Kind.INTEGER, "age": Kind.INTEGER}))
    with store.writer() as writer:
        writer.put(records)
    for columns in (None, ("age",)):
        copy = f"sqlite:///{tmp_path}/{columns}.db"
        outcome = ingest(url, copy, ReadOptions(key="number", columns=columns))
        assert outcome.failures == (("c", "it has no number"),)
        assert {key: payload for key, (payload, _, _) in contents(copy).items()} == {"0": b"a", "1": b"b"}


def test_a_store_can_be_copied(tmp_path, url):
    class_folders(tmp_path / "in", 9)
    ingest(str(tmp_path / "in"), url)
    other = f"sqlite:///{tmp_path}/copy.db"
    ingest(url, other)
    assert contents(other) == contents(url)


def test_tensors_are_no_pickles(url):
    ingest("tests.store.ingest.made:tensors", url)
    [(payload, _, _)] = contents(url).values()
    assert torch.equal(torch.from_numpy(np.load(io.BytesIO(payload), allow_pickle=False)), torch.arange(4.0))


def test_outcomes_are_json(tmp_path, url):
    class_folders(tmp_path / "in", 3)
    data = json.loads(json.dumps(ingest(str(tmp_path / "in"), url).data()))
    assert (data["samples"], data["written"], data["failed"]) == (3, 3, [])
