"""What was counted of rules, in a table: so all collectors of a store answer the same, and one of them counts.

Rules are known by a hash. A claim is compare-and-set on a fence, as of a message: what was counted until a collector
died is kept, and another one goes on from there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from sqlalchemy import Connection, delete, func, select, update

from gradcanary_server import rules_json
from gradcanary_server.backtest import Count
from gradcanary_server.database import Record
from gradcanary_server.rows import insert_new
from gradcanary_server.rules import Rules
from gradcanary_server.schema import backtest

FOR_S = 600.0
"""How long counts hold: a run that goes on is another one each second."""

KEPT_S = 86_400.0
"""How long they are remembered after somebody tried these rules, or asked for what was then counted."""

KEPT = 16
"""Of so many rules, the ones that were tried last, beside those in force."""

LEASE_S = 30.0
"""How long a claim holds: who counts takes it anew every few seconds."""

State = Literal["waiting", "counting", "counted", "failed"]

_SHAPE = " ".join(each.name for each in fields(Count))


@dataclass(frozen=True)
class Found:
    """What was counted so far, by run; ``runs`` are the numbers of those to count, the newest first, and ``left`` how
    many of these are still to be counted in this round."""

    runs: Sequence[int] = ()
    left: int = 0
    counts: Mapping[int, Count] = field(default_factory=dict)

    def among(self, runs: Sequence[int], left: int) -> Found:
        """Return what is known as a round begins."""
        return Found(runs, left, {number: each for number, each in self.counts.items() if number in runs})

    def plus(self, number: int, count: Count) -> Found:
        """Return it with one more run."""
        return replace(self, left=self.left - 1, counts={**self.counts, number: count})


@dataclass(frozen=True)
class Backtest:
    """What was counted of some rules, and ``at`` which moment (unix seconds) the last round ended."""

    state: State = "waiting"
    found: Found = field(default_factory=Found)
    at: float | None = None


@dataclass(frozen=True)
class Claim:
    """The right of one collector alone to count, for the length of a lease; ``found``: what is counted already."""

    name: str
    fence: int
    rules: str
    found: Found


def name_of(rules: Rules) -> str:
    """Return by what rules are known: counts that hold other things are others."""
    return hashlib.sha256(f"{_SHAPE}\n{rules_json.dump(rules)}".encode()).hexdigest()[:16]


def find(connection: Connection, name: str, now: float) -> Backtest | None:
    """Return what was counted of rules, None where they are forgotten."""
    if not name.isalnum():
        return None  # PostgreSQL cannot even be asked for some of what comes in an address
    row = connection.execute(select(backtest).where(backtest.c.name == name)).one_or_none()
    if row is None or now - row.asked > KEPT_S:
        return None
    return Backtest(_state(row, now), _parsed(row.found), row.ended)


def remember(connection: Connection, name: str, rules: Rules, now: float, in_force: str) -> None:
    """Remember rules that somebody tries, and forget what was asked for too long ago, and trials that are too many:
    not the rules ``in_force``, nor what is being counted.
    """
    connection.execute(delete(backtest).where(backtest.c.asked < now - KEPT_S))
    values = {"name": name, "rules": rules_json.dump(rules), "asked": now, "found": _text(Found())}
    if not insert_new(connection, backtest, values):
        connection.execute(update(backtest).where(backtest.c.name == name).values(asked=now))
    tried = select(backtest.c.name).where(backtest.c.name != in_force)
    last = tried.order_by(backtest.c.asked.desc(), backtest.c.name).limit(KEPT)
    is_counted = func.coalesce(backtest.c.lease_until, 0.0).between(now, now + LEASE_S)
    connection.execute(
        delete(backtest).where(backtest.c.name.not_in([*connection.scalars(last), name, in_force]), ~is_counted)
    )


def claim(connection: Connection, name: str, now: float) -> Claim | None:
    """Take the right to count; None where it is no time for that, or another collector does."""
    row = connection.execute(select(backtest).where(backtest.c.name == name).with_for_update()).one_or_none()
    if row is None or _state(row, now) != "waiting":
        return None
    mine = update(backtest).where(backtest.c.name == name)
    connection.execute(mine.values(fence=row.fence + 1, lease_until=now + LEASE_S, asked=now))
    return Claim(name, row.fence + 1, row.rules, _parsed(row.found))


def keep(connection: Connection, claim: Claim, found: Found, now: float) -> bool:
    """Note what is counted so far, and go on; tell whether the claim still holds."""
    return _note(connection, claim, found=_text(found), lease_until=now + LEASE_S)


def release(connection: Connection, claim: Claim, found: Found) -> bool:
    """Leave the rest to another collector; tell whether the claim still held."""
    return _note(connection, claim, found=_text(found), lease_until=None)


def conclude(connection: Connection, claim: Claim, found: Found, now: float, *, is_whole: bool) -> bool:
    """Note that a round is over, and whether it came to its end; tell whether the claim still held."""
    return _note(connection, claim, found=_text(found), lease_until=None, ended=now, asked=now, is_whole=is_whole)


def _note(connection: Connection, claim: Claim, **values: object) -> bool:
    mine = (backtest.c.name == claim.name, backtest.c.fence == claim.fence)
    return connection.execute(update(backtest).where(*mine).values(**values)).rowcount == 1


def _state(row: Record, now: float) -> State:
    # What is further ahead than it could be was written before the clock was set back.
    if row.lease_until is not None and now < row.lease_until <= now + LEASE_S:
        return "counting"
    if row.ended is None or not 0.0 <= now - row.ended <= FOR_S:
        return "waiting"
    return "counted" if row.is_whole else "failed"


def _text(found: Found) -> str:
    counts = {number: asdict(each) for number, each in found.counts.items()}
    return json.dumps({"runs": list(found.runs), "left": found.left, "counts": counts})


def _parsed(text: str) -> Found:
    said = json.loads(text)
    return Found(said["runs"], said["left"], {int(number): read(each) for number, each in said["counts"].items()})


def read(said: Mapping[str, Any]) -> Count:
    """Return a count of its JSON."""
    return Count(**{**said, "matched": tuple(said["matched"])})
