"""The query of the list of runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

STATES = ("live", "stale", "silent", "detached", "finished", "crashed")
SORTS = {"last_seen": "heard of last", "created": "newest", "name": "name"}
"""The orders of the list; the first is the default."""

PER_PAGE = 25
MAX_TEXT = 100


@dataclass(frozen=True)
class Listing:
    """Words in a run's name, tags or note, its state, the order, the archive, and the ``after`` of the page."""

    text: str = ""
    state: str | None = None
    sort: str = "last_seen"
    is_archived: bool = False
    after: str | None = None

    @property
    def is_everything(self) -> bool:
        """True if the list has all runs outside the archive."""
        return self == Listing(sort=self.sort)

    def question(self) -> dict[str, str | int]:
        """Return the parameters for the collector."""
        asked = {**self._parts(), "text": " ".join(self.text.split()), "archived": "true" if self.is_archived else ""}
        return {"limit": PER_PAGE, **{key: value for key, value in asked.items() if value}}

    def url(self, *, after: str | None) -> str:
        """Return the address of the same list for another page."""
        parts = {**self._parts(), "after": after}
        search = urlencode({key: value for key, value in parts.items() if value})
        return f"/?{search}" if search else "/"

    def _parts(self) -> dict[str, str | None]:
        sort = None if self.sort == "last_seen" else self.sort
        archived = "1" if self.is_archived else None
        return {"text": self.text, "state": self.state, "sort": sort, "archived": archived, "after": self.after}


def parse(search: str | None) -> Listing:
    """Return the listing of a query string; invalid parameters are ignored."""
    query = {key: values[0] for key, values in parse_qs((search or "").removeprefix("?")).items()}
    state, sort = query.get("state"), query.get("sort", "")
    return Listing(
        text=query.get("text", "")[:MAX_TEXT],
        state=state if state in STATES else None,
        sort=sort if sort in SORTS else "last_seen",
        is_archived=query.get("archived") == "1",
        after=query.get("after"),
    )
