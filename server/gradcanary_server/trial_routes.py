"""What rules would have said of the last runs, over HTTP: those in force, and others that somebody tries."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import cast

import yaml
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from gradcanary import wire
from gradcanary_server import bodies, rules_file
from gradcanary_server.answer_shapes import answered
from gradcanary_server.backtest import Count
from gradcanary_server.backtest_rows import Backtest
from gradcanary_server.backtests import Backtests
from gradcanary_server.errors import RequestError, RulesError, invalid
from gradcanary_server.requests import Reader, check_text
from gradcanary_server.rules import Rules
from gradcanary_server.timestamps import timestamp
from gradcanary_server.trial_shapes import BacktestShape, OutcomeOfRun

MAX_TEXT = 64_000
MAX_DEPTH = 100
NAME = "rules.yaml"

router = APIRouter(prefix="/api/v1")


@dataclass(frozen=True)
class Wish(wire.Request):
    """The text of a rules.yaml that somebody tries."""

    text: str


_WISH = Reader(Wish)


@router.get("/rules/backtest", responses=answered("backtest"))
def backtest(request: Request) -> JSONResponse:
    """Answer what the rules in force would have said of the runs heard of last: counted anew each ten minutes at most,
    in a process of its own, for as long as somebody asks."""
    return JSONResponse(_shown(None, _backtests(request).present()))


@router.post("/rules/trials", status_code=201, responses=answered("backtest", 201))
async def try_rules(request: Request) -> JSONResponse:
    """Begin to count what other rules would have said; that changes nothing, and is asked for by its ``id``."""
    wish = _WISH.read(await bodies.read(request))
    check_text(wish.text, "text", MAX_TEXT, shortest=1, lines=True)
    return JSONResponse(await run_in_threadpool(_try, request, wish.text), 201)


@router.get("/rules/trials/{name}", responses=answered("backtest"))
def show_trial(request: Request, name: str) -> JSONResponse:
    """Answer what rules that were tried would have said, as far as that is counted."""
    return JSONResponse(_shown(name, _tried(request, name)))


def _try(request: Request, text: str) -> BacktestShape:
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
        raise RequestError(404, "unknown_trial", "These rules are forgotten: try them again.", "trial")
    return found


def _shown(name: str | None, backtest: Backtest) -> BacktestShape:
    found = backtest.found
    counts = [found.counts[number] for number in found.runs if number in found.counts]
    return {
        "id": name,
        "state": backtest.state,
        "runs": len(found.runs),
        "left": found.left,
        "at": timestamp(backtest.at),
        "messages": sum(each.messages for each in counts),
        "incidents": sum(each.incidents for each in counts),
        "outcomes": [_outcome(each) for each in counts],
    }


def _outcome(count: Count) -> OutcomeOfRun:
    return cast(OutcomeOfRun, {**asdict(count), "matched": list(count.matched)})


def _backtests(request: Request) -> Backtests:
    backtests: Backtests = request.app.state.backtests
    return backtests
