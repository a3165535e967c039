"""Names of parameters without what all names of a model share: ``base_model.model.``, ``.default.weight``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gradcanary import wording

_PIECE = re.compile(r"[^.]{0,32}\.|[^.]{1,32}\Z|[^.]{0,31}_|[^.]{1,32}")
"""A part of a name with its dot; of a part that is too long for a narrow column, what ends behind an underscore."""


@dataclass(frozen=True)
class Common:
    """The beginning and the end that all names of a model share, in whole parts between dots."""

    prefix: str = ""
    suffix: str = ""

    @classmethod
    def of(cls, names: Iterable[str]) -> Common:
        """Return what the names of all parameters of a model share."""
        return cls(*wording.shared_ends(names))

    def short(self, name: str) -> str:
        """Return a name without what it shares with all others; a name of another model stays as it is."""
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return name
        return name[len(self.prefix) : len(name) - len(self.suffix)] or name

    def split(self, name: str) -> tuple[str, list[str], str]:
        """Return a name as its shared beginning, the pieces after which a line may end, and the shared end."""
        short = self.short(name)
        shared = ("", "") if short == name else (self.prefix, self.suffix)
        return shared[0], _PIECE.findall(short), shared[1]


NOTHING_COMMON = Common()
