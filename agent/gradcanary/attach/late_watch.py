"""The watch of a training that runs already, in parts: each where it harms nothing there."""

from __future__ import annotations

from dataclasses import replace

from gradcanary import process_names, watching
from gradcanary.settings import Settings


class LateWatch(watching.Watch):
    """A watch that touches nothing before :meth:`begin`, and that can be left in steps: :meth:`take_off`,
    :meth:`settle`, :meth:`detach`. A ``watch()`` that the script comes to takes over, with its arguments."""

    def __init__(self, settings: Settings, unnamed: str, launch: str | None = None) -> None:
        """The run is called ``unnamed`` where nobody names it; without ``launch`` the environment says the launch."""
        process_names.call_unnamed(unnamed)
        super().__init__(replace(settings, step=None), None, None, None, is_automatic=True, begins=False)
        self._launch = launch

    def begin(self) -> None:
        """Watch from the next step on. Waits for nothing: no other thread gets its turn meanwhile."""
        try:
            self._attach(None, None, is_late=True)
        except BaseException:  # a signal's: half a watch is none
            self._session.take_off()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it was not closed, in this process."""
        return self._is_ours()

    @property
    def launch(self) -> str | None:
        """Its launch, known once it has begun where nobody gave it."""
        return self._launch

    def take_off(self) -> None:
        """Leave no hook and no replaced function behind; the last window, and what is left to be sent, come after."""
        if self._is_ours():
            self._session.take_off()

    def settle(self, timeout_s: float) -> None:
        """Hand over the last window, in the training's thread; ``timeout_s`` is for values that are on their way."""
        if self._is_ours():
            self._session.settle(timeout_s)

    def detach(self, timeout_s: float) -> None:
        """End the watch of a training that goes on, and send the rest for ``timeout_s`` at most."""
        self._close("detached", None, timeout_s)

    @property
    def is_settled(self) -> bool:
        """Whether nothing of the training is needed any more to close it."""
        return not self._is_ours() or self._session.is_settled

    @property
    def unsent(self) -> str | None:
        """What is to be said of that which the collector has not got, once it is closed; None where it has all."""
        sender = self._session.sender
        return None if sender is None else sender.unsent

    def _lives_on(self) -> bool:
        """In a forked child: it does not, only the process that was asked for has it."""
        self._session.forked()
        return False
