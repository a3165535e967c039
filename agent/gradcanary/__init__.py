"""gradcanary watches the gradients of a PyTorch training, and says which layers stopped learning.

import gradcanary
gradcanary.watch()
"""

from __future__ import annotations

__version__ = "0.1.0"

from typing import TYPE_CHECKING

from gradcanary.api import Alert, Watch, step, watch

if TYPE_CHECKING:
    from gradcanary.fp32_sums import fp32_accumulators


__all__ = ["Alert", "Watch", "__version__", "fp32_accumulators", "step", "watch"]


def __getattr__(name: str) -> object:
    if name != "fp32_accumulators":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gradcanary.fp32_sums import fp32_accumulators  # only now: it imports torch

    return fp32_accumulators
