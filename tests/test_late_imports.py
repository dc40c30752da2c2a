"""What is imported by a name in a table, when it is needed, is there."""

import importlib

import pytest

import headrace
from headrace.store.ingest.sources import item_source
from headrace.store.locate import SCHEMES
from headrace.store.shards.urls import FORMATS

TABLES = {
    "headrace": [(module, name) for name, module in vars(headrace)["_LATER"].items()],
    "ingest": [
        (f"headrace.store.ingest.sources.{module}", name) for module, name in vars(item_source)["_CLASSES"].items()
    ],
    "stores": [tuple(named.split(":")) for named in SCHEMES.values()],
    "shards": [tuple(f"headrace.store.shards.{known.made}".split(":")) for known in FORMATS.values()],
}


@pytest.mark.parametrize(("module", "name"), sorted({entry for entries in TABLES.values() for entry in entries}))
def test_a_table_names_what_is_there(module, name):
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("text", ["torchvision:MNIST", "tests.data:factory", "hf:folder"])
def test_the_module_of_a_source_is_in_the_table(text):
    assert vars(item_source)["_kind"](text)[0] in vars(item_source)["_CLASSES"]
