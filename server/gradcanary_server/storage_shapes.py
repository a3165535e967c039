"""What is answered of room on disk, as types; see :mod:`gradcanary_server.run_shapes`."""

from __future__ import annotations

from typing_extensions import TypedDict

from gradcanary_server.messages import Moment, Step
from gradcanary_server.run_shapes import Count


class WeightShape(TypedDict):
    """A run and what its measurements take; ``bytes`` is null of one that was not counted yet."""

    run: str
    bytes: Count | None
    step: Step | None
    last_seen: Moment
    archived: bool


class OthersShape(TypedDict):
    """The runs that are not listed."""

    runs: Count
    bytes: Count


class StorageShape(TypedDict):
    """What a store holds; ``raw_days``: how long single samples are kept, null for ever; ``counted``: when.

    ``raw_until``: before when none of them go, because the clock is not believed yet (:mod:`retention`).
    """

    raw_days: float | None
    raw_until: Moment | None
    bytes: Count
    counted: Moment
    runs: list[WeightShape]
    others: OthersShape
