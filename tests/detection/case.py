"""What a case is: a training job, and what is true about it by its making."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from detection.job import Build

Every = int | Literal["auto"]
AUTO_EVERY = 100
SOON = 100
"""Observations within which a fault should be named."""

FAULTS: "list[Case]" = []
CONTROLS: "list[Case]" = []


@dataclass(frozen=True)
class Case:
    """A job and its truth.

    ``rule`` is what should be said of it, empty of a healthy one; ``layers`` a regular expression of the layers that
    it should be said of, empty where only the reading tells, or it is the whole run; ``since`` the step of the fault.
    ``truth`` names the reading that has to agree (``detection.truths``), empty where only the making tells. ``also``
    are rules that may speak, too, of a healthy job only of the layers of which ``truth`` holds. ``why`` is the reason
    of what is known to be wrong: it excuses a missed fault, and no message on a healthy job.

    ``instead`` are rules that name the same fault as well as ``rule`` does, ``cause`` the code of the cause that has
    to be found, ``severity`` the one that is right, ``within`` the observations after which it is late, and
    ``is_told`` asks for a message. Empty ones are not looked at.
    """

    name: str
    build: Build
    about: str
    rule: str = ""
    layers: str = ""
    since: int = 0
    truth: str = ""
    also: tuple[str, ...] = ()
    every: Every = 1
    why: str = ""
    instead: tuple[str, ...] = ()
    cause: str = ""
    severity: str = ""
    within: int = SOON
    is_told: bool = False

    @property
    def rules(self) -> frozenset[str]:
        """The rules of which one should speak."""
        return frozenset((self.rule, *self.instead))

    @property
    def interval(self) -> int:
        """Steps between two samples; what the agent makes of it by itself depends on the machine."""
        return AUTO_EVERY if self.every == "auto" else self.every

    @property
    def is_fault(self) -> bool:
        return bool(self.rule)


def fault(
    rule: str,
    layers: str = "",
    *,
    since: int = 0,
    truth: str = "",
    also: tuple[str, ...] = (),
    every: Every = 1,
    why: str = "",
    instead: tuple[str, ...] = (),
    cause: str = "",
    severity: str = "",
    within: int = SOON,
    is_told: bool = False,
) -> Callable[[Build], Build]:
    """Make a case of a job in which something goes wrong."""

    def add(build: Build) -> Build:
        said = Case(*_words(build), rule, layers, since, truth, also, every, why)
        FAULTS.append(replace(said, instead=instead, cause=cause, severity=severity, within=within, is_told=is_told))
        return build

    return add


def control(
    *, truth: str = "", also: tuple[str, ...] = (), every: Every = 1, why: str = ""
) -> Callable[[Build], Build]:
    """Make a case of a healthy job; rules in ``also`` may speak of what ``truth`` finds, ``why`` is the reason."""
    assert not also or (truth and why)

    def add(build: Build) -> Build:
        CONTROLS.append(Case(*_words(build), truth=truth, also=also, every=every, why=why))
        return build

    return add


def _words(build: Build) -> tuple[str, Build, str]:
    """Return name, build and what it is about: the first sentence of its docstring."""
    about = " ".join((build.__doc__ or "").split())
    return build.__name__.replace("_", "-"), build, about.rstrip(".")
