"""What an attached process says of itself: what it trains, and what of that can be seen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gradcanary.frameworks import chosen, unwrapped
from gradcanary.groups import elements, parameters
from gradcanary.layers import living
from gradcanary.readings import LOW
from gradcanary.version import __version__

if TYPE_CHECKING:
    from gradcanary.attach.late_watch import LateWatch
    from gradcanary.observer import Observer
    from gradcanary.readings import Row
    from gradcanary.sender import Sender

MOST_NAMES = 1000


def optimizers() -> list[dict[str, Any]]:
    """Return what optimizers live in this process, the largest first; one pass over the garbage collector's objects."""
    found = {id(each): each for each in map(unwrapped, living(torch.optim.Optimizer))}.values()
    said = [
        {"kind": type(each).__name__, "tensors": len(parameters(each)), "elements": elements(each)} for each in found
    ]
    return sorted((each for each in said if each["tensors"]), key=lambda each: -int(each["elements"]))


def of(watch: LateWatch) -> dict[str, Any]:
    """Return what is known of a watch by now.

    ``layers`` is None until an optimizer has stepped, ``k`` and ``low`` until a whole window was seen, ``is_heard``
    until the collector took, or did not take, what was sent.
    """
    session = watch._session  # noqa: SLF001 -- one package: what it says of itself is nobody else's to read
    observer, sender = session.observer, session.sender
    return {
        "run": watch.run,
        "url": watch.url,
        "agent": __version__,
        "launch": watch.launch,
        "rank": observer.place.rank,
        "world_size": observer.place.world_size,
        "is_silent": observer.place.is_silent,
        "unseen": [fact.text for fact in observer.facts],
        "is_heard": None if sender is None else sender.is_heard,
        "is_barred": sender is not None and sender.is_barred,
        **trained_and_measured(observer, sender),
    }


def trained_and_measured(observer: Observer, sender: Sender | None) -> dict[str, Any]:
    """Return what is known of the layers and of the latest window by now; None as in :func:`of`."""
    return {**_trained(observer), **_measured(observer, sender)}


def _trained(observer: Observer) -> dict[str, Any]:
    origin, layers = observer.origin, observer.layers
    if origin is None or layers is None:
        return {"layers": None}
    every = layers.layer_set.layers
    kinds = [layer.param_dtype for layer in every]
    return {
        "layers": len(every),
        "elements": sum(math.prod(layer.shape) for layer in every),
        "dtypes": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "optimizer": origin.optimizer,
        "framework": chosen(layers.framework, origin.loop),
        "step": observer.step,
        "step_source": origin.source,
        "every": observer.meter.every,
    }


def _measured(observer: Observer, sender: Sender | None) -> dict[str, Any]:
    row, origin = None if sender is None else sender.latest, observer.origin
    if row is None or origin is None or observer.layers is None or row.step <= origin.first_step:
        return {"k": None, "low": None}
    return {"k": row.micro_steps, "low": _low(row), "accumulators": _accumulators(row)}


def _low(row: Row) -> list[str]:
    """Return the layers whose gradients are under what the rules call low."""
    column = row.columns.get("absmax")
    if column is None:
        return []
    every = row.layer_set.layers
    places = range(len(every)) if column.layers is None else column.layers
    low = [place for place, value in zip(places, column.values, strict=True) if value < LOW]
    return [every[place].name for place in low[:MOST_NAMES]]


def _accumulators(row: Row) -> dict[str, int]:
    stored = [each[1] for each in row.accumulators if each is not None and each[1] is not None]
    return {kind: stored.count(kind) for kind in sorted(set(stored))}
