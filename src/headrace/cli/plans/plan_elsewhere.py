"""Report of ``headrace plan`` on ``remote=``: CPUs of other hosts for what this one's cannot make, with the figures."""

import math
from typing import Any

from headrace.plan.parameters import Parameters


def computed(given: Parameters, own: dict[str, Any], lanes: int | None) -> dict[str, Any] | None:
    """The figures for ``--json``; None where the CPUs set no pace. ``own``: what the loader gives by itself.

    ``lanes``: those whose rate ``t_da`` is, where that is known.
    """
    if own["limit"] not in {"cpu", "lanes"} or own["throughput"] >= given.t_gpu:
        return None
    share = (given.t_gpu - own["throughput"]) / given.t_da
    return {"of_own": share, "cpus": None if lanes is None else math.ceil(share * lanes), "throughput": given.t_gpu}


def told(found: dict[str, Any]) -> str:
    """The words for people."""
    number = "..." if found["cpus"] is None else found["cpus"]
    share = f"{found['of_own']:.2g} times as many CPUs as this node's"
    count = "" if found["cpus"] is None else f", {found['cpus']} of them"
    return (
        f"The training takes {found['throughput']:,.0f} samples/s, and CPUs set the pace. What is short, "
        f"{share}{count}, can be other hosts': remote=headrace.Ray(cpus={number})."
    )
