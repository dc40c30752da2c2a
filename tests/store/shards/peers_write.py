"""Run in the peers' environment: their own libraries write what our stores then read. The argument is a folder."""

import sys
from pathlib import Path

import numpy as np
import torch
import webdataset
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter
from PIL import Image
from streaming import MDSWriter

folder = Path(sys.argv[1])


def picture(number):
    return Image.frombytes("RGB", (4, 3), bytes((number + at) % 256 for at in range(36)))


MDS = {
    "image": "pil", "label": "int", "name": "str", "score": "float32", "free": "ndarray", "typed": "ndarray:int16",
    "fixed": "ndarray:float32:2,3", "raw": "bytes", "told": "json", "big": "str_int", "exact": "str_decimal",
}  # fmt: skip
for codec in (None, "zstd:3", "br:4", "snappy", "gz:2", "bz2:2"):
    with MDSWriter(columns=MDS, out=str(folder / f"mds-{codec}"), compression=codec, size_limit=2000) as writer:
        for n in range(12):
            from decimal import Decimal

            writer.write(
                {
                    "image": picture(n), "label": n % 3, "name": f"n{n}é", "score": n / 4, "raw": bytes([n]) * (n + 1),
                    "free": np.arange(n + 1, dtype=np.uint8).reshape(1, -1), "typed": np.full(3, n, np.int16),
                    "fixed": np.full((2, 3), n, np.float32), "told": {"n": n}, "big": n, "exact": Decimal(n),
                }
            )  # fmt: skip

(folder / "wds").mkdir()
with webdataset.ShardWriter(str(folder / "wds" / "train-%03d.tar"), maxcount=5, verbose=0) as writer:
    for n in range(12):
        writer.write(
            {"__key__": f"x{n:03}", "bin": bytes([n]) * (100 * n), "cls": n % 3, "json": {"site": f"s{n % 2}"}}
        )

for level in ("none", "chunk", "batch"):
    given = {} if level == "none" else {"compression": "zstd", "compression_level": level}
    writer = BinaryWriter(str(folder / f"lit-{level}"), chunk_size=5, **given)
    for n in range(12):
        writer[n] = {
            "image": picture(n), "label": n % 3, "name": f"n{n}é", "array": np.full((2, 3), n, np.int16),
            "tensor": torch.full((2, 2), n), "flat": torch.arange(n + 1), "score": n / 4, "ok": n % 2 == 0,
            "raw": {"inner": bytes([n]) * (n + 1)},
        }  # fmt: skip
    writer.done()
    writer.merge(1)
writer = BinaryWriter(str(folder / "tokens"), chunk_size=2, item_loader=TokensLoader())
for n in range(6):
    writer[n] = torch.arange(7 * n, 7 * n + 7, dtype=torch.int32)
writer.done()
writer.merge(1)
