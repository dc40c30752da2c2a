"""Other libraries that stream samples from an object server, run by an interpreter of their own.

``python streamers.py write FOLDER SAMPLES SIZE TIMES`` makes the shards of each, ``... read JSON`` reads one epoch and
prints when each batch came. They need other versions of numpy than headrace does, so nothing here imports headrace or
the rest
of the benchmarks, and nobody there imports this.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARD = 64 << 20


def write(folder: Path, samples: int, size: int, times: int) -> None:
    """The same samples for all three, in shards of 64 MiB, which is the default of the first two.

    ``times``: so often they lie there, the others by other names for the same files.
    """
    import webdataset
    from litdata.streaming.writer import BinaryWriter
    from streaming import MDSWriter

    def payloads() -> Any:
        draw = random.Random(0)
        return ((number, draw.randbytes(size)) for number in range(samples))

    with MDSWriter(out=str(folder / "mds"), columns={"data": "bytes", "label": "int"}, size_limit=SHARD) as mosaic:
        for number, data in payloads():
            mosaic.write({"data": data, "label": number})
    (folder / "lit").mkdir()
    lit = BinaryWriter(str(folder / "lit"), chunk_bytes=SHARD)
    for number, data in payloads():
        lit.add_item(number, {"data": data, "label": number})
    lit.done()
    lit.merge()
    (folder / "wds").mkdir()
    with webdataset.ShardWriter(str(folder / "wds" / "%06d.tar"), maxsize=SHARD, maxcount=1 << 30, verbose=0) as tars:
        for number, data in payloads():
            tars.write({"__key__": f"{number:08d}", "bin": data, "cls": number})
    _repeat(folder / "mds", "shards", lambda shard: shard["raw_data"], "basename", times)
    _repeat(folder / "lit", "chunks", lambda chunk: chunk, "filename", times)
    first = sorted((folder / "wds").glob("*.tar"))
    for number in range(len(first), times * len(first)):
        os.link(first[number % len(first)], folder / "wds" / f"{number:06d}.tar")


def _repeat(folder: Path, what: str, place: Any, name: str, times: int) -> None:
    """List all shards of an index again, by other names of the same length."""
    index = json.loads((folder / "index.json").read_text())
    first = index[what]
    for number in range(len(first), times * len(first)):
        again = json.loads(json.dumps(first[number % len(first)]))
        file = place(again)
        stem, _, kind = file[name].rpartition(".")
        before = folder / file[name]
        file[name] = f"{stem}-{number:05d}.{kind}"
        os.link(before, folder / file[name])
        index[what].append(again)
    (folder / "index.json").write_text(json.dumps(index))


def read(told: dict[str, Any]) -> list[tuple[float, int, float]]:
    """One epoch: when it began, and when each batch came, with how many bytes, and how long it was waited for, until
    ``seconds`` are over.

    It begins when the dataset is opened, with everything imported.
    """
    local = Path(tempfile.mkdtemp(prefix="headrace-peer-"))
    os.environ.update(
        AWS_ACCESS_KEY_ID=told["key"],
        AWS_SECRET_ACCESS_KEY=told["secret"],
        AWS_DEFAULT_REGION="us-east-1",
        AWS_ENDPOINT_URL=told["endpoint"],
        S3_ENDPOINT_URL=told["endpoint"],
    )
    modules, opened = {
        "MosaicML Streaming": (("streaming", "boto3"), _mosaic),
        "LitData": (("litdata", "obstore"), _lit),
        "WebDataset": (("webdataset", "boto3"), _webdataset),
    }[told["library"]]
    for module in ("torch.utils.data", *modules):
        importlib.import_module(module)
    try:
        began = asked = time.monotonic()
        coming = [(began, 0, 0.0)]
        loader = opened(told, str(local))
        for sizes in loader:
            now = time.monotonic()
            coming.append((now, int(sizes.sum()), now - asked))
            if now - began > told["seconds"]:
                break
            asked = time.monotonic()
        return coming
    finally:
        shutil.rmtree(local, ignore_errors=True)


def _sizes(batch: list[dict[str, Any]]) -> Any:
    import torch

    return torch.tensor([len(sample["data"]) for sample in batch])


def _mosaic(told: dict[str, Any], local: str) -> Any:
    """With its default shuffle; shards are kept on disk, as they would be."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader, Subset

    dataset = StreamingDataset(
        remote=f"s3://{told['bucket']}/{told['prefix']}/mds",
        local=local,
        shuffle=True,
        batch_size=told["batch"],
        num_canonical_nodes=1,
    )
    options = {"num_workers": told["workers"], "collate_fn": _sizes}
    if told["every"] == 1:
        return DataLoader(dataset, told["batch"], **options)
    chosen = Subset(dataset, range(0, dataset.num_samples, told["every"]))
    return DataLoader(chosen, told["batch"], shuffle=True, **options)


def _lit(told: dict[str, Any], local: str) -> Any:
    """It shuffles chunks, and samples within each."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for servers without TLS
    dataset = StreamingDataset(
        f"s3://{told['bucket']}/{told['prefix']}/lit",
        cache_dir=local,
        shuffle=True,
        storage_options={
            "endpoint_url": told["endpoint"],
            "aws_access_key_id": told["key"],
            "aws_secret_access_key": told["secret"],
        },
    )
    return StreamingDataLoader(dataset, batch_size=told["batch"], num_workers=told["workers"], collate_fn=_sizes)


def _webdataset(told: dict[str, Any], _: str) -> Any:
    """It shuffles shards, and samples in a buffer of a thousand; read by curl, as its pages recommend."""
    import boto3
    import webdataset
    from botocore.config import Config
    from torch.utils.data import DataLoader

    server = boto3.client("s3", endpoint_url=told["endpoint"], config=Config(signature_version="s3v4"))
    shards = sorted(path.name for path in Path(told["folder"], "wds").glob("*.tar"))
    urls = [
        "pipe:curl -s '{}'".format(
            server.generate_presigned_url(
                "get_object", Params={"Bucket": told["bucket"], "Key": f"{told['prefix']}/wds/{name}"}
            )
        )
        for name in shards
    ]
    dataset = webdataset.WebDataset(
        urls, shardshuffle=len(urls), nodesplitter=None, workersplitter=webdataset.split_by_worker, empty_check=False
    )
    samples = dataset.shuffle(1000).map(lambda sample: {"data": sample["bin"]})
    return DataLoader(samples, told["batch"], num_workers=told["workers"], collate_fn=_sizes)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), *map(int, sys.argv[3:6]))
    else:
        print(json.dumps(read(json.loads(sys.argv[2]))))
