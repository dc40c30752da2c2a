"""Sources to ingest from, and what a store then holds."""

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from headrace.store import open_store

ROOT = Path(__file__).resolve().parents[3]


def picture(number, size=(24, 20), mode="RGB", kind="PNG"):
    """A small picture, different for each number."""
    random = np.random.default_rng(number)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    out = io.BytesIO()
    Image.fromarray(random.integers(0, 255, shape, dtype=np.uint8), mode=None).save(out, kind)
    return out.getvalue()


def class_folders(root, count=30, classes=("cat", "dog", "owl")):
    """Files by class; returns their contents by path."""
    made = {}
    for number in range(count):
        path = f"{classes[number % len(classes)]}/{number:03d}.png"
        made[path] = picture(number)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(made[path])
    return made


def manifest(path, rows):
    """A CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def contents(url):
    """All that a store holds: key -> (payload, label, metadata)."""
    store = open_store(url)
    try:
        columns = {name: values.tolist() for name, values in store.columns().items()}
        rows = {}
        for place, key in enumerate(columns["key"]):
            row = store.get(key)
            metadata = {
                name: values[place] for name, values in columns.items() if name not in ("key", "label", "bytes")
            }
            rows[key] = (bytes(row.payload), row.label, metadata)
        return rows
    finally:
        store.close()


def headrace(*arguments, check=None, **options):
    """Runs the command in a process of its own."""
    command = [sys.executable, "-m", "headrace.cli.__main__", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **options.pop("env", {})}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, env=environment, **options)
    if check is not None:
        assert done.returncode == check, done.stderr + done.stdout
    return done
