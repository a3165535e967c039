"""The callback for Hugging Face's Trainer: ``Trainer(callbacks=[gradcanary.transformers.GradientCallback()])``.

The one module that imports transformers. ``import gradcanary`` does not import it.
"""

from __future__ import annotations

import importlib
from typing import Any

from gradcanary import wire
from gradcanary.export.stop_rule import describe
from gradcanary.model.parameters import live_objects
from gradcanary.settings import STOPPING
from gradcanary.training_watch import TrainingWatch, harmless

OPEN, WORST, WORDS = "gradcanary/open_incidents", "gradcanary/worst", "gradcanary/verdict"
"""Keys of the Trainer's log: two numbers, for reporters, too; and a text in ``log_history`` after a change."""

JUDGED_STEPS = 20
"""Of a resumed training: before the collector cannot tell if what an earlier launch left goes on."""

_trainer = importlib.import_module("transformers.trainer_callback")


class GradientCallback(TrainingWatch, _trainer.TrainerCallback):  # type: ignore[misc, name-defined]  # known only as this is imported
    """Watches the model from the first step of each ``train()`` on, and ends with it; ``watch`` is the present handle.

    Takes the settings of :func:`gradcanary.watch`, and raises TypeError or ValueError on wrong ones. If the script has
    opened a watch of this model, or of all optimizers, that one is used and stays open. While the collector answers,
    each log entry with a loss gets two numbers on rank 0, ``gradcanary/open_incidents`` (warnings and critical ones)
    and ``gradcanary/worst`` (0 none, 1 warning, 2 critical). What opens and what is over is a text in ``log_history``.
    With ``stop_on`` an incident ends ``train()`` after a step, on all ranks after the same one: the
    Trainer logs, saves if it saves by steps, and returns as at its last step.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 -- those of watch()
        super().__init__(**settings)
        self._answered: tuple[wire.Brief, ...] = ()
        self._open: dict[int, wire.Brief] = {}
        self._news: list[str] = []
        self._judged_from = 0

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:  # noqa: ANN401, ARG002 -- as the Trainer calls it
        """Begin: the optimizer exists and a checkpoint is loaded."""
        self._answered, self._open, self._news = (), {}, []
        self._judged_from = state.global_step + JUDGED_STEPS if state.global_step else 0
        self._begin(known["model"], [known["optimizer"]], args.world_size)
        self._come_first()

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401 -- as the Trainer calls it
        """Stop all ranks if an incident asks for it."""
        is_stop = self._should_stop()  # first: ranks that count steps differently would stop at different ones
        if state.is_world_process_zero:
            self._note_changes()
        if not is_stop:
            return
        if not control.should_training_stop:
            self._news.append(f"stopped because of {self._stopping_incident()}")
        control.should_training_stop = True
        control.should_log = control.should_log or args.logging_strategy == "steps"
        control.should_save = control.should_save or args.save_strategy == "steps"

    @harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ANN401, ARG002 -- as the Trainer calls it
        """Add the verdict to an entry with a loss: reporters, which come later, get the numbers."""
        if not (state.is_world_process_zero and logs and "loss" in logs and state.log_history):
            return
        self._note_changes()
        is_judged = state.global_step > self._judged_from or self._open
        entry, numbers = state.log_history[-1], self._verdict() if is_judged else {}
        logs.update(numbers)
        entry.update(numbers)
        if self._news:
            entry[WORDS] = "; ".join(self._news)
            self._news = []

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002 -- as the Trainer calls it
        """Close the watch."""
        self._end()

    def _come_first(self) -> None:
        """Come before the reporters, which have to see the numbers that this callback adds to a log entry."""
        for handler in live_objects(_trainer.CallbackHandler):
            if any(each is self for each in handler.callbacks):
                # Another list: the Trainer goes through the present one just now.
                handler.callbacks = [self, *(each for each in handler.callbacks if each is not self)]

    def _verdict(self) -> dict[str, int]:
        """Return the numbers of the open incidents, none while the collector does not answer: nothing is known then."""
        sender = None if self._session is None else self._session.sender
        if sender is None or not sender.is_reachable:
            return {}
        ranks = [1 + STOPPING.index(each.severity) for each in self._open.values()]
        return {OPEN: len(ranks), WORST: max(ranks, default=0)}

    def _note_changes(self) -> None:
        """Note the incidents that opened, grew worse or are over since the last call, for the next log entry."""
        found = () if self.watch is None else self.watch.incidents
        if found is self._answered:
            return
        self._answered = found
        before, self._open = self._open, {each.id: each for each in found if each.severity in STOPPING}
        severities = {key: each.severity for key, each in before.items()}
        opened = [each for key, each in self._open.items() if severities.get(key) != each.severity]
        over = [each for key, each in before.items() if key not in self._open]
        self._news += map(describe, opened)
        self._news += (f"{each.rule} (#{each.id}) is over. {each.url}" for each in over)
