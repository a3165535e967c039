"""gradcanary watches the gradients of a PyTorch training, and says which layers stopped learning.

import gradcanary
gradcanary.watch()
"""

from __future__ import annotations

__version__ = "1.0.0"

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcanary import integrations
    from gradcanary.api import Alert, Watch, step, watch
    from gradcanary.client import Client
    from gradcanary.fp32_copies import fp32_masters
    from gradcanary.fp32_sums import fp32_accumulators
    from gradcanary.training_config import TrainingConfig, create_stable_optimizer, setup_training


__all__ = [
    "Alert",
    "Client",
    "TrainingConfig",
    "Watch",
    "__version__",
    "create_stable_optimizer",
    "fp32_accumulators",
    "fp32_masters",
    "integrations",
    "setup_training",
    "step",
    "watch",
]

_LATER = {
    "Alert": "api",
    "Watch": "api",
    "step": "api",
    "watch": "api",
    "Client": "client",
    "fp32_accumulators": "fp32_sums",
    "fp32_masters": "fp32_copies",
    "TrainingConfig": "training_config",
    "create_stable_optimizer": "training_config",
    "setup_training": "training_config",
}
"""Names that are imported when they are used, and their modules: an import alone costs a program nothing."""


def __getattr__(name: str) -> object:
    if name == "integrations":
        return import_module("gradcanary.integrations")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"gradcanary.{_LATER[name]}"), name)
    globals()[name] = found  # step() is called in each step
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
