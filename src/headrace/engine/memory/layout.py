"""The shape of a sample, and how samples of one shape lie in a slot: one array per leaf, one row per sample.

A layout exists only for samples that ``default_collate`` would stack leaf by leaf: plain tensors, arrays and numbers in
tuples, named tuples, lists and dicts. Anything else travels as an object and is collated by torch itself.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import default_collate

ALIGN: Final = 64
_STACKABLE: Final = frozenset(
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
        *("complex64", "complex128", "uint16", "uint32", "uint64"),
    )
)

Columns = Callable[[Sequence[Any], list[Sequence[Any]]], bool]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value of a sample; ``dtype`` and ``shape`` are its row's in the batch."""

    kind: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    array: str | None
    """Numpy's spelling of the value's own dtype, for arrays."""

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """A container; ``keys`` are a dict's."""

    kind: type
    children: tuple["Leaf | Node", ...]
    keys: tuple[Any, ...] = ()


class Unstackable(Exception):
    """The sample has no layout."""


def describe(sample: Any) -> Leaf | Node:
    """The sample's shape; raises ``Unstackable``."""
    kind = type(sample)
    if kind is torch.Tensor:
        plain = sample.layout is torch.strided and sample.is_cpu and not sample.is_nested
        if not plain or sample.requires_grad or sample.dtype not in _STACKABLE:
            raise Unstackable
        return Leaf(kind, sample.dtype, tuple(sample.shape), None)
    if kind in (int, float, bool) or isinstance(sample, (np.ndarray, np.number, np.bool_)):
        return _describe_value(sample, kind)
    if kind is dict:
        return Node(kind, tuple(describe(value) for value in sample.values()), tuple(sample))
    if kind in (tuple, list) or (isinstance(sample, tuple) and hasattr(sample, "_fields")):
        return Node(kind, tuple(describe(value) for value in sample))
    raise Unstackable


def _describe_value(value: Any, kind: type) -> Leaf:
    if kind is np.ndarray:
        return Leaf(kind, _array_dtype(value.dtype), value.shape, value.dtype.str)
    if isinstance(value, np.ndarray):
        raise Unstackable
    return Leaf(kind, _collated_dtype(value), (), None)


@lru_cache(maxsize=64)
def _array_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return _collated_dtype(np.zeros((), dtype))


def _collated_dtype(value: Any) -> torch.dtype:
    """The type torch collates such a value to: the same for one value as for many."""
    try:
        one = default_collate([value])
    except Exception as error:
        raise Unstackable from error
    if not isinstance(one, torch.Tensor) or one.dtype not in _STACKABLE or one.dtype is torch.bfloat16:
        raise Unstackable
    return one.dtype


class Layout:
    """A sample shape with everything derived from it. Two layouts are equal when their shapes are."""

    def __init__(self, shape: Leaf | Node) -> None:
        """``shape`` comes from ``describe``."""
        self.shape = shape
        self.leaves = list(_leaves(shape))
        self.row_bytes = sum(leaf.row_bytes for leaf in self.leaves)
        self.plan = lru_cache(maxsize=64)(self._plan)

    @cached_property  # of no use to the trainer
    def _columns(self) -> Columns:
        return _column_maker(self.shape)

    def columns(self, samples: Sequence[Any]) -> list[Sequence[Any]] | None:
        """The samples leaf by leaf; None unless every one of them has this layout."""
        out: list[Sequence[Any]] = []
        return out if self._columns(samples, out) else None

    def _plan(self, rows: int) -> tuple[tuple[int, ...], int]:
        """The offset of each leaf's array in a slot for ``rows`` samples, and their common end."""
        offsets, at = [], 0
        for leaf in self.leaves:
            offsets.append(at)
            at += -(-leaf.row_bytes * rows // ALIGN) * ALIGN
        return tuple(offsets), at

    def batch(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The batch ``default_collate`` would return, from its leaves."""
        return _built(self.shape, iter(tensors), _collated)

    def sample(self, values: Sequence[Any]) -> Any:
        """The sample as the dataset returned it, from its leaves."""
        return _built(self.shape, iter(values), _original)


def _leaves(shape: Leaf | Node) -> Iterator[Leaf]:
    if isinstance(shape, Leaf):
        yield shape
    else:
        for child in shape.children:
            yield from _leaves(child)


def _column_maker(shape: Leaf | Node) -> Columns:
    if isinstance(shape, Leaf):
        return _leaf_columns(shape)
    return _node_columns(shape, [_column_maker(child) for child in shape.children])


def _leaf_columns(leaf: Leaf) -> Columns:
    dtype, shape, kind = leaf.dtype, torch.Size(leaf.shape), leaf.kind

    def tensors(values: Sequence[Any], out: list[Sequence[Any]]) -> bool:
        for value in values:
            if (
                type(value) is not torch.Tensor
                or value.dtype is not dtype
                or value.shape != shape
                or value.requires_grad
                or not value.is_cpu
                or value.layout is not torch.strided
            ):
                return False
        out.append(values)
        return True

    def arrays(values: Sequence[Any], out: list[Sequence[Any]]) -> bool:
        for value in values:
            if type(value) is not np.ndarray or value.dtype.str != leaf.array or value.shape != shape:
                return False
        out.append(values)
        return True

    def numbers(values: Sequence[Any], out: list[Sequence[Any]]) -> bool:
        out.append(values)
        return set(map(type, values)) == {kind}

    return tensors if kind is torch.Tensor else arrays if kind is np.ndarray else numbers


def _node_columns(node: Node, children: list[Columns]) -> Columns:
    kind: Any = node.kind
    keys, count = node.keys, len(children)

    def sequences(values: Sequence[Any], out: list[Sequence[Any]]) -> bool:
        value: Any
        for value in values:
            if type(value) is not kind or len(value) != count:
                return False
        return all(child(column, out) for child, column in zip(children, zip(*values, strict=True), strict=True))

    def mappings(values: Sequence[Any], out: list[Sequence[Any]]) -> bool:
        for value in values:
            if type(value) is not dict or tuple(value) != keys:
                return False
        columns = ([value[key] for value in values] for key in keys)
        return all(child(column, out) for child, column in zip(children, columns, strict=True))

    return mappings if kind is dict else sequences


def _built(shape: Leaf | Node, values: Iterator[Any], make: Callable[[Node, list[Any]], Any]) -> Any:
    if isinstance(shape, Leaf):
        return next(values)
    return make(shape, [_built(child, values, make) for child in shape.children])


def _collated(node: Node, made: list[Any]) -> Any:
    """``default_collate`` turns tuples into lists and keeps the rest."""
    return made if node.kind is tuple else _original(node, made)


def _original(node: Node, made: list[Any]) -> Any:
    if node.kind is dict:
        return dict(zip(node.keys, made, strict=True))
    return node.kind(*made) if hasattr(node.kind, "_fields") else node.kind(made)
