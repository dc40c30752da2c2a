import os

import pytest

from headrace import store
from headrace.core.errors import BadRow, MissingKey, StoreRefused, StoreUnavailable
from headrace.store import Kind, LabelKind, Record
from headrace.testing.stores import StoreConformance

CLASSES = ["Zebra", "ape", "élan"]


class TestFolder(StoreConformance):
    columns_kept = ("class",)

    @pytest.fixture(autouse=True)
    def given(self, tmp_path):
        self.records = []
        for number in range(9):
            name = CLASSES[number % 3]
            key = f"{name}/{'deep/' if number > 5 else ''}{number}.bin"
            path = tmp_path / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes([number]) * number)
            self.records.append(Record(key, path.read_bytes(), sorted(CLASSES).index(name), {"class": name}))
        (tmp_path / "labels.csv").write_text("not a sample")
        (tmp_path / ".cache").mkdir()
        (tmp_path / ".cache" / "x").write_text("not a sample")
        (tmp_path / "ape" / ".DS_Store").write_text("not a sample")
        self.store = store.open_store(f"file://{tmp_path}")


class TestFlat:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "a.JPG").write_bytes(b"a")
        (tmp_path / "b.txt").write_bytes(b"b")
        return tmp_path

    def test_without_folders_there_are_no_labels(self, folder):
        flat = store.open_store(f"file://{folder}")
        assert flat.keys() == ["a.JPG", "b.txt"]
        assert flat.get("a.JPG").label is None
        assert flat.info().labels is LabelKind.NONE
        assert flat.info().columns == {}

    def test_extensions_choose(self, folder):
        assert store.open_store(f"file://{folder}?extensions=jpg,.png").keys() == ["a.JPG"]

    def test_labels_can_be_refused(self, folder):
        (folder / "sub").mkdir()
        (folder / "sub" / "c").write_bytes(b"c")
        assert store.open_store(f"file://{folder}").keys() == ["sub/c"]
        flat = store.open_store(f"file://{folder}?labels=none")
        assert flat.keys() == ["a.JPG", "b.txt", "sub/c"]
        assert flat.get("sub/c").label is None

    def test_nothing_outside_the_folder_is_a_sample(self, folder):
        inner = folder / "inner"
        inner.mkdir()
        (inner / "x").write_bytes(b"x")
        opened = store.open_store(f"file://{inner}")
        for key in ("../a.JPG", str(folder / "a.JPG"), "", ".", "x/y", "\0"):
            with pytest.raises(MissingKey):
                opened.get(key)

    def test_what_is_no_file_is_called_so(self, folder):
        os.mkfifo(folder / "pipe")
        with pytest.raises(BadRow, match="'pipe' is a FIFO"):
            store.open_store(f"file://{folder}").get("pipe")

    def test_links_are_followed_but_not_in_circles(self, folder):
        (folder / "sub").mkdir()
        (folder / "sub" / "c").write_bytes(b"c")
        (folder / "sub" / "up").symlink_to(folder)
        (folder / "other").symlink_to(folder / "sub")
        keys = store.open_store(f"file://{folder}?labels=none").keys()
        assert {"sub/c", "other/c"} <= set(keys)
        assert len(keys) < 10

    def test_a_sample_has_one_key(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "x.bin").write_bytes(b"x")
        opened = store.open_store(f"file://{tmp_path}")
        assert opened.get("a/x.bin").payload == b"x"
        for other in ("a//x.bin", "./a/x.bin", "a/./x.bin", "a/x.bin/", ""):
            with pytest.raises(MissingKey):
                opened.get(other)

    def test_a_file_that_goes_while_it_is_listed_is_told(self, folder, monkeypatch):
        flat = store.open_store(f"file://{folder}")
        keys = flat.keys()
        (folder / "b.txt").unlink()
        monkeypatch.setattr(flat, "keys", lambda: keys)
        with pytest.raises(StoreUnavailable, match=r"'b\.txt' was there a moment ago"):
            flat.columns()

    def test_a_missing_folder_without_labels_is_refused(self, tmp_path):
        with pytest.raises(StoreRefused, match="cannot be listed"):
            store.open_store(f"file://{tmp_path}/none?labels=none").keys()

    def test_a_missing_folder_is_refused(self, tmp_path):
        with pytest.raises(StoreRefused, match="cannot be listed"):
            store.open_store(f"file://{tmp_path}/nowhere").keys()

    def test_class_is_text(self, tmp_path):
        (tmp_path / "one").mkdir()
        (tmp_path / "one" / "x").write_bytes(b"")
        assert store.open_store(f"file://{tmp_path}").info().columns == {"class": Kind.TEXT}
