"""The wall between the agent and the training run: what fails in here is logged once, counted, and goes no further."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Any

from gradcanary import wire
from gradcanary.endings import told

log = logging.getLogger("gradcanary")


MOST_FACTS = 8
FAULT = "{where} failed in gradcanary: {error}. The training went on untouched; numbers may be missing."
CAUGHT = "something in gradcanary failed {count} {times}; the training went on untouched, numbers may be missing"


class Guard:
    """Counts what went wrong inside the agent; ``last`` is the most recent error, ``facts`` tell of the first of each
    place."""

    def __init__(self) -> None:
        self.caught = 0
        self.last: BaseException | None = None
        self.facts: list[wire.Fact] = []
        self._told: set[str] = set()

    def catch(self, where: str, error: BaseException) -> None:
        """Count an error; log it with its stack the first time that it comes from ``where``."""
        self.caught += 1
        self.last = error
        if where in self._told:
            return
        self._told.add(where)
        if len(self.facts) < MOST_FACTS:
            self.facts.append(wire.Fact("agent_fault", FAULT.format(where=where, error=told(error)), ()))
        with contextlib.suppress(Exception):  # the host's logging is not ours to trust
            log.error("gradcanary: %s failed; the training goes on without it", where, exc_info=error)

    def wrap(self, where: str, function: Callable[..., object]) -> Callable[..., None]:
        """Return a hook that calls the function, returns None and never raises."""

        def guarded(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- torch's hooks take what they like
            try:
                function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 -- the one place: nothing of ours may reach the training loop
                self.catch(where, error)

        return guarded

    def say_caught(self) -> None:
        """Say how often it was, if ever."""
        if self.caught:
            self.say(CAUGHT.format(count=self.caught, times="time" if self.caught == 1 else "times"))

    def say(self, line: str) -> None:
        """Print a line on stderr, once per session."""
        if line in self._told:
            return
        self._told.add(line)
        try:
            print(f"gradcanary: {line}", file=sys.stderr, flush=True)  # noqa: T201 -- spoken to the person at the terminal
        except Exception as error:  # noqa: BLE001 -- a closed stderr is no reason to stop a training
            self.catch("stderr", error)
