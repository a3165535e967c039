"""What rules would have said of the last runs, over HTTP: those in force, and others that somebody tries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import yaml
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from gradcanary import wire
from gradcanary_server import bodies, rules_file
from gradcanary_server.backtest import Count
from gradcanary_server.backtests import Backtest, Backtests, State
from gradcanary_server.errors import RequestError, RulesError, invalid
from gradcanary_server.requests import Reader, check_text
from gradcanary_server.rules import Rules
from gradcanary_server.timestamps import timestamp

MAX_TEXT = 64_000
MAX_DEPTH = 100
NAME = "rules.yaml"

router = APIRouter(prefix="/api/v1")


@dataclass(frozen=True)
class Wish(wire.Request):
    """The text of a rules.yaml that somebody tries."""

    text: str


_WISH = Reader(Wish)


@dataclass(frozen=True)
class Counted:
    """What rules would have said so far; ``id`` is None of those in force.

    Of ``runs`` runs ``left`` are still to be played; ``at``: when the last round ended.
    """

    id: str | None
    state: State
    runs: int
    left: int
    at: str | None
    messages: int
    incidents: int
    outcomes: tuple[Count, ...]


@router.get("/rules/backtest")
def backtest(request: Request) -> Counted:
    """Answer what the rules in force would have said of the runs heard of last: counted anew each ten minutes at most,
    in a process of its own, for as long as somebody asks."""
    return _shown(None, _backtests(request).present())


@router.post("/rules/trials", status_code=201)
async def try_rules(request: Request) -> Counted:
    """Begin to count what other rules would have said; that changes nothing, and is asked for by its ``id``."""
    wish = _WISH.read(await bodies.read(request))
    check_text(wish.text, "text", MAX_TEXT, shortest=1, lines=True)
    return await run_in_threadpool(_try, request, wish.text)


@router.get("/rules/trials/{name}")
def show_trial(request: Request, name: str) -> Counted:
    """Answer what rules that were tried would have said, as far as that is counted."""
    return _shown(name, _tried(request, name))


def _try(request: Request, text: str) -> Counted:
    name = _backtests(request).try_rules(_parsed(text))
    request.state.about = name
    return _shown(name, _tried(request, name))


def _parsed(text: str) -> Rules:
    if _depth(text) > MAX_DEPTH:
        raise invalid(f"{NAME}: brackets are nested more than {MAX_DEPTH} deep.", "text")
    try:
        # An alias stands for as much as anybody likes.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise invalid(f"{NAME}: write out what *alias stands for.", "text")
    except (ValueError, yaml.YAMLError, RecursionError):
        pass  # said below, with its line
    try:
        return rules_file.parse(text, NAME)
    except RulesError as error:
        raise invalid(str(error), "text") from error


def _depth(text: str) -> int:
    """Return how deep brackets are nested, those in expressions among them: the parser takes its square in time."""
    steps = (1 if each in "[{" else -1 for each in text if each in "[]{}")
    return max(accumulate(steps), default=0)


def _tried(request: Request, name: str) -> Backtest:
    found = _backtests(request).tried(name)
    if found is None:
        raise RequestError(404, "unknown_trial", "These rules are forgotten here: try them again.", "trial")
    return found


def _shown(name: str | None, found: Backtest) -> Counted:
    counts = [found.counts[number] for number in found.runs if number in found.counts]
    return Counted(
        id=name,
        state=found.state,
        runs=len(found.runs),
        left=found.left,
        at=timestamp(found.at),
        messages=sum(each.messages for each in counts),
        incidents=sum(each.incidents for each in counts),
        outcomes=tuple(counts),
    )


def _backtests(request: Request) -> Backtests:
    backtests: Backtests = request.app.state.backtests
    return backtests
