"""Arrays with one entry per layer, which grow with the layers of a run. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


class PerLayer:
    """A dataclass of arrays [N] by layer number."""

    @classmethod
    def none(cls, layers: int) -> Self:
        """Return what is known of layers that were never seen."""
        raise NotImplementedError

    def copy(self) -> Self:
        """Return arrays that can be moved without moving these."""
        return type(self)(*(array.copy() for array in self.arrays()))

    def widen(self, layers: int) -> Self:
        """Return these arrays with room for more layers."""
        wider = self.none(layers)
        for old, new in zip(self.arrays(), wider.arrays(), strict=True):
            new[: len(old)] = old
        return wider

    def forget(self, columns: NDArray[np.int64] | slice) -> None:
        """Forget everything of these layers."""
        nothing = self.none(1)
        for array, empty in zip(self.arrays(), nothing.arrays(), strict=True):
            array[columns] = empty[0]

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return what it holds, in a fixed order."""
        return tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]  # its classes are
