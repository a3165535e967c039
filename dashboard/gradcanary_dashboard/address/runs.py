"""The query of the list of runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlencode

STATES = ("live", "stale", "silent", "detached", "finished", "crashed")
SORTS = {
    "last_seen": "last seen",
    "created": "newest",
    "name": "name",
    "worst": "worst incident",
    "loss": "loss",
    "step": "step",
    "duration": "duration",
}
"""The orders of the list; the first is the default."""

GROUPS = ("state", "tag", "host")
"""What the runs of a page are grouped by."""

PER_PAGE = 50
PER_SECTION = 20
"""Runs that need attention on the first page; a link leads to all of them."""

MAX_TEXT = 100


@dataclass(frozen=True)
class Listing:
    """Words in a run's name, tags or note, its state, the order, the groups, the archive, the ``after`` of the page.

    ``needs_attention``: only the runs with a critical incident that nobody acknowledged.
    """

    text: str = ""
    state: str | None = None
    sort: str = "last_seen"
    is_reverse: bool = False
    group: str | None = None
    is_archived: bool = False
    needs_attention: bool = False
    after: str | None = None

    @property
    def is_everything(self) -> bool:
        """True if the list has all runs outside the archive."""
        return self == Listing(sort=self.sort, is_reverse=self.is_reverse, group=self.group)

    @property
    def has_section(self) -> bool:
        """True if the runs that need attention stand above the others: on the first page, and not in the archive."""
        return self.after is None and not self.is_archived and not self.needs_attention

    def question(self) -> dict[str, str | int]:
        """Return the parameters for the collector, for all runs of the list."""
        asked = {
            "text": " ".join(self.text.split()),
            "state": self.state,
            "sort": self.sort,
            "reverse": "true" if self.is_reverse else "",
            "archived": "true" if self.is_archived else "",
            "unacked": "true" if self.needs_attention else "",
            "after": self.after,
        }
        return {"limit": PER_PAGE, **{key: value for key, value in asked.items() if value}}

    def sections(self) -> tuple[dict[str, str | int] | None, dict[str, str | int]]:
        """Return the parameters for the runs that need attention, None if they have no section, and for the others."""
        if self.is_archived or self.needs_attention:
            return None, self.question()
        section = {**self.question(), "unacked": "true", "limit": PER_SECTION} if self.has_section else None
        return section, {**self.question(), "unacked": "false"}

    def sorted_by(self, sort: str) -> Listing:
        """Return the list in another order, from its beginning; in the same order it is turned round."""
        is_reverse = self.sort == sort and not self.is_reverse
        return replace(self, sort=sort, is_reverse=is_reverse, after=None)

    def url(self, *, after: str | None) -> str:
        """Return the address of the same list for another page."""
        parts = {
            "text": self.text,
            "state": self.state,
            "sort": None if self.sort == "last_seen" else self.sort,
            "reverse": "1" if self.is_reverse else None,
            "group": self.group,
            "archived": "1" if self.is_archived else None,
            "attention": "1" if self.needs_attention else None,
            "after": after,
        }
        search = urlencode({key: value for key, value in parts.items() if value})
        return f"/?{search}" if search else "/"


def parse(search: str | None) -> Listing:
    """Return the listing of a query string; invalid parameters are ignored."""
    query = {key: values[0] for key, values in parse_qs((search or "").removeprefix("?")).items()}
    state, sort, group = query.get("state"), query.get("sort", ""), query.get("group")
    return Listing(
        text=query.get("text", "")[:MAX_TEXT],
        state=state if state in STATES else None,
        sort=sort if sort in SORTS else "last_seen",
        is_reverse=query.get("reverse") == "1",
        group=group if group in GROUPS else None,
        is_archived=query.get("archived") == "1",
        needs_attention=query.get("attention") == "1",
        after=query.get("after"),
    )
