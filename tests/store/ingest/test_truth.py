"""What is stored is what the source has, or it is said: damaged pictures, doubled keys, changed labels, odd files."""

import io
import os
import random
import shutil
import socket
import tarfile

import numpy as np
import pytest
from PIL import Image

import headrace
from headrace.store import open_store
from headrace.store.contents import Damaged, check_structure, extension
from headrace.store.ingest import Encoding, Outcome, ReadOptions, Working, ingest, work
from headrace.store.ingest.comparing import Comparison
from headrace.store.ingest.outcome import IngestTally
from headrace.store.pictures import Check, checked
from tests.store.ingest.support import class_folders, contents, manifest, picture


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


def encoded(kind, **options):
    pixels = np.random.default_rng(1).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def whole(content):
    try:
        Image.open(io.BytesIO(content)).load()
    except Exception:  # noqa: BLE001  (whatever Pillow says)
        return False
    return True


KINDS = {
    "jpg": ("JPEG", {}),
    "progressive.jpg": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "gif": ("GIF", {}),
    "bmp": ("BMP", {}),
    "webp": ("WEBP", {}),
    "tif": ("TIFF", {}),
    "deflated.tif": ("TIFF", {"compression": "tiff_deflate"}),
}


class TestPictures:
    @pytest.mark.parametrize("name", KINDS)
    def test_a_picture_cut_off_anywhere_is_found(self, name):
        kind, options = KINDS[name]
        content = encoded(kind, **options)
        assert extension(content) == name.rpartition(".")[2]
        check_structure(content)
        draw = random.Random(3)
        for length in sorted({*range(24), *(draw.randrange(len(content)) for _ in range(60))}):
            part = content[:length]
            if not whole(part):
                with pytest.raises(Damaged):
                    checked(part, f"x.{name}", Check.STRUCTURE)

    @pytest.mark.parametrize("name", KINDS)
    def test_what_pillow_reads_is_never_refused(self, name):
        kind, options = KINDS[name]
        content = encoded(kind, **options)
        draw = random.Random(5)
        for _ in range(60):
            changed = bytearray(content + b"behind it" * draw.randrange(2))
            changed[draw.randrange(len(changed))] = draw.randrange(256)
            if whole(bytes(changed)) and extension(changed) == extension(content):
                checked(bytes(changed), f"x.{name}", Check.STRUCTURE)

    def test_only_a_full_check_finds_what_only_decoding_shows(self):
        content = bytearray(encoded("PNG"))
        at = content.index(b"IDAT") + 20
        content[at : at + 400] = bytes(400)
        assert not whole(bytes(content))
        checked(bytes(content), "a.png", Check.STRUCTURE)
        with pytest.raises(Damaged, match="a damaged picture"):
            checked(bytes(content), "a.png", Check.FULL)
        checked(bytes(content[:50]), "a.png", Check.NONE)

    def test_arrays_are_checked_in_little_memory(self):
        out = io.BytesIO()
        np.save(out, np.zeros(100))
        checked(out.getvalue(), "a.npy", Check.STRUCTURE)
        huge = out.getvalue().replace(b"(100,)", b"(9999999999999,)"[:6].ljust(6)[:6])
        for content in (out.getvalue()[:-1], huge[:200], b"\x93NUMPY", b"", b"text"):
            with pytest.raises(Damaged):
                checked(content, "a.npy", Check.STRUCTURE)
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999,), }".ljust(117) + b"\n"
        with pytest.raises(Damaged, match="ends too early"):
            checked(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header, "a.npy", Check.STRUCTURE)

    def test_other_files_may_be_anything(self):
        for name in ("a.txt", "a.wav", "noextension"):
            checked(b"BMW makes cars", name, Check.STRUCTURE)
        checked(b"\xff\xd8\xff\xe0 torn", "a.bin", Check.STRUCTURE)
        with pytest.raises(Damaged):
            checked(b"\xff\xd8\xff\xe0 torn", "noextension", Check.STRUCTURE)

    def test_what_is_no_picture_is_a_failure_by_name(self, tmp_path, url):
        class_folders(tmp_path / "in", 6)
        bad = {"torn.jpg": encoded("JPEG")[:900], "empty.png": b"", "text.jpg": b"hello"}
        for name, content in bad.items():
            (tmp_path / "in" / "cat" / name).write_bytes(content)
        outcome = ingest(str(tmp_path / "in"), url)
        assert outcome.written == 6
        told = dict(outcome.failures)
        assert set(told) == {f"in/cat/{name}" for name in bad}
        assert "ends too early" in told["in/cat/torn.jpg"]
        assert told["in/cat/empty.png"] == "an empty file is no picture"
        assert "it is called .jpg and is no picture" in told["in/cat/text.jpg"]
        assert ingest(str(tmp_path / "in"), url, ReadOptions(check=Check.NONE)).written == 3

    def test_masks_are_checked_too(self, tmp_path, url):
        (tmp_path / "a.png").write_bytes(picture(1))
        (tmp_path / "mask.png").write_bytes(picture(2)[:100])
        source = manifest(tmp_path / "m.csv", [{"path": "a.png", "mask": "mask.png"}])
        [failure] = ingest(str(source), url, ReadOptions(label_files="mask")).failures
        assert "ends too early" in failure.error

    def test_what_systems_put_into_folders_is_left_out_and_said(self, tmp_path, url):
        class_folders(tmp_path / "in", 6)
        for name in ("Thumbs.db", "desktop.ini", ".DS_Store"):
            (tmp_path / "in" / "cat" / name).write_bytes(b"x")
        os.mkfifo(tmp_path / "in" / "cat" / "pipe.png")
        outcome = ingest(str(tmp_path / "in"), url)
        assert (outcome.written, outcome.failures) == (6, ())
        assert set(outcome.left_out) == {f"cat/{n}" for n in ("Thumbs.db", "desktop.ini", ".DS_Store", "pipe.png")}
        assert any("4 files are no samples" in concern for concern in outcome.concerns())

    def test_strangers_among_pictures_are_said(self, tmp_path, url):
        class_folders(tmp_path / "in", 6)
        (tmp_path / "in" / "cat" / "notes.txt").write_bytes(b"remember")
        [concern] = ingest(str(tmp_path / "in"), url).concerns()
        assert "1 are neither pictures nor arrays, as the others are pictures (in/cat/notes.txt)" in concern


class TestDoubledKeys:
    def rows(self, tmp_path, second="b.png", **more):
        for number, name in enumerate(("a.png", "b.png")):
            (tmp_path / name).write_bytes(picture(number))
        shutil.copy(tmp_path / "a.png", tmp_path / "same.png")
        others = [{"path": "a.png", "key": f"o{n}", "label": 1} for n in range(100)]
        return [{"path": "a.png", "key": "k", "label": 1}, *others, {"path": second, "key": "k", "label": 1} | more]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_with_other_content_are_a_failure_that_names_both(self, tmp_path, url, workers):
        path = manifest(tmp_path / "m.csv", self.rows(tmp_path))
        outcome = ingest(str(path), url, working=Working(workers=workers))
        assert outcome.written == 101
        [(item, error)] = outcome.failures
        assert item == "b.png"
        assert "a.png and b.png have the key 'k' and differ in path and content" in error
        assert contents(url)["k"][0] == picture(0)

    def test_with_another_label_too(self, tmp_path, url):
        path = manifest(tmp_path / "m.csv", self.rows(tmp_path, "a.png", label=2))
        [(_, error)] = ingest(str(path), url).failures
        assert "a.png, twice in the source, have the key 'k' and differ in label" in error

    def test_the_last_one_counts_if_asked_for(self, tmp_path, url):
        path = manifest(tmp_path / "m.csv", self.rows(tmp_path))
        for workers in (0, 2):
            outcome = ingest(str(path), url, working=Working(rewrite=True, workers=workers))
            assert outcome.failures == ()
            assert contents(url)["k"][0] == picture(1)
            assert len(contents(url)) == 101
            assert (outcome.tally.repeated, outcome.tally.replaced) == (0, 1)
            assert "1 have the key of a later one" in "".join(outcome.concerns())

    def test_the_same_twice_is_stored_once_and_said(self, tmp_path, url):
        path = manifest(tmp_path / "m.csv", self.rows(tmp_path, "a.png"))
        outcome = ingest(str(path), url)
        assert (outcome.written, outcome.tally.repeated, outcome.failures) == (101, 1, ())
        assert any("1 are there twice in the source" in concern for concern in outcome.concerns())

    def test_one_place_of_a_tar_with_two_labels(self, tmp_path, url):
        with tarfile.open(tmp_path / "s.tar", "w") as tar:
            for name, content in (("a.bin", b"1"), ("a.cls", b"0"), ("b.bin", b"2"), ("b.cls", b"1"), ("a.bin", b"1"),
                                  ("a.cls", b"1")):  # fmt: skip
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        outcome = ingest(str(tmp_path / "s.tar"), url)
        assert outcome.written == 2
        [(_, error)] = outcome.failures
        assert "s.tar/a, twice in the source, have the key" in error
        assert "differ in label" in error


class TestPaths:
    def test_outside_the_manifest_s_folder_only_if_allowed(self, tmp_path, url):
        inside = tmp_path / "in"
        inside.mkdir()
        for name in ("secret.png", "in/a.png"):
            (tmp_path / name).write_bytes(picture(len(name)))
        (inside / "link.png").symlink_to(tmp_path / "secret.png")
        (inside / "own.png").symlink_to(inside / "a.png")
        paths = ["../secret.png", str(tmp_path / "secret.png"), "link.png", str(inside / "a.png"), "own.png"]
        source = str(manifest(inside / "m.csv", [{"path": path} for path in paths]))
        outcome = ingest(source, url)
        assert outcome.written == 2
        assert {item for item, _ in outcome.failures} == set(paths[:3])
        assert all("--allow-outside" in error for _, error in outcome.failures)
        assert ingest(source, url, ReadOptions(allow_outside=True)).written == 3

    def test_root_is_the_folder_where_it_is_given(self, tmp_path, url):
        (tmp_path / "data").mkdir()
        (tmp_path / "lists").mkdir()
        (tmp_path / "data" / "a.png").write_bytes(picture(1))
        source = manifest(tmp_path / "lists" / "m.csv", [{"path": "a.png"}])
        assert ingest(str(source), url, ReadOptions(root=str(tmp_path / "data"))).written == 1

    def test_what_is_no_file_is_refused_and_not_waited_for(self, tmp_path, url):
        os.mkfifo(tmp_path / "pipe.png")
        (tmp_path / "folder.png").mkdir()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "s.png"))
            rows = [{"path": name} for name in ("pipe.png", "s.png", "/dev/zero", "folder.png", "a\0b.png")]
            outcome = ingest(str(manifest(tmp_path / "m.csv", rows)), url, ReadOptions(allow_outside=True))
        told = [error for _, error in outcome.failures]
        assert len(told) == 5
        for words, error in zip(("is a FIFO", "is a socket", "is a device", "Is a directory", ""), told, strict=True):
            assert words in error


class TestRepeating:
    def test_other_labels_are_said(self, tmp_path, url):
        for number in range(20):
            (tmp_path / f"{number}.png").write_bytes(picture(number))
        rows = [{"path": f"{number}.png", "label": "ab"[number % 2], "age": number} for number in range(20)]
        path = manifest(tmp_path / "m.csv", rows)
        ingest(str(path), url)
        for row in rows[:7]:
            row["label"] = "b"
        rows[19]["age"] = 99
        manifest(path, rows)
        again = ingest(str(path), url)
        assert (again.written, again.present, again.differing) == (0, 15, {"label": 4, "age": 1})
        assert any("4 differ in label from what is stored, and were left: --rewrite" in c for c in again.concerns())
        assert ingest(str(path), url, working=Working(rewrite=True)).whole
        assert ingest(str(path), url).present == 20

    def test_another_size_is_said(self, tmp_path, url):
        class_folders(tmp_path / "in", 6)
        ingest(str(tmp_path / "in"), url, encoding=Encoding(resize=16))
        again = ingest(str(tmp_path / "in"), url, encoding=Encoding(resize=8))
        assert again.written == 6
        assert any("6 are stored twice under other keys: they were there with another --resize" in c
                   for c in again.concerns())  # fmt: skip

    def test_a_replaced_file_is_said(self, tmp_path, url):
        class_folders(tmp_path / "in", 6)
        ingest(str(tmp_path / "in"), url)
        (tmp_path / "in" / "cat" / "000.png").write_bytes(picture(77))
        [concern] = ingest(str(tmp_path / "in"), url).concerns()
        assert "1 are stored twice under other keys: their files were replaced since" in concern
        for _ in range(2):  # whoever ingests later hears of it, too
            [concern] = ingest(str(tmp_path / "in"), url).concerns()
            assert "1 rows in the store are superseded" in concern
            assert "headrace store prune" in concern

    def test_a_replaced_file_under_a_key_of_its_own_is_said(self, tmp_path, url):
        class_folders(tmp_path / "in", 6)
        ingest(str(tmp_path / "in"), url, ReadOptions(key="path"))
        (tmp_path / "in" / "cat" / "000.png").write_bytes(picture(77))
        again = ingest(str(tmp_path / "in"), url, ReadOptions(key="path"))
        assert (again.differing, again.present) == ({"content": 1}, 5)
        again = ingest(str(tmp_path / "in"), url, ReadOptions(key="path"), Encoding(resize=8))
        assert again.differing == {"content": 1, "encoding": 5}

    def test_absolute_for_relative_paths_are_said(self, tmp_path, url):
        for number in range(6):
            (tmp_path / f"{number}.png").write_bytes(picture(number))
        for prefix, written in (("", 6), (f"{tmp_path}/", 6)):
            rows = [{"path": f"{prefix}{number}.png"} for number in range(6)]
            outcome = ingest(str(manifest(tmp_path / "m.csv", rows)), url)
            assert outcome.written == written
        [concern] = outcome.concerns()
        assert "6 are stored twice under other keys: an earlier ingest stored the same content from another" in concern

    def test_rows_of_an_older_release_are_compared_as_far_as_they_can_be(self, tmp_path, url):
        class_folders(tmp_path / "in", 6)
        ingest(str(tmp_path / "in"), url, ReadOptions(key="path"))
        store = open_store(url)
        with store.writer() as writer:
            writer._connection.execute("DELETE FROM origins")
        assert ingest(str(tmp_path / "in"), url, ReadOptions(key="path")).present == 6
        (tmp_path / "in" / "cat" / "000.png").write_bytes(picture(77, (30, 30)))
        assert ingest(str(tmp_path / "in"), url, ReadOptions(key="path")).differing == {"content": 1}

    def test_a_store_that_tells_only_keys_is_said(self):
        class Keys:
            def present(self, keys):
                return set(keys)

            def put(self, records):
                """Nothing."""

        tally = IngestTally()
        comparison = Comparison(Keys(), "run", tally, again=False)
        comparison.look(["k"])
        assert comparison.met("k", 1, 3, {}, None)
        outcome = Outcome("source", "store", tally, (), 0, settled=True, seconds=1.0)
        assert (outcome.present, outcome.whole) == (1, True)
        assert any("1 were there by their keys" in concern for concern in outcome.concerns())


class TestClassNames:
    def test_a_class_whose_rows_all_fail_keeps_its_number_and_name(self, tmp_path, url):
        class_folders(tmp_path / "in", 6, ("a", "b", "c"))
        for path in (tmp_path / "in" / "b").iterdir():
            path.write_bytes(b"no picture")
        outcome = ingest(str(tmp_path / "in"), url)
        assert (outcome.written, len(outcome.failures)) == (4, 2)
        with headrace.StoreDataset(url) as dataset:
            assert dataset.classes == ["a", "b", "c"]
        class_folders(tmp_path / "more", 6, ("a", "aa"))
        ingest(str(tmp_path / "more"), url)
        class_folders(tmp_path / "in", 6, ("a", "b", "c"))
        ingest(str(tmp_path / "in"), url)
        with headrace.StoreDataset(url) as dataset:
            assert dataset.classes == ["a", "b", "c", "aa"]
            assert {(m["class"], label) for _, label, m in contents(url).values()} == {
                ("a", 0), ("b", 1), ("c", 2), ("aa", 3)
            }  # fmt: skip

    def test_no_name_is_not_the_text_none(self, tmp_path, url):
        for number in range(3):
            (tmp_path / f"{number}.png").write_bytes(picture(number))
        rows = [{"path": f"{n}.png", "label": n, "class": name} for n, name in enumerate(("x", "", "z"))]
        ingest(str(manifest(tmp_path / "m.csv", rows)), url)
        with headrace.StoreDataset(url) as dataset:
            assert dataset.classes == ["x", "(1)", "z"]
        other = f"sqlite:///{tmp_path}/copy.db"
        assert ingest(url, other).whole
        assert contents(other) == contents(url)

    def test_a_copy_keeps_the_numbers(self, tmp_path, url):
        class_folders(tmp_path / "in", 6, ("a", "b", "c"))
        ingest(str(tmp_path / "in"), url, ReadOptions(classes=("c", "unused", "a", "b")))
        other = f"sqlite:///{tmp_path}/copy.db"
        ingest(url, other)
        assert contents(other) == contents(url)
        with headrace.StoreDataset(other) as dataset:
            assert dataset.classes == ["c", "unused", "a", "b"]


class TestCommitting:
    def test_slow_samples_are_stored_as_they_come(self, tmp_path, url, monkeypatch):
        """A clock that says each sample takes half a second: an interrupt costs two of them at most."""
        class_folders(tmp_path / "in", 20)
        now = [0.0]
        monkeypatch.setattr(work, "clock", lambda: now[0])
        loaded = []

        def slow(ingester, item, made):
            if len(loaded) == 9:
                raise KeyboardInterrupt
            now[0] += 0.5
            loaded.append(item.ident)
            return ready(ingester, item, made)

        ready = work.Ingester._ready
        monkeypatch.setattr(work.Ingester, "_ready", slow)
        with pytest.raises(KeyboardInterrupt):
            ingest(str(tmp_path / "in"), url)
        alone = tmp_path / "alone" / "store.db"
        alone.parent.mkdir()
        shutil.copy(tmp_path / "store.db", alone)
        assert len(contents(f"sqlite:///{alone}")) == 8

    def test_slow_encoding_too(self, tmp_path, url, monkeypatch):
        class_folders(tmp_path / "in", 20)
        now, made = [0.0], []
        monkeypatch.setattr(work, "clock", lambda: now[0])
        stored = work.stored

        def slow(content, encoding):
            if len(made) == 9:
                raise KeyboardInterrupt
            now[0] += 0.5
            made.append(1)
            return stored(content, encoding)

        monkeypatch.setattr(work, "stored", slow)
        with pytest.raises(KeyboardInterrupt):
            ingest(str(tmp_path / "in"), url)
        assert len(contents(url)) == 8
