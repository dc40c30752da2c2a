"""The codec for what datasets of torch's users hold."""

from headrace.cache.codec import Codec
from headrace.engine.staging.images import ImageKind
from headrace.engine.staging.tensors import TensorKind


def codec() -> Codec:
    """One of a process's own."""
    return Codec([TensorKind(), ImageKind()])
