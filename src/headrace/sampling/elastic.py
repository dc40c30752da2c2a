"""States of all ranks of one moment, made one rank's state, whatever the number of ranks then and now."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import StateMismatch
from headrace.engine.ordering.saved import checked, pending, sealed
from headrace.sampling.planned import Left


def taken_up(sampler: Any, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of this rank in the epoch that these states left. Raises ``StateMismatch``.

    What none of them delivered is delivered once, by one of the ranks that take them up; each of those is given the
    same states, in any order.
    """
    if not states:
        raise StateMismatch("load_state_dict(states): there are none")
    every = [checked(state) for state in states]
    going = [state for state in every if not state["finished"]]
    if not going:
        if len({state["epoch"] for state in every}) > 1:
            raise StateMismatch("load_state_dict(states): they are not all of one epoch")
        return every[0]
    if sampler is None:
        raise StateMismatch(
            "load_state_dict(states): several states are taken up by a loader that divides its epochs itself: "
            "DataLoader(ranks=headrace.Ranks())"
        )
    if any("of" not in state.get("order", {}).get("sampler", {}) for state in going):
        raise StateMismatch(
            "load_state_dict(states): not all of them are of loaders that divide their epochs themselves"
        )
    if len({state["epoch"] for state in going}) > 1:
        raise StateMismatch("load_state_dict(states): they are not all of one epoch")
    try:
        order = sampler.take_up([_left(state) for state in going], finished=len(every) - len(going))
    except StateMismatch:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StateMismatch(f"load_state_dict(states): the order in one of them makes no sense: {error!r}") from error
    first = min(going, key=lambda state: state["order"]["sampler"]["of"][-1])  # the same for all who are given these
    fresh = {"drawn": 0, "digest": 0, "sampler": order, "exhausted": False}
    kept = {name: value for name, value in first.items() if name != "checksum"}
    return sealed({**kept, "yielded": 0, "pending": [], "order": fresh})


def divided(sampler: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The state for a loader that divides its epochs: another's part cannot be gone on from, and all of an epoch
    can.

    Raises ``StateMismatch``.
    """
    saved = state.get("order", {}).get("sampler") if not state["finished"] else None
    if sampler is None or not isinstance(saved, dict) or "of" not in saved or saved["of"] == sampler.identity:
        return state
    rank, world, _ = saved["of"][-1]
    if world == 1:
        return taken_up(sampler, [state])
    raise StateMismatch(
        f"load_state_dict(state): it is of rank {rank} of {world}, and has that rank's part of the epoch: give the "
        f"states of all {world} ranks, as a list, to every rank that goes on"
    )


def _left(state: Mapping[str, Any]) -> Left:
    order, batch = state["order"], state["loader"]["batch_size"]
    sampler, waiting = order["sampler"], [index for group in pending(state) for index in group]
    if order.get("exhausted"):  # the sampler's own state is that of its next epoch
        return Left({**sampler, "epoch": max(0, sampler["epoch"] - 1)}, waiting, is_drawn=True)
    # It may have been taken some items before.
    return Left({**sampler, "yielded": sampler["yielded"] + order.get("again", 0) * (batch or 1)}, waiting)
