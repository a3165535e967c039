"""The agent's one thread: reads the records of the training thread, sends them, and gets incidents in return.

The training never waits for it. Nothing here raises. What the collector refuses is counted and set aside; what it
cannot take now is sent again later, byte for byte.
"""

from __future__ import annotations

import atexit
import math
import os
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from gradcanary import environment, facts, wire, wording
from gradcanary.export import spool
from gradcanary.export.batches import StepRow, local_nonfinite_only
from gradcanary.export.delivery import Delivery
from gradcanary.export.hello import INTERVAL_S, SessionHello
from gradcanary.export.outbox import Creates, Outbox, RetryQueue
from gradcanary.export.reader import Reader
from gradcanary.export.stop_rule import StopRule, describe
from gradcanary.export.transport import Transport
from gradcanary.guard import Guard
from gradcanary.settings import STOPPING
from gradcanary.tracking.recorder import Recorder
from gradcanary.tracking.records import RecordQueue, StepRecord

FLUSH_S = 0.5
QUIET_S = 1.0
"""Between two requests without a sampled step: a request costs more than its content."""

EARLY_BEAT_S = 2.0
"""After the first step of a rank that sends no samples: by then the collector knows the layers of rank 0, too, and its
answer says whether to send some."""

FIRST_STEP_WAIT_S = 2.0
"""How long the first hello waits for the first window, with which more is known."""

LAST_RETRY_S = 0.25
"""Between two tries while the process waits to end."""

FINISHED = wire.End("finished", None, None)

KEEP_SHARES = (0.1, 0.5)
"""Of the time that an end may take, for what goes to the spool: at least and at most."""

ABORT_S = 0.2
"""For a request that was cut off to fail."""

SHUT_S = 5.0
"""At most for one record, which takes milliseconds: only a machine that stands still needs this long."""

LATE = "the collector did not take everything in time"
BARRED = "the collector refuses the token"
KEPT = "{why}; {steps} and the end are kept: gradcanary sync {file}"
UNREAD = "{steps} could not be read in time and got lost"
LOST = "{why}; the last steps are lost"

OnAlert = Callable[[wire.Brief], None]


class Sender:
    """Sends a session: hello, batches, heartbeats, end."""

    def __init__(
        self,
        recorder: Recorder,
        queue: RecordQueue[StepRecord],
        hello: SessionHello,
        transport: Transport,
        create_spool: Creates | None,
        guard: Guard,
        on_alert: OnAlert | None,
        print_summary: Callable[[], bool] | None = None,
        stop_rule: StopRule | None = None,
    ) -> None:
        """``create_spool`` makes the spool; ``print_summary`` returns False if the training is not known yet."""
        self.incidents: tuple[wire.Brief, ...] = ()
        self.open_at_end: tuple[wire.Brief, ...] = ()
        self.latest: StepRow | None = None
        self.unsent: str | None = None
        """A sentence about what the collector did not take, at the end."""
        self._recorder, self._queue, self._hello, self._transport = recorder, queue, hello, transport
        self._guard, self._on_alert, self._print_summary = guard, on_alert, print_summary
        self._alerted: dict[int, str] = {}
        self._printed: dict[int, wire.Brief] = {}
        self._stop_rule = stop_rule or StopRule(None)
        self._end: wire.End | None = None
        self._deadline = self._keep_until = 0.0
        self._read_until = math.inf
        self._reading = threading.Lock()
        self._record_s = 0.0
        self._dropped = 0
        self._reads_environment = recorder.settings.environment
        low = max(recorder.settings.absmax_below or 0.0, recorder.settings.collapse_below or 0.0)
        self._reader = Reader(low, guard.catch, hello.settings)
        self._outbox = Outbox(RetryQueue(create_spool, guard.print_once))
        url, hint = recorder.settings.url, "the training goes on, still trying; 'gradcanary doctor' finds the reason"
        self._delivery = Delivery(url, transport, hello, self._outbox, guard, self._on_reply, hint)
        self._step: int | None = None
        self._passed: int | None = None
        self._beat_at = time.monotonic() + INTERVAL_S
        self._began = self._read_at = time.monotonic()
        self._flushed_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradcanary-sender", daemon=True)

    @property
    def is_reachable(self) -> bool | None:
        """Return True if the collector takes what is sent, None before the first request."""
        return False if self._delivery.failures else self._delivery.is_reachable or None

    @property
    def is_unauthorized(self) -> bool:
        """Return True if the collector refuses the token."""
        return self._delivery.is_unauthorized

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, end: wire.End, timeout_s: float) -> None:
        """Send what is left and the end within ``timeout_s``; the rest stays in the spool."""
        reserved_s = self._reserve_s(timeout_s)
        self._end = end
        self._deadline = time.monotonic() + timeout_s - reserved_s
        self._keep_until = self._deadline + reserved_s + ABORT_S
        self._read_until = (self._deadline + self._keep_until) / 2
        self._stopping.set()
        if threading.current_thread() is self._thread:
            atexit.register(self._join_with_timeout)  # on_alert closed the watch: the rest is sent when it returns
        else:
            self._join_with_timeout()

    def _reserve_s(self, timeout_s: float) -> float:
        """Return the time to keep for the spool: what is still to be read goes there, too."""
        least, most = (share * timeout_s for share in KEEP_SHARES)
        return min(least + 3 * self._record_s * len(self._queue), most)

    def _join_with_timeout(self) -> None:
        """Wait until the thread has ended or its time is over."""
        try:
            self._thread.join(max(self._deadline - time.monotonic(), 0.0))
            if self._thread.is_alive():
                self._transport.abort()
                self._thread.join(max(self._keep_until - time.monotonic(), 0.0))
            if self._thread.is_alive():
                self.unsent = LOST.format(why=LATE)
                self._guard.print_once(self.unsent)
        finally:
            if self._thread.is_alive():
                self._stop_reading()
            self._queue.free_discarded()

    def _stop_reading(self) -> None:
        """Stop reading: from now on the thread is not in torch.

        Python ends a daemon thread where it next requests the GIL: in torch's C++ this aborts the whole process, with
        the exit status 134.
        """
        self._read_until = -math.inf
        if self._reading.acquire(timeout=SHUT_S):
            self._reading.release()

    def _run(self) -> None:
        has_reported_unsent = False
        while not self._stopping.wait(FLUSH_S):
            self._guarded(self._round)
            self._guarded(self._print_summary_once)
            if (
                not has_reported_unsent and self._hello.was_sent
            ):  # not before: a folder that hangs would keep all from it
                has_reported_unsent = True
                self._guarded(lambda: spool.report_unsent(os.environ, self._guard.print_once))
        for work in (
            self._read_records,
            self._print_summary_once,
            self._finish,
            self._store_rest,
            self._transport.close,
        ):
            self._guarded(work)
        atexit.unregister(self._join_with_timeout)

    def _print_summary_once(self) -> None:
        """Print what is trained, once it was measured; after an error it is not tried again."""
        if self._print_summary is None or self.latest is None:
            return
        print_summary, self._print_summary = self._print_summary, None
        if not print_summary():
            self._print_summary = print_summary

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 -- a thread that dies would be a silent end of the monitoring
            self._guard.catch("the sender", error)

    def _round(self) -> None:
        self._read_records()
        if self._delivery.is_closed:
            return
        now = time.monotonic()
        is_new = not self._hello.was_sent
        rest_s = max(self._delivery.spacing_s, 0.0 if self._outbox.has_samples else QUIET_S)
        is_due = is_new or now - self._flushed_at >= rest_s
        if now >= self._delivery.retry_at and is_due:
            self._flushed_at = now
            self._flush()
        self._store()
        self._beat()

    def _flush(self) -> None:
        """Send all there is; records and the end of the training do not wait until it is sent."""
        self._hello.update(self._recorder, None)
        if self._reads_environment and self._hello.is_complete:
            self._reads_environment = False
            self._guard.wrap("reading the environment", self._read_environment)()
        is_early = not self._hello.is_complete and time.monotonic() - self._began < FIRST_STEP_WAIT_S
        if is_early and not self._hello.was_sent and self._end is None:
            return
        if not self._hello.was_sent:
            self._hello.rank_and_world = self._recorder.rank.as_tuple()
        while self._delivery.send_next():
            if self._is_late():
                return
            if time.monotonic() - self._read_at >= FLUSH_S:
                self._read_records()
                self._store()
                self._beat()
                if self._delivery.spacing_s and self._end is None and not self._outbox.has_full_batch:
                    return  # what came meanwhile waits for its turn

    def _read_environment(self) -> None:
        """Read the environment of a launch on its first rank. Its GPUs are known, because its layers are."""
        if self._recorder.rank.rank == 0:
            devices = self._recorder.meter.device_clock.devices
            self._hello.environment = environment.read_environment(os.environ, map(torch.cuda.get_device_name, devices))

    def _is_late(self) -> bool:
        """Return True if the training's process waits for the end, and the time for that is over."""
        return self._stopping.is_set() and time.monotonic() >= self._deadline

    def _store(self) -> None:
        """Keep what the collector does not take now after what it did not take before."""
        if self._delivery.is_closed:
            self._outbox.discard_all()
        elif self._delivery.failures or not self._outbox.queue.is_empty:
            self._outbox.move_to_queue(self._hello.body(), self._delivery.limits)

    def _finish(self) -> None:
        """Send what is left and the end, again and again until the time given is over."""
        self._store()
        if not self._outbox.queue.is_empty:
            self._outbox.end(self._hello.body(), self._ending(self._end))
        while not self._delivery.is_closed and not self._is_delivered():
            wait_s = max(LAST_RETRY_S, self._delivery.asked_until - time.monotonic())
            # A collector that never answered is not waited for.
            if not self._delivery.is_reachable or time.monotonic() + wait_s > self._deadline:
                return
            time.sleep(wait_s)
        self._end = None

    def _is_delivered(self) -> bool:
        self._flush()
        if self._outbox.has_unreported_drops and self._hello.was_sent:
            self._send_heartbeat()
        self.open_at_end = self.incidents  # the end closes them
        return self._delivery.send_end(self._ending(self._end))

    def _ending(self, end: wire.End | None) -> bytes:
        return wire.dump_end(replace(end or FINISHED, last_step=self._step))

    def _store_rest(self) -> None:
        """Leave what was not sent, and the end, in the spool, and say where."""
        if self._delivery.is_closed or self._end is None:
            self._outbox.discard_all()
        elif not self._outbox.is_empty or self._hello.was_sent:  # otherwise nothing happened
            self._spool_rest(self._ending(self._end))

    def _spool_rest(self, ending: bytes) -> None:
        outbox = self._outbox
        outbox.move_to_queue(self._hello.body(), self._delivery.limits)
        outbox.end(self._hello.body(), ending)
        file = outbox.queue.left_in
        sentence, where = (LOST, "") if file is None else (KEPT, shlex.quote(str(file)))
        steps = wording.count(outbox.queue.steps, "sampled step")
        self.unsent = sentence.format(why=BARRED if self.is_unauthorized else LATE, steps=steps, file=where)
        self._guard.print_once(self.unsent)
        outbox.queue.close()

    def _read_records(self) -> None:
        began = self._read_at = time.monotonic()
        self._recorder.meter.set_sender_time(time.thread_time())
        count = 0
        while self._may_read():
            count += 1
        if count:
            self._record_s = (time.monotonic() - began) / count
        self._count_dropped()

    def _may_read(self) -> bool:
        """Read a record unless it is too late for that; return True if there may be another one."""
        with self._reading:
            if time.monotonic() < self._read_until:
                return self._read_next()
            if given_up := self._queue.discard_all():
                self._guard.print_once(UNREAD.format(steps=wording.count(given_up, "step")))
            return False

    def _read_next(self) -> bool:
        """Read a record and free its tensors; return False if there is none."""
        record = self._queue.take()
        if record is None:
            return False
        self._count_dropped()
        try:
            row = self._reader.read(record)
        except Exception as error:  # noqa: BLE001 -- one bad step must not hold up the others
            self._guard.catch("reading a step", error)
            self._outbox.count_dropped(1)
            return True
        self._recorder.clock.request = self._reader.request
        if self._step is None and record.sends_only_nonfinite:
            self._beat_at = min(self._beat_at, time.monotonic() + EARLY_BEAT_S)
        self._step = row.step
        self.latest = row if row.states is not None else self.latest
        self._hello.update(self._recorder, record.layers, self._reader.facts)
        sent: StepRow | None = local_nonfinite_only(row) if record.sends_only_nonfinite else row
        if sent is not None and not self._delivery.is_closed:
            self._outbox.add(sent)
        return True

    def _count_dropped(self) -> None:
        dropped, self._dropped = self._queue.dropped - self._dropped, self._queue.dropped
        self._outbox.count_dropped(dropped)

    def _beat(self) -> None:
        if time.monotonic() >= max(self._beat_at, self._delivery.retry_at) and self._hello.was_sent:
            self._beat_at = time.monotonic() + INTERVAL_S
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        """Send the step that is passed: nothing of it, or of those before it, is still to come."""
        outbox, share = self._outbox, self._recorder.meter.share()
        self._passed = self._step if outbox.is_empty else self._passed
        self._delivery.send_heartbeat(wire.Heartbeat(self._passed, outbox.queue.size, outbox.dropped_steps, share))

    def _on_reply(self, reply: wire.Reply) -> None:
        self.incidents = reply.incidents
        if self._end is None:  # the reply to the end has none, because that closes them
            self._stop_rule.apply(reply.incidents)
            self._print_changes(reply.incidents)
        if reply.has_other_layers:
            self._recorder.rank.send_own_layers()
            self._recorder.add_fact(facts.OTHER_LAYERS)
        for brief in reply.incidents:
            if self._alerted.get(brief.id) != brief.severity:
                self._alerted[brief.id] = brief.severity
                self._alert(brief)

    def _print_changes(self, incidents: tuple[wire.Brief, ...]) -> None:
        """Print the incidents of warning and above that opened, grew worse or are over, on the first rank.

        Not those whose rules send no messages: many a fine-tune has one all the time.
        """
        if self._recorder.rank.rank > 0:
            return
        before = self._printed
        worth_a_line = (each for each in incidents if not (each.is_handled or each.muted))
        self._printed = {each.id: each for each in worth_a_line if each.severity in STOPPING}
        for key, each in self._printed.items():
            if key not in before or before[key].severity != each.severity:
                self._guard.print_once(describe(each))
        still_open = {each.id for each in incidents}
        for key, each in before.items():
            if key not in still_open:
                self._guard.print_once(f"{each.rule} (#{each.id}) is over. {each.url}")

    def _alert(self, brief: wire.Brief) -> None:
        if self._on_alert is None:
            return
        try:
            self._on_alert(brief)
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- not ours; an exit() would end only this thread
            self._guard.catch("on_alert", error)
