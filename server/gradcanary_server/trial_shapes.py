"""What is answered of rules that are tried, as types; see :mod:`gradcanary_server.run_shapes`."""

from __future__ import annotations

from typing import Annotated, get_args

from typing_extensions import TypedDict

from gradcanary_server.backtest_rows import State
from gradcanary_server.messages import Moment, Step
from gradcanary_server.run_shapes import Count, one_of


class OutcomeOfRun(TypedDict):
    """What rules would have said of one run at a ``revision``; ``by_rule`` counts messages.

    ``is_whole``: all samples were played. ``gone_before``: the step before which single samples are gone. ``matched``:
    how many layers each entry of ``layers`` holds for.
    """

    run: str
    revision: Count
    incidents: Count
    messages: Count
    by_rule: dict[str, int]
    layers: Count
    samples: Count
    first_step: Step | None
    last_step: Step | None
    is_whole: bool
    gone_before: Step | None
    matched: list[int]


class BacktestShape(TypedDict):
    """What rules would have said so far; ``id`` is null of those in force.

    Of ``runs`` runs ``left`` are still to be played; ``at``: when the last round ended.
    """

    id: str | None
    state: Annotated[str, one_of(*get_args(State))]
    runs: Count
    left: Count
    at: Moment | None
    messages: Count
    incidents: Count
    outcomes: list[OutcomeOfRun]
