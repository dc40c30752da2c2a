"""Shards other tools wrote, read as stores."""

import bz2
import errno
import gzip
import io
import json
import pickle
import struct
import tarfile

import numpy as np
import pyarrow as pa
import pytest

from headrace import store
from headrace.core.errors import BadRow, MissingKey, StoreError, StoreRefused
from headrace.store import Kind, LabelKind, Record
from headrace.store.catalogues.keys import Keys
from headrace.store.shards.tar_shards import tar, tar_index
from headrace.testing.stores import StoreConformance


def write_tar(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


class TestTars(StoreConformance):
    columns_kept = ("class", "age", "dose", "ok")

    @pytest.fixture(autouse=True)
    def given(self, tmp_path):
        self.records = []
        for shard in range(3):
            files = []
            for number in range(4 * shard, 4 * shard + 4):
                told = {"class": "ab"[number % 2], "dose": number / 4}
                told |= {"age": number, "ok": True} if number % 3 else {}
                payload = bytes([number]) * (600 * number)
                self.records.append(Record(f"train/{number:04}", payload, number % 2, told))
                files += [
                    (f"train/{number:04}.cls", b"%d" % (number % 2)),
                    (f"train/{number:04}.json", json.dumps({**told, "boxes": [1, 2]}).encode()),
                    (f"train/{number:04}.JPG", payload),
                ]
            write_tar(tmp_path / f"shard-{shard}.tar", files)
        self.store = store.open_store(f"wds://{tmp_path}")


class TestTarNames:
    def test_a_pattern_or_one_file(self, tmp_path):
        for name in ("train-0", "train-1", "val-0"):
            write_tar(tmp_path / f"{name}.tar", [(f"{name}x.txt", b"t")])
        assert store.open_store(f"wds://{tmp_path}/train-*.tar").keys() == ["train-0x", "train-1x"]
        assert store.open_store(f"wds://{tmp_path}/val-0.tar").get("val-0x") == ("val-0x", b"t", None)

    def test_names_used_twice_are_told_apart_by_their_shard(self, tmp_path):
        for shard in "ab":
            write_tar(tmp_path / f"{shard}.tar", [("0.bin", shard.encode())])
        opened = store.open_store(f"wds://{tmp_path}")
        assert {key: opened.get(key).payload for key in opened.keys()} == {"a/0": b"a", "b/0": b"b"}  # noqa: SIM118

    def test_files_of_a_sample_can_be_chosen(self, tmp_path):
        write_tar(tmp_path / "a.tar", [("0.left.png", b"l"), ("0.right.png", b"r"), ("0.mask.png", b"m")])
        opened = store.open_store(f"wds://{tmp_path}?data=right.png&label=mask.png")
        assert opened.get("0") == ("0", b"r", b"m")
        assert opened.info().labels is LabelKind.BLOB

    def test_what_is_missing_or_wrong_is_named(self, tmp_path):
        write_tar(tmp_path / "a.tar", [("0.cls", b"cat"), ("0.png", b""), ("1.png", b""), ("2.cls", b"1")])
        opened = store.open_store(f"wds://{tmp_path}")
        for key, told in (("0", "is no number of 64 bits: b'cat'"), ("1", r"no \.cls file"), ("2", "no payload")):
            with pytest.raises(BadRow, match=told) as caught:
                opened.get(key)
            assert caught.value.key == key

    def test_compressed_or_missing_shards_are_refused(self, tmp_path):
        with pytest.raises(StoreRefused, match="no tar files"):
            store.open_store(f"wds://{tmp_path}").keys()
        with tarfile.open(tmp_path / "a.tar", "w:gz"):
            pass
        with pytest.raises(StoreRefused, match=r"a\.tar cannot be read as a plain tar"):
            store.open_store(f"wds://{tmp_path}").keys()

    def test_a_folder_that_may_not_be_entered_is_the_stores_error(self, tmp_path, monkeypatch):
        def denied(*_, **__):
            raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

        monkeypatch.setattr("headrace.store.shards.places.folder_place.os.walk", denied)
        with pytest.raises(StoreRefused, match=r"wds://.*Permission denied"):
            store.open_store(f"wds://{tmp_path}").keys()


class TestTarIndex:
    @pytest.fixture(autouse=True)
    def given(self, tmp_path, monkeypatch):
        """Two shards, and how often the headers of one were read."""
        self.read = []
        monkeypatch.setattr(tar_index, "walk", lambda size: self.read.append(size) or tar.walk(size))
        for shard in range(2):
            write_tar(tmp_path / f"{shard}.tar", [(f"{shard}-{number:03}.bin", b"x") for number in range(200)])
        self.folder, self.store = tmp_path, store.open_store(f"wds://{tmp_path}")

    def test_headers_are_read_once(self):
        keys = self.store.keys()
        self.store.close()
        copy = pickle.loads(pickle.dumps(self.store))
        assert copy.get(keys[7]) == (keys[7], b"x", None)
        assert self.store.keys() == keys
        assert len(self.read) == 2

    def test_shards_that_have_changed_are_read_again(self):
        self.store.keys()
        write_tar(self.folder / "1.tar", [("new.bin", b"y" * 5000)])
        self.store.close()
        assert self.store.get("new").payload == b"y" * 5000
        write_tar(self.folder / "2.tar", [("newer.bin", b"z")])
        self.store.close()
        assert self.store.get("newer").payload == b"z"

    def test_a_sample_without_a_label_is_found_in_a_few_steps(self, monkeypatch):
        keys, looked, key = self.store.keys(), [], Keys.__getitem__
        monkeypatch.setattr(Keys, "__getitem__", lambda known, number: looked.append(number) or key(known, number))
        assert self.store.get(keys[123]).payload == b"x"
        assert len(looked) < 12


class TestTarFormats:
    @pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_members_are_those_that_python_finds(self, tmp_path, kind):
        long = "folder/" * 20 + "x" * 60 + ".a.jpg" if kind == tarfile.USTAR_FORMAT else "long" * 70 + ".a.jpg"
        names = ["./a.JPG", "b/c.cls", long, "ü/é.txt", "none", ".hidden", "z.bin"]
        with tarfile.open(tmp_path / "a.tar", "w", format=kind) as archive:
            for number, name in enumerate(names):
                info = tarfile.TarInfo(name)
                info.size, info.mtime = 700 * number, 1.5
                archive.addfile(info, io.BytesIO(bytes([number]) * info.size))
            folder = tarfile.TarInfo("folder.d")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        with tarfile.open(tmp_path / "a.tar") as archive:
            expected = [(info.offset_data, info.size) for info in archive if info.name in [*names, "a.JPG"]]
        found = list(tar.members(tmp_path / "a.tar"))
        assert [(member.offset, member.size) for member in found] == [expected[number] for number in (0, 1, 2, 3, 6)]
        assert [member.extension for member in found] == ["jpg", "cls", "a.jpg", "txt", "bin"]
        assert [found[0].key, found[1].key, found[3].key] == ["a", "b/c", "ü/é"]

    def test_shards_that_were_joined_are_read_to_their_end(self, tmp_path):
        for number in range(3):
            write_tar(tmp_path / f"{number}.tar", [(f"{number}.bin", b"%d" % number)])
        whole = b"".join((tmp_path / f"{number}.tar").read_bytes() for number in range(3))
        (tmp_path / "all").mkdir()
        (tmp_path / "all" / "a.tar").write_bytes(whole + b"something else" * 100)
        joined = store.open_store(f"wds://{tmp_path}/all")
        assert [joined.get(key).payload for key in joined.keys()] == [b"0", b"1", b"2"]  # noqa: SIM118

    def test_of_two_files_with_one_name_none_is_chosen(self, tmp_path):
        write_tar(tmp_path / "a.tar", [("x.bin", b"1"), ("y.bin", b"2"), ("x.bin", b"3")])
        with pytest.raises(StoreRefused, match=r"two of its files are \.bin of sample 'x'"):
            store.open_store(f"wds://{tmp_path}").keys()

    def test_what_follows_a_damaged_header_is_not_passed_over(self, tmp_path):
        write_tar(tmp_path / "a.tar", [(f"{number}.bin", b"x") for number in range(3)])
        raw = bytearray((tmp_path / "a.tar").read_bytes())
        raw[1024] ^= 1
        (tmp_path / "a.tar").write_bytes(raw)
        with pytest.raises(StoreRefused, match=r"a\.tar cannot be read as a plain tar file: what is at 1024"):
            store.open_store(f"wds://{tmp_path}").keys()


def packed_by(codec, raw):
    """As MosaicML compresses whole shards."""
    name = codec.partition(":")[0]
    if name in {"gz", "bz2"}:
        return (gzip if name == "gz" else bz2).compress(raw)
    return pa.compress(raw, {"br": "brotli"}.get(name, name), asbytes=True)


def write_mds(folder, columns, shards, *, packed=None):
    """As MosaicML's writer lays it out: offsets, a description, samples of sizes and columns."""
    index = {"version": 2, "shards": []}
    folder.mkdir(exist_ok=True)
    names, encodings, sizes = zip(*columns, strict=True)
    for number, rows in enumerate(shards):
        samples = [
            b"".join(struct.pack("<I", len(value)) for value, size in zip(row, sizes, strict=True) if size is None)
            + b"".join(row)
            for row in rows
        ]
        about = json.dumps({"column_names": names}).encode()
        first = 4 * (2 + len(samples)) + len(about)
        offsets = np.cumsum([first, *map(len, samples)]).astype("<u4")
        raw = struct.pack("<I", len(samples)) + offsets.tobytes() + about + b"".join(samples)
        name = f"shard.{number:05}.mds"
        beside = f"{name}.{packed.partition(':')[0]}" if packed else None
        (folder / (beside or name)).write_bytes(packed_by(packed, raw) if packed else raw)
        index["shards"].append(
            {
                "format": "mds",
                "column_names": names,
                "column_encodings": encodings,
                "column_sizes": sizes,
                "samples": len(rows),
                "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}},
                "compression": packed,
                "zip_data": {"basename": beside} if packed else None,
            }
        )
    (folder / "index.json").write_text(json.dumps(index))


COLUMNS = [("dose", "float32", 4), ("image", "jpeg", None), ("label", "int", 8), ("who", "str", None)]


class TestMds(StoreConformance):
    columns_kept = ("dose", "who")

    @pytest.fixture(autouse=True)
    def given(self, tmp_path):
        self.records, rows = [], []
        for number in range(10):
            payload = bytes([number]) * (700 * number)
            who = f"p{number}é"
            self.records.append(Record(f"{number:09}", payload, number % 3, {"dose": number / 4, "who": who}))
            rows.append([struct.pack("<f", number / 4), payload, struct.pack("<q", number % 3), who.encode()])
        write_mds(tmp_path / "set", COLUMNS, [rows[:4], [], rows[4:]])
        self.store = store.open_store(f"mds://{tmp_path}/set")

    def test_nothing_of_a_sample_is_read_for_its_metadata_but_its_head(self):
        assert self.store.info().columns == {"dose": Kind.NUMBER, "who": Kind.TEXT}


class TestMdsFolders:
    def test_columns_can_be_chosen(self, tmp_path):
        write_mds(
            tmp_path / "a", [("x", "bytes", None), ("y", "png", None), ("z", "pkl", None)], [[[b"1", b"2", b"3"]]]
        )
        opened = store.open_store(f"mds://{tmp_path}/a?data=y&label=x")
        assert opened.get("000000000") == ("000000000", b"2", b"1")
        with pytest.raises(StoreRefused, match="column 'z' is a pickle"):
            store.open_store(f"mds://{tmp_path}/a?data=z").get("000000000")
        with pytest.raises(StoreRefused, match="there is no column 'w'; there are x, y, z"):
            store.open_store(f"mds://{tmp_path}/a?data=w").get("000000000")

    @pytest.mark.parametrize("codec", ["zstd:7", "br", "snappy", "gz", "bz2:1"])
    def test_compressed_shards_are_unpacked(self, tmp_path, codec):
        rows = [[b"x" * 1000, struct.pack("<q", number)] for number in range(3)]
        write_mds(tmp_path / "a", COLUMNS[1:3], [rows[:2], rows[2:]], packed=codec)
        opened = store.open_store(f"mds://{tmp_path}/a")
        assert not list((tmp_path / "a").glob("*.mds"))
        assert [opened.get(key) for key in opened.keys()] == [  # noqa: SIM118
            (f"{number:09}", b"x" * 1000, number) for number in range(3)
        ]
        assert opened.columns(["label"])["label"].tolist() == [0, 1, 2]
        packed = next((tmp_path / "a").glob("shard.00001*"))
        packed.write_bytes(packed.read_bytes()[:-5])
        opened.close()
        with pytest.raises(BadRow, match=r"'000000002' of 'shard.00001.mds\.\w+' cannot be read: it"):
            opened.get("000000002")

    def test_a_shard_that_would_become_too_large_is_not_unpacked(self, tmp_path):
        write_mds(tmp_path / "a", COLUMNS[1:2], [[[b"x"]]], packed="zstd")
        path = tmp_path / "a" / "index.json"
        index = json.loads(path.read_text())
        index["shards"][0]["raw_data"]["bytes"] = 1 << 40
        path.write_text(json.dumps(index))
        with pytest.raises(BadRow, match="bytes are to become"):
            store.open_store(f"mds://{tmp_path}/a").get("000000000")

    def test_folders_of_a_split_and_several_streams(self, tmp_path):
        for name, count in (("train", 2), ("val", 3)):
            write_mds(tmp_path / name, COLUMNS[1:2], [[[name.encode()]] * count])
        with pytest.raises(StoreRefused, match=r"one in train,val: \?split=train reads one.*\?streams=train,val all"):
            store.open_store(f"mds://{tmp_path}").keys()
        assert store.open_store(f"mds://{tmp_path}?split=val").keys() == [f"{number:09}" for number in range(3)]
        both = store.open_store(f"mds://{tmp_path}?streams=val,train")
        assert both.keys() == [*(f"train/{number:09}" for number in range(2)), *(f"val/{n:09}" for n in range(3))]
        assert [both.get(key).payload for key in both.keys()[1:3]] == [b"train", b"val"]
        for key in ("000000000", "val/000000003", "other/000000000"):
            with pytest.raises(MissingKey):
                both.get(key)

    @pytest.mark.parametrize("text", ["", "[]", '{"shards": [{}]}', '{"shards": [{"format": "json"}]}'])
    def test_an_index_that_is_none(self, tmp_path, text):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(StoreRefused, match=r"index\.json"):
            store.open_store(f"mds://{tmp_path}").keys()

    def test_no_index(self, tmp_path):
        with pytest.raises(StoreRefused, match="no MDS shards"):
            store.open_store(f"mds://{tmp_path}").keys()

    def test_a_shard_that_is_cut_off(self, tmp_path):
        write_mds(tmp_path / "a", COLUMNS[1:3], [[[b"x" * 100, struct.pack("<q", 1)]] * 3])
        path = tmp_path / "a" / "shard.00000.mds"
        path.write_bytes(path.read_bytes()[:-50])
        opened = store.open_store(f"mds://{tmp_path}/a")
        assert opened.get("000000000").label == 1
        with pytest.raises(BadRow, match=r"'000000002' of 'shard\.00000\.mds' cannot be read"):
            opened.get("000000002")
        with pytest.raises(StoreError):
            opened.columns()

    @pytest.mark.parametrize("key", ["1", "-00000001", "000000003", "x", ""])
    def test_keys_that_are_none(self, tmp_path, key):
        write_mds(tmp_path / "a", COLUMNS[1:2], [[[b"x"]] * 3])
        with pytest.raises(MissingKey):
            store.open_store(f"mds://{tmp_path}/a").get(key)
