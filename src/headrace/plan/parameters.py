"""Inputs of the cache models: one machine, one job and one dataset, in the names of the paper's Table 3."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any


class NVLink(Enum):
    """Reach of a dedicated interconnect for gradients, which then burden neither PCIe nor the network."""

    NONE = "none"
    NODE = "node"
    """Between the accelerators of a node."""
    CLUSTER = "cluster"
    """Between nodes as well."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Rates in samples per second and bytes per second, sizes in bytes; of one node where not said otherwise."""

    t_gpu: float
    """Samples the accelerators of a node take in per second."""
    t_da: float
    """Samples its CPUs decode and augment per second."""
    t_a: float
    """Samples its CPUs only augment per second."""
    b_nic: float
    b_pcie: float
    b_cache: float
    """Of the whole cache, shared by all nodes."""
    b_storage: float
    """Of the whole storage, shared by all nodes."""
    s_cache: float
    s_data: float
    """Mean size of an encoded sample."""
    n_total: float
    """Samples of the dataset."""
    m: float
    """Size of a decoded or augmented sample over that of an encoded one."""
    c_nw: float = 0.0
    """Gradient bytes over the network, per sample."""
    c_pcie: float = 0.0
    """Gradient bytes over PCIe, per sample."""
    n: int = 1
    """Nodes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check(field.name, getattr(self, field.name))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Parameters":
        """The parameters from a mapping such as a JSON object; ``ValueError`` names what is missing, unknown or out
        of range.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(f"unknown parameter {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
        missing = [name for name in known if name not in values and name not in OPTIONAL]
        if missing:
            raise ValueError(f"missing parameter {', '.join(missing)}")
        return cls(**values)

    def data(self) -> dict[str, Any]:
        return asdict(self)


OPTIONAL = frozenset({"c_nw", "c_pcie", "n"})
_MAY_BE_ZERO = frozenset({"s_cache", "c_nw", "c_pcie"})


def check(name: str, value: object) -> None:
    """``ValueError`` for a value that the parameter of this name cannot have."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        # The values come from a file: all that is wrong in it is one error.
        raise ValueError(f"parameter {name} must be a number, not {value!r}")  # noqa: TRY004
    if not math.isfinite(value):
        raise ValueError(f"parameter {name} must be finite, not {value!r}")
    if value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
        wanted = "must not be negative" if name in _MAY_BE_ZERO else "must be positive"
        raise ValueError(f"parameter {name} {wanted}, and is {value!r}")
    if name == "n" and value != int(value):
        raise ValueError(f"parameter n counts nodes and must be a whole number, not {value!r}")


def gradient_bytes(
    model_bytes: float, *, nodes: int, accelerators: int, batch: int = 1, nvlink: NVLink = NVLink.NONE
) -> tuple[float, float]:
    """``c_nw`` and ``c_pcie``: what one sample's share of a ring reduction sends between and within nodes.

    A ring of k members sends 2 (k - 1) / k of the model each step. Between nodes the members are nodes, within a node
    its ``accelerators``; the paper's text names them the other way round, which would charge a single node's PCIe for
    nothing. ``batch``: samples a node takes in per step, over which the bytes are spread; 1 gives the paper's figures,
    which are per batch.
    """
    for name, value in (("nodes", nodes), ("accelerators", accelerators), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, and is {value!r}")
    if model_bytes < 0:
        raise ValueError(f"model_bytes must not be negative, and is {model_bytes!r}")
    between = 0.0 if nvlink is NVLink.CLUSTER else _ring(nodes) * model_bytes / batch
    within = _ring(accelerators) * model_bytes / batch if nvlink is NVLink.NONE else 0.0
    return between, within


def _ring(members: int) -> float:
    return 2 * (members - 1) / members
