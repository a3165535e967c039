"""What may be said of an incident while some of its members are silenced; pure.

A silence hides members from whoever is told, not from the page. So an incident is told as if it had the others only:
one that has no other that fires says nothing, and says what is still true when the silence is over. What was told is
taken back in the end, whoever is silenced: a receiver that heard ``opened`` is owed ``resolved``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradcanary_server.incident_state import RANKS, Incident, Member
from gradcanary_server.pace import Told

Members = Mapping[int | None, Member]


@dataclass(frozen=True)
class Veil:
    """The members of an incident by layer_no (None: the whole run), and which of them a silence covers now."""

    members: Members
    covered: frozenset[int | None]

    def spoken_of(self, incident: Incident, told: Told | None) -> frozenset[int | None]:
        """Return the members that a message may name now; none where nothing may be said.

        1. While it is open, and for a first word: those not covered, if one of them fires. What recovered while it was
           silenced is left out.
        2. A resolution is owed to whoever heard that it was open, unless all members are covered.
        """
        uncovered = frozenset(self.members) - self.covered
        heard = frozenset(number for number in uncovered if not self.members[number].unheard)
        if incident.state == "resolved" and told is not None:
            return heard or uncovered
        return heard if any(self.members[number].until_step is None for number in heard) else frozenset()

    def firing(self) -> list[int | None]:
        """Return the members that fire."""
        return [number for number, member in self.members.items() if member.until_step is None]

    def firing_covered(self) -> list[int | None]:
        """Return the members that fire and are silenced."""
        return [number for number in self.covered if self.members[number].until_step is None]


class View(NamedTuple):
    """An incident as it may be told, and the members that this leaves out."""

    incident: Incident
    hidden: frozenset[int | None]


def view(incident: Incident, veil: Veil | None, told: Told | None) -> View | None:
    """Return what may be told of an incident to whom ``told`` was told; None while nothing may be."""
    if veil is None:
        return View(incident, frozenset())
    shown = veil.spoken_of(incident, told)
    return View(narrowed(incident, veil.members, shown), frozenset(veil.members) - shown) if shown else None


def is_owed(incident: Incident, told: Told | None) -> bool:
    """Tell whether something will have to be said once nothing is silenced any more."""
    return incident.state == "open" or (told is not None and told.kind != "resolved")


def narrowed(incident: Incident, members: Members, shown: Collection[int | None]) -> Incident:
    """Return an incident as if it had only the ``shown`` of its members, at least one."""
    if len(shown) == len(members):
        return incident
    chosen = [members[number] for number in shown]
    layers = [members[number] for number in shown if number is not None]
    return replace(
        incident,
        severity=max((member.severity for member in chosen), key=RANKS.__getitem__),
        since_step=min(member.since_step for member in chosen),
        firing=sum(member.until_step is None for member in layers),
        ever=len(layers),
    )


def aside(members: Members, hidden: Collection[int | None]) -> str:
    """Return a sentence that counts the hidden layers which fire, nothing where none does."""
    layers = sum(number is not None and members[number].until_step is None for number in hidden if number in members)
    if not layers:
        return ""
    return f" {layers:,} more {'layer is' if layers == 1 else 'layers are'} silenced."
