"""The wall between the agent and the training: an error of the agent is logged once, counted, and goes no further."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradcanary import settings, wire
from gradcanary.wording import count

if TYPE_CHECKING:
    from torch import Tensor


log = logging.getLogger("gradcanary")


MOST_FACTS = 8
MOST_LINES = 1000
"""Lines and faults that one session prints."""

FAULT = "{where} failed in gradcanary: {error}. The training went on untouched; numbers may be missing."
LOGGED = "gradcanary: %s failed; the training goes on without it"
CAUGHT = "something in gradcanary failed {times}; the training went on untouched, numbers may be missing"

MAX_ERROR = 1000
Failed = Callable[[str, Exception], None]


class Guard:
    """Counts the errors of the agent; ``facts`` report the first error of each place.

    ``last`` is the text of the most recent error. The error itself has the frames of the sample that failed, and with
    them all its gradients.
    """

    def __init__(self) -> None:
        self.caught = 0
        self.last: str | None = None
        self.facts: list[wire.Fact] = []
        self._reported: set[str] = set()

    def catch(self, where: str, error: BaseException) -> None:
        """Count an error; log it with its stack the first time that it comes from ``where``."""
        self.caught += 1
        self.last = describe(error)
        if where in self._reported or len(self._reported) >= MOST_LINES:
            return
        self._reported.add(where)
        if len(self.facts) < MOST_FACTS:
            self.facts.append(wire.Fact("agent_fault", FAULT.format(where=where, error=self.last), ()))
        with contextlib.suppress(Exception):  # the handlers of the training's logging may raise
            _log_with_stack(LOGGED, where, error)

    def wrap(self, where: str, function: Callable[..., object]) -> Callable[..., None]:
        """Return a hook that calls the function, returns None and never raises."""

        def guarded(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- torch's hooks have several signatures
            try:
                function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 -- the one place: no error of the agent may reach the training loop
                self.catch(where, error)

        return guarded

    def print_caught(self) -> None:
        """Print the number of errors, if there were any."""
        if self.caught:
            self._print(CAUGHT.format(times=count(self.caught, "time")))

    def print_once(self, line: str, **gaps: object) -> None:
        """Print a line on stderr, once per session however its gaps are filled: ``{name}`` for each of ``gaps``."""
        if line in self._reported or len(self._reported) >= MOST_LINES:
            return
        self._reported.add(line)
        self._print(line.format(**gaps) if gaps else line)

    def _print(self, line: str) -> None:
        if sys.stderr is None or getattr(sys.stderr, "closed", False):
            return
        try:
            print(f"gradcanary: {line}", file=sys.stderr, flush=True)  # noqa: T201 -- for the user at the terminal
        except Exception as error:  # noqa: BLE001 -- a closed stderr is no reason to stop a training
            self.catch("stderr", error)


def _log_with_stack(message: str, where: str, error: BaseException) -> None:
    """Log an error with its stack as text.

    A handler may store a record, or print the local variables of its frames. Either would reach the gradients: it keeps
    them alive, or waits for the device to print them.
    """
    if not log.isEnabledFor(logging.ERROR):
        return
    record = log.makeRecord(log.name, logging.ERROR, __file__, 0, message, (where,), None)
    record.exc_text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    log.handle(record)


def describe(error: BaseException | None) -> str | None:
    """Return an error in one printable line."""
    if error is None:
        return None
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 -- an error without a text must not raise another one
        text = type(error).__name__
    return settings.UNPRINTABLE.sub(" ", text)[:MAX_ERROR]


def reraise(_where: str, error: Exception) -> None:
    """Raise the error: for a caller that has no other layers to measure."""
    raise error


@contextmanager
def reporting(failed: Failed, what: str, tensor: Tensor) -> Iterator[None]:
    """Pass an error to ``failed``, with the dtype and the device."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- one device may fail while the others have numbers
        failed(f"{what} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}", error)
