"""One name, one meaning: no two classes of the package are called the same, a leading underscore aside."""

import ast
from collections import Counter
from pathlib import Path

import headrace

PACKAGE = Path(headrace.__file__).parent


def class_names() -> list[str]:
    """Of every class, also those within functions."""
    trees = (ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py"))
    return [node.name.lstrip("_") for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_no_two_classes_have_the_same_name() -> None:
    shared = {name for name, count in Counter(class_names()).items() if count > 1}
    assert not shared, "choose another name: one is taken"
