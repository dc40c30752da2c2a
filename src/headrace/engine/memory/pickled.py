"""Objects between the processes of one run: a pickle whose large buffers lie beside it in the slot.

Only ever between a training process and the workers it started itself. Tensors come back as views of the slot.
"""

import io
import pickle
from array import array
from collections.abc import Callable
from typing import Any

import torch

from headrace.core.errors import BatchNotSendable
from headrace.engine.memory.layout import ALIGN

Locate = Callable[[torch.Tensor], int | None]


class EncodedObject:
    """An object ready to be written: ``size`` bytes, in one piece."""

    def __init__(self, value: Any, locate: Locate | None = None) -> None:
        """Pickle ``value``. ``locate`` says which tensors already lie in the slot, and where."""
        self._buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        try:
            if locate is None:
                _Pickler(stream, 5, buffer_callback=self._buffers.append).dump(value)
            else:
                _LocatingPickler(stream, self._buffers.append, locate).dump(value)
            self._raw = [buffer.raw() for buffer in self._buffers]
        except Exception as error:
            raise BatchNotSendable(
                f"cannot pickle a batch to send it to the training process: {type(error).__name__}: {error}. "
                "Return tensors that do not require grad, arrays or picklable objects from the dataset and "
                "collate_fn, or use num_workers=0"
            ) from error
        self._head = stream.getbuffer()
        self._places, at = [], 8 * (2 + 2 * len(self._raw)) + len(self._head)
        for raw in self._raw:
            at = -(-at // ALIGN) * ALIGN
            self._places.append(at)
            at += raw.nbytes
        self.size = -(-at // ALIGN) * ALIGN

    def write(self, target: memoryview) -> None:
        """Write into ``target``, which has ``size`` bytes and begins on a multiple of 64."""
        index = [len(self._head), len(self._raw)]
        for place, raw in zip(self._places, self._raw, strict=True):
            index += [place, raw.nbytes]
            target[place : place + raw.nbytes] = raw
        head = 8 * len(index)
        target[:head].cast("q")[:] = memoryview(array("q", index))
        target[head : head + len(self._head)] = self._head


def decode(source: memoryview, slot: memoryview) -> Any:
    """The object written at the start of ``source``; its tensors are views of ``source`` and ``slot``."""
    length, count = source[:16].cast("q")
    index = source[16 : 16 + 16 * count].cast("q")
    buffers = [source[index[2 * i] : index[2 * i] + index[2 * i + 1]] for i in range(count)]
    head = 16 + 16 * count
    return _Unpickler(io.BytesIO(source[head : head + length]), buffers, slot).load()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and value.is_cpu and value.layout is torch.strided and not value.is_nested:
            return _reduce_tensor(value)
        if type(value) is torch.Tensor and value.is_cpu and value.is_nested and not value.requires_grad:
            return torch.nested.nested_tensor, (list(value.unbind()),)
        if type(value) is torch.Tensor and value.is_cpu and value.layout is not torch.strided:
            return _reduce_sparse(value)
        if isinstance(value, torch.UntypedStorage) and value.device.type == "cpu":
            flat = torch.empty(0, dtype=torch.uint8).set_(value)
            return _storage, (_buffer(flat), len(value))
        return NotImplemented


class _LocatingPickler(_Pickler):
    """Apart, since ``persistent_id`` is called for every part of an object: samples have many and lie nowhere yet."""

    def __init__(self, stream: io.BytesIO, keep: Callable[[pickle.PickleBuffer], Any], locate: Locate) -> None:
        super().__init__(stream, 5, buffer_callback=keep)
        self._locate = locate

    def persistent_id(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.requires_grad or value.numel() == 0:
            return None
        if value.is_conj() or value.is_neg():  # what lies in the slot is not yet what the tensor says
            return None
        offset = self._locate(value)
        return None if offset is None else (offset, value.dtype, tuple(value.shape), value.stride())


def _buffer(flat: torch.Tensor) -> pickle.PickleBuffer:
    array: Any = flat.numpy()
    return pickle.PickleBuffer(array)


def _reduce_tensor(value: torch.Tensor) -> Any:
    if value.requires_grad and not value.is_leaf:
        raise BatchNotSendable("a tensor that requires grad and is not a leaf cannot be sent; call .detach() on it")
    if value.is_quantized or value.is_conj() or value.is_neg():
        return NotImplemented
    data = value.detach()
    # In the order in which it lies: transposed, or with channels last, it travels as it is and comes back so.
    order = sorted(range(data.dim()), key=data.stride, reverse=True)
    dense = data.permute(order)
    stride = tuple(data.stride())
    if not dense.is_contiguous():
        dense = data.contiguous()
        stride = tuple(dense.stride())
    if dense.numel() == 0:
        return _tensor, (None, value.dtype, tuple(value.shape), stride, value.requires_grad)
    flat = dense.as_strided((dense.numel(),), (1,))  # a dimension of size one may have any stride
    raw = flat if value.dtype is torch.bool else flat.view(torch.uint8)
    return _tensor, (_buffer(raw), value.dtype, tuple(value.shape), stride, value.requires_grad)


def _reduce_sparse(value: torch.Tensor) -> Any:
    """Reduce in parts: torch's own reduction keeps every such tensor alive in a list until the next ``torch.load``."""
    if value.layout is torch.sparse_coo:
        return _coo, (value._indices(), value._values(), value.shape, value.is_coalesced())  # noqa: SLF001
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        places = value.crow_indices(), value.col_indices()
    elif value.layout in (torch.sparse_csc, torch.sparse_bsc):
        places = value.ccol_indices(), value.row_indices()
    else:
        return NotImplemented
    return _compressed, (*places, value.values(), value.shape, value.layout)


def _coo(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, coalesced: bool) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=False)


def _compressed(
    compressed: torch.Tensor,
    plain: torch.Tensor,
    values: torch.Tensor,
    shape: torch.Size,
    layout: torch.layout,
) -> torch.Tensor:
    return torch.sparse_compressed_tensor(compressed, plain, values, shape, layout=layout, check_invariants=False)


def _tensor(
    data: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    if data is None:
        made = torch.empty_strided(shape, stride, dtype=dtype)
    else:
        made = torch.frombuffer(data, dtype=dtype).as_strided(shape, stride)
    return made.requires_grad_() if requires_grad else made


def _storage(data: Any, size: int) -> torch.UntypedStorage:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, buffers: list[memoryview], slot: memoryview) -> None:
        super().__init__(stream, buffers=buffers)
        self._slot = slot

    def persistent_load(self, found: Any) -> torch.Tensor:
        offset, dtype, shape, stride = found
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        return torch.frombuffer(self._slot, dtype=dtype, count=extent, offset=offset).as_strided(shape, stride)
