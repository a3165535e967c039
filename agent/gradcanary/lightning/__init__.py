"""The callback for Lightning: ``Trainer(callbacks=[gradcanary.lightning.GradientMonitor()])``.

The one module that imports Lightning: the package that the script uses. ``import gradcanary`` does not import it.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any

from gradcanary.training_watch import TrainingWatch, harmless


def _callback() -> Any:  # noqa: ANN401 -- a class of the installed package
    if "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
        with suppress(ImportError):
            return importlib.import_module("lightning.pytorch").Callback
    return importlib.import_module("pytorch_lightning").Callback


class GradientMonitor(TrainingWatch, _callback()):  # type: ignore[misc]  # known only as this is imported
    """Watches the module from the first batch of each ``fit()`` on, and ends with it; ``watch`` is the present handle.

    Takes the settings of :func:`gradcanary.watch`, and raises TypeError or ValueError on wrong ones. If the script has
    opened a watch of this module, or of all optimizers, that one is used and stays open. With ``stop_on`` an incident
    ends ``fit()`` after a step, as Lightning's own callbacks do, on all ranks after the same one.
    """

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 -- as Lightning calls it
        """Begin: the optimizers exist and a checkpoint is loaded."""
        self._step = trainer.global_step
        self._begin(pl_module, trainer.optimizers, trainer.world_size)

    @harmless
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:  # noqa: ANN401 -- as Lightning calls it
        """Stop all ranks if an incident asks for it; not within an accumulation."""
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            trainer.should_stop = self._should_stop() or trainer.should_stop

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002 -- as Lightning calls it
        """Close the watch."""
        self._end()

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ANN401, ARG002 -- as Lightning calls it
        """Close the watch as crashed, with the error."""
        self._end(exception)
