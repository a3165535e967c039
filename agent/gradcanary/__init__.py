"""gradcanary watches the gradients of a PyTorch training, and says which layers stopped learning.

import gradcanary
gradcanary.watch()
"""

from __future__ import annotations

__version__ = "0.1.0"

from typing import TYPE_CHECKING

from gradcanary.api import Alert, Watch, step, watch

if TYPE_CHECKING:
    from gradcanary.fp32_copies import fp32_masters
    from gradcanary.fp32_sums import fp32_accumulators


__all__ = ["Alert", "Watch", "__version__", "fp32_accumulators", "fp32_masters", "step", "watch"]


def __getattr__(name: str) -> object:
    # Only now: they import torch.
    if name == "fp32_accumulators":
        from gradcanary.fp32_sums import fp32_accumulators

        return fp32_accumulators
    if name == "fp32_masters":
        from gradcanary.fp32_copies import fp32_masters

        return fp32_masters
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
