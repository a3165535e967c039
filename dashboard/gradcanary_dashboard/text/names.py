"""Names of parameters without what all names of a model share: ``base_model.model.``, ``.default.weight``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True)
class Common:
    """The beginning and the end that all names of a model share, in whole parts between dots."""

    prefix: str = ""
    suffix: str = ""

    @classmethod
    def of(cls, names: Iterable[str]) -> Common:
        """Return what the names of all parameters of a model share.

        Of each name at least one part is left. No short name begins or ends with a number: ``blocks.0``, not ``0``.
        """
        parts = [name.split(".") for name in set(names)]
        if len(parts) < 2:
            return cls()
        backwards = [each[::-1] for each in parts]
        last = _shared(backwards)
        first = min(_shared(parts), min(map(len, parts)) - 1 - last)
        named = parts[0]
        return cls(
            prefix="".join(f"{part}." for part in named[:first] if first > 0),
            suffix="".join(f".{part}" for part in named[len(named) - last :]),
        )

    def short(self, name: str) -> str:
        """Return a name without what it shares with all others; a name of another model stays as it is."""
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return name
        return name[len(self.prefix) : len(name) - len(self.suffix)] or name


def _shared(names: Sequence[Sequence[str]]) -> int:
    """Return the number of parts that all names begin with; the next part is in none of them a number."""
    least, most = min(names), max(names)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(least, most, strict=False)))
    shared = min(shared, min(map(len, names)) - 1)
    while shared and any(each[shared].isdecimal() for each in names):
        shared -= 1
    return shared
