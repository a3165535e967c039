"""Routes of rules: the ones in force, and a trial of others on the last runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, TypeAlias, get_args

import yaml
from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from typing_extensions import NotRequired, TypedDict

from gradcanary_server.api.http import JsonRoute, json_response
from gradcanary_server.api.models import Count
from gradcanary_server.api.services import BacktestsDep, ServicesDep
from gradcanary_server.errors import RulesError, invalid
from gradcanary_server.ops.backtests import NDJSON, BacktestResponse
from gradcanary_server.rules import config_file
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.descriptions import RuleDescription, describe
from gradcanary_server.validation import Body, Step, check_text


class TrialProgress(TypedDict):
    """``played`` of ``runs`` runs were played; repeated each second. ``runs`` is null until they are counted."""

    kind: Literal["progress"]
    runs: Count | None
    played: Count


class MatchOfEntry(TypedDict):
    """An entry of ``layers``: the number of runs with a layer that it matches, and the most layers of one run."""

    match: str
    layers: Count
    runs: Count


class TrialTotal(TypedDict):
    """The incidents and messages of all runs under one set of rules, and the matches of its ``layers``."""

    incidents: Count
    messages: Count
    entries: list[MatchOfEntry]


class CountOfRun(TypedDict):
    """The incidents and messages of one run under one set of rules; ``by_rule`` counts messages."""

    incidents: Count
    messages: Count
    by_rule: dict[str, int]


class TrialTotals(TypedDict):
    """Totals under the rules in force, and under the tried ones."""

    in_force: TrialTotal
    tried: NotRequired[TrialTotal]


class CountsOfRun(TypedDict):
    """Counts under the rules in force, and under the tried ones."""

    in_force: CountOfRun
    tried: NotRequired[CountOfRun]


class OutcomeOfRun(TypedDict):
    """A replayed run. ``is_whole``: all samples were played; single samples before ``raw_start_step`` are deleted."""

    run: str
    layers: Count
    samples: Count
    first_step: Step | None
    last_step: Step | None
    is_whole: bool
    raw_start_step: Step | None
    counts: CountsOfRun


class TrialResult(TypedDict):
    """The last line: ``played`` of ``runs`` runs could be played in time."""

    kind: Literal["result"]
    runs: Count
    played: Count
    totals: TrialTotals
    outcomes: list[OutcomeOfRun]


class TrialError(TypedDict):
    """The last line if there is no result."""

    kind: Literal["error"]
    code: str
    message: str


TrialLine: TypeAlias = TrialProgress | TrialResult | TrialError

MAX_TEXT = 64_000
MAX_DEPTH = 100
NAME = "rules.yaml"

router = APIRouter(prefix="/api/v1", route_class=JsonRoute)

# FastAPI writes itemSchema for generators only; for a Response it adds just the models to the document.
_LINE = {"anyOf": [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in get_args(TrialLine)]}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Lines of JSON, each of this schema.", "content": {NDJSON: {"itemSchema": _LINE}}}
}


@dataclass(frozen=True)
class RulesInForce(Rules):
    """The rules of a collector, their version in its store, their file, and what each rule means in words."""

    rules_version: int | None = None
    file: str | None = None
    descriptions: dict[str, RuleDescription] = field(default_factory=dict)


class TrialCreate(Body):
    """The text of a rules.yaml to try; without it only the rules in force are played."""

    text: str | None = None


@router.get("/rules", response_model=RulesInForce)
def show_rules(services: ServicesDep) -> Response:
    """Answer the rules of this collector, their version in this store, their file, and what each rule means."""
    file = None if services.settings.rules is None else str(services.settings.rules)
    version = services.ingest.rule_versions.current
    described = describe(services.rules)
    return json_response({**vars(services.rules), "rules_version": version, "file": file, "descriptions": described})


@router.post("/rules/trials", response_class=StreamingResponse, response_model=TrialLine, responses=_LINES)
async def try_rules(backtests: BacktestsDep, trial: TrialCreate) -> BacktestResponse:
    """Replay the last runs under these rules and those in force; answer lines of JSON, the last with the result.

    It changes nothing.
    """
    if trial.text is not None:
        check_text(trial.text, "text", MAX_TEXT, shortest=1, lines=True)
    tried = None if trial.text is None else await run_in_threadpool(_parse, trial.text)
    return await backtests.begin(tried)


def _parse(text: str) -> Rules:
    if _depth(text) > MAX_DEPTH:
        raise invalid(f"{NAME}: brackets are nested more than {MAX_DEPTH} deep.", "text")
    try:
        # Nested aliases can grow exponentially.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise invalid(f"{NAME}: write out what *alias stands for.", "text")
    except (ValueError, yaml.YAMLError, RecursionError):
        pass  # the parser below names the line
    try:
        return config_file.parse(text, NAME)
    except RulesError as error:
        raise invalid(str(error), "text") from error


def _depth(text: str) -> int:
    """Return the depth of nested brackets, also in expressions: the parser takes time in its square."""
    steps = (1 if bracket in "[{" else -1 for bracket in text if bracket in "[]{}")
    return max(accumulate(steps), default=0)
