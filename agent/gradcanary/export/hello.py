"""The hello of a session: at first hardly more than its launch, later its layers."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from gradcanary import __version__, facts, wire
from gradcanary.export.settings_log import SettingsLog
from gradcanary.model.layers import Layers
from gradcanary.model.training_loop import framework_of
from gradcanary.tracking.recorder import Recorder

INTERVAL_S = 15.0
"""Between two heartbeats."""


class SessionHello:
    """Holds the present hello and the one that the collector has.

    What a session has sent once stays: ``rank_and_world`` is read before the first hello.
    """

    def __init__(
        self, launch: str, recorder: Recorder, find_trackers: Callable[[], tuple[wire.TrackerRun, ...]]
    ) -> None:
        """``find_trackers`` returns the runs of other trackers so far."""
        self.rank_and_world = (0, 1)
        self._find_trackers = find_trackers
        self._trackers: tuple[wire.TrackerRun, ...] = ()
        self._launch = launch
        self._facts: tuple[wire.Fact, ...] = ()
        self._settings, self._started = recorder.settings, time.time()
        self._sets: dict[str, wire.LayerSet] = {}
        self._findings: tuple[wire.Fact, ...] = ()
        self._framework: str | None = None
        self._sharded: bool | None = None
        self._first_step: int | None = None
        self._step_source: str | None = None
        self._optimizer: str | None = None
        self._late: bool | None = recorder.is_late or None
        self.settings = SettingsLog()
        self.environment: wire.Environment | None = None
        self._leaves_out = False
        self._sent: wire.Hello | None = None
        self._dumped: tuple[wire.Hello | None, bytes] = (None, b"")
        self.was_sent = False

    @property
    def is_complete(self) -> bool:
        """Return True if the first window has begun and the layers are known."""
        return bool(self._sets) and self._first_step is not None

    @property
    def is_due(self) -> bool:
        """Return True if the collector does not have the present hello."""
        return self._sent is None or self.hello() != self._sent

    def update(self, recorder: Recorder, measured: Layers | None, findings: Sequence[wire.Fact] = ()) -> None:
        """Take over what the training thread has found, and the facts that the reader found in its numbers.

        ``measured`` are the layers of a batch that follows.
        """
        self._findings = facts.merged(self._findings, findings)
        self._trackers = self._find_trackers()
        changes = recorder.group_settings.changes
        while changes:
            self.settings.add(changes.popleft())
        first_step, layers, self._facts = recorder.first_step, recorder.layers, (*recorder.facts, *recorder.guard.facts)
        if first_step is not None and self._step_source is None:
            self._first_step, self._step_source = first_step.number, first_step.source
            self._optimizer = first_step.optimizer
        if first_step is not None and self._late is None:
            self._late = first_step.is_late
        if first_step is not None and layers is not None:
            self._framework = self._framework or framework_of(layers.framework, first_step.loop)
        if measured is not None:
            self._sets.setdefault(measured.layer_set.id, measured.layer_set)
            if self._sharded is None:  # a session cannot change it later
                self._sharded = measured.is_sharded

    def hello(self) -> wire.Hello:
        """Return the present hello."""
        return wire.Hello(
            protocol=wire.PROTOCOL,
            launch=self._launch,
            rank=self.rank_and_world[0],
            world_size=self.rank_and_world[1],
            sharded=self._sharded,
            first_step=self._first_step,
            step_source=self._step_source,
            late=bool(self._late),
            agent=__version__,
            python=platform.python_version(),
            torch=str(torch.__version__),
            framework=self._framework,
            optimizer=self._optimizer,
            interval_s=INTERVAL_S,
            absmax_below=self._settings.absmax_below,
            norm_below=self._settings.norm_below,
            layer_sets=tuple(self._sets.values()),
            facts=facts.merged(self._facts, self._findings),
            started=self._started,
            environment=self.environment and replace(self.environment, trackers=self._trackers),
            settings=self.settings.entries,
            metrics=self._settings.metrics,
            collapse_below=self._settings.collapse_below,
        )

    def body(self) -> bytes:
        """Return the present hello as it is sent."""
        hello = self.hello()
        if hello != self._dumped[0]:
            self._dumped = hello, wire.dump(wire.without_extras(vars(hello)) if self._leaves_out else hello)
        return self._dumped[1]

    def leave_out_extras(self) -> bool:
        """Leave out the fields that an older collector refuses; return False if they were left out already.

        The next hello has them again: by then the collector may be a newer one.
        """
        had_left_out, self._leaves_out, self._dumped = self._leaves_out, True, (None, b"")
        return not had_left_out

    def mark_sent(self) -> None:
        """Note that the collector has it."""
        self._sent, self._leaves_out, self._dumped = self.hello(), False, (None, b"")
        self.was_sent = True

    def mark_unknown(self) -> None:
        """Note that the collector does not know the session: everything is sent again."""
        self._sent = None
