"""The callback for Lightning: ``Trainer(callbacks=[gradcanary.lightning.GradientMonitor()])``.

The one module that imports Lightning: the package that the script uses. ``import gradcanary`` does not import it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from contextlib import suppress
from typing import Any

from gradcanary.api import Watch, open_watches, watch
from gradcanary.settings import Settings, check_watch


def _callback() -> Any:  # noqa: ANN401 -- a class of the installed package
    if "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
        with suppress(ImportError):
            return importlib.import_module("lightning.pytorch").Callback
    return importlib.import_module("pytorch_lightning").Callback


class GradientMonitor(_callback()):  # type: ignore[misc]  # known only as this is imported
    """Watches the module from the first batch of each ``fit()`` on, and ends with it; ``watch`` is the present handle.

    Takes the settings of :func:`gradcanary.watch`, and raises TypeError or ValueError on wrong ones. If the script has
    opened a watch of this module, that one is used and stays open.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 -- those of watch()
        super().__init__()
        inspect.signature(watch).bind(None, None, **settings)
        check_watch(None, None, settings.get("on_alert"))
        Settings.resolve(os.environ, **settings)
        self.watch: Watch | None = None
        self._is_own = False
        self._settings = settings

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 -- as Lightning calls it
        """Begin: the optimizers exist and a checkpoint is loaded."""
        earlier = open_watches()
        is_alone = len(trainer.optimizers) == 1 and not any(each.matches(pl_module, None) for each in earlier)
        optimizer = trainer.optimizers[0] if is_alone else None
        self.watch = watch(pl_module, optimizer, **self._settings)
        self._is_own = not any(self.watch is each for each in earlier)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002 -- as Lightning calls it
        """Close the watch."""
        if self.watch is not None and self._is_own:
            self.watch.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ANN401, ARG002 -- as Lightning calls it
        """Close the watch as crashed, with the error."""
        if self.watch is not None and self._is_own:
            self.watch.__exit__(type(exception), exception, exception.__traceback__)
