"""What the callbacks of all frameworks do: open a watch as a training begins, stop all ranks, close it at the end."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

from gradcanary.api import Watch, open_watches, watch
from gradcanary.guard import Guard
from gradcanary.hooks.agreement import Agreement, agree
from gradcanary.session import Session
from gradcanary.settings import Settings, check_watch

STOPS = "stop_on: the training is to end after this step, because of {incident}"


def harmless(event: Callable[..., None]) -> Callable[..., None]:
    """Return an event of a callback that never raises: an error would end the training."""

    @functools.wraps(event)
    def guarded(self: TrainingWatch, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- as the framework calls it
        try:
            event(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 -- no error of the agent may reach the training loop
            guard = Guard() if self._session is None else self._session.guard
            guard.catch(f"{type(self).__name__}.{event.__name__}", error)

    return guarded


class TrainingWatch:
    """A part of a callback. Takes the settings of ``watch()``; raises TypeError or ValueError on wrong ones."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 -- those of watch()
        super().__init__()
        inspect.signature(watch).bind(None, None, **settings)
        check_watch(None, None, settings.get("on_alert"))
        self._run = Settings.resolve(os.environ, **settings).run
        self.watch: Watch | None = None
        self._is_own = False
        self._settings = settings
        self._agreement: Agreement | None = None
        self._is_stopping = False

    @property
    def _session(self) -> Session | None:
        return None if self.watch is None else self.watch._session  # noqa: SLF001 -- of the agent, as this is

    def _begin(self, model: Any, optimizers: Sequence[Any], world_size: int) -> None:  # noqa: ANN401 -- the framework's
        """Watch a training whose optimizers exist, and whose checkpoint is loaded; an open watch of it is used."""
        earlier = open_watches()
        if any(each.follows_all and self._run in (None, each.run) for each in earlier):
            opened = watch(**self._settings)
        else:
            is_alone = len(optimizers) == 1 and not any(each.matches(model, None) for each in earlier)
            opened = watch(model, optimizers[0] if is_alone else None, **self._settings)
        is_new = all(opened is not each for each in earlier)
        self._is_own = is_new or (self._is_own and opened is self.watch)
        self.watch, self._is_stopping, self._agreement = opened, False, None
        if opened.stop_on is not None:
            self._agreement = agree(world_size, opened._session.guard)  # noqa: SLF001 -- as above

    def _should_stop(self) -> bool:
        """Return True if the training should end after this step, on all its ranks; print why, on rank 0."""
        if self.watch is None or self.watch.stop_on is None:
            return False
        wants = self.watch.should_stop
        is_stop = wants if self._agreement is None else self._agreement.poll(wants=wants)
        if is_stop and not self._is_stopping:
            self._is_stopping = True
            self._print(self.watch.stop_reason or "")
            self._print(STOPS.format(incident=self._stopping_incident()))
        return is_stop

    def _stopping_incident(self) -> str:
        """Return the rule, severity and number of the incident that ends the training."""
        return "" if self.watch is None else (self.watch.stop_reason or "").partition(":")[0]

    def _print(self, line: str) -> None:
        """Print a line, once and on rank 0."""
        if self._session is not None and self._session.recorder.rank.rank == 0:
            self._session.guard.print_once(line)

    def _end(self, error: BaseException | None = None) -> None:
        """Close a watch of its own, as crashed if there is an error."""
        if self._agreement is not None:
            self._agreement.close()
        if self.watch is None or not self._is_own:
            return
        if error is None:
            self.watch.close()
        else:
            self.watch.__exit__(type(error), error, error.__traceback__)
