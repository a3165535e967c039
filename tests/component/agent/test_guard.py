"""Faults of all kinds: nothing is raised, the training is the same to the bit, what failed is counted and told.

| fault | where it is shown |
|---|---|
| in each hook and each part of the agent | here: logged once each, counted, a fact of the session, a line at the end |
| what a device does not tell | ``test_statistics``, ``test_transfers`` |
| the queue, or pinned memory, is full | here; ``test_transfers`` |
| the disk is full, read-only, damaged, hangs | ``test_spool``, ``test_fork_safe``; SQLite is missing: ``test_replay`` |
| nobody listens, who listens hangs, is slow, says rubbish, cuts the connection off | here |
| 400 to 429, 500 to 503, redirects, bodies of all kinds | ``test_answers_of_collector``; spooled: ``test_replay`` |
| killed at any point | ``test_sync``, ``test_spool`` |
| objects of the script that raise when they are asked | ``test_watch``; its logging: there, its ``on_alert``: answers |
"""

import contextlib
import io
import logging
import os
import socket
import threading
from collections.abc import Iterator
from socketserver import BaseRequestHandler, ThreadingTCPServer
from struct import pack
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import gradcanary
from gradcanary.hooks import parameter_hook
from gradcanary.tracking import records as records_module
from gradcanary.tracking.records import RecordQueue
from support.agent.recorded import Recorded, recording
from support.agent.scripted import Says, Training, collector_that, until

NOBODY = "http://127.0.0.1:9"
STEPS = 6


@pytest.fixture
def collector() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    monkeypatch.setattr("gradcanary.export.delivery.RETRY_S", (0.05, 0.2))


# -- in the agent ----------------------------------------------------------------------------------------------------


class Loop:
    """A training in bfloat16 in which every part of the agent has its turn."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).bfloat16()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def pass_(self) -> None:
        self.model(torch.ones(2, 4, dtype=torch.bfloat16)).float().square().mean().backward()

    def train(self, watch: gradcanary.Watch | None) -> None:
        for step in range(STEPS):
            self.pass_()
            self.pass_()
            if watch is not None and step == STEPS - 2:
                watch.pause()
            if watch is not None and step == STEPS - 1:
                watch.observe_accumulator("0.weight", torch.ones(8, 4))
                watch.observe_accumulator("0.weight", torch.ones(8, 4))
            self.optimizer.step()
            self.optimizer.zero_grad()


class ScaledLoop:
    """A training with a GradScaler, which skips one of its steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)

    def train(self, _watch: gradcanary.Watch | None) -> None:
        for step in range(STEPS):
            for _ in range(2):
                loss = self.model(torch.ones(2, 4)).square().mean()
                self.scaler.scale(loss * float("inf") if step == 2 else loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()


PLACES = (
    "tracking.external_sums.ExternalSums.read",
    "hooks.backward.BackwardCalls.add",
    "hooks.graphs.keep_out",
    "export.reader.EffectiveDtypes.learn",
    "hooks.backward.has_callbacks",
    "export.reader.DecodedSamples.facts",
    "stats.weights.Frozen.unchanged_fraction",
    "stats.sampler.Sampler.add_accumulation_errors",
    "stats.sampler.Sampler.copy_weights",
    "tracking.tracker.OptimizerTracker.forecast",
    "stats.sampler.Sampler.find_frozen",
    "stats.sampler.Sampler.take",
    "tracking.tracker.OptimizerTracker.sample",
    "tracking.tracker.OptimizerTracker.follow_sums",
    "stats.sampler.update_norms",
    "export.hello.SessionHello.__init__",
    "export.hello.SessionHello.hello",
    "tracking.optimizers.Hooks._follow",
    "tracking.optimizers.Hooks._is_recorded",
    "tracking.optimizers.Hooks.attach",
    "tracking.optimizers.Hooks.detach",
    "tracking.optimizers.discover",
    "hooks.backward.scalar_roots",
    "model.layers.declared",
    "tracking.recorder.Recorder.backward_called",
    "tracking.recorder.Recorder.close",
    "tracking.recorder.Recorder.follow",
    "tracking.recorder.Recorder.pause",
    "tracking.recorder.Recorder.step_begins",
    "tracking.recorder.Recorder.step_ended",
    "tracking.recorder.learning_rates",
    "tracking.recorder.Recorder._record_of",
    "export.outbox.build_batch",
    "model.distributed.Rank.find",
    "export.reader.Reader.read",
    "model.parameters.ParameterRef.__call__",
    "hooks.grad_scaler.ScalerOfOptimizer.search",
    "identity.next_launch",
    "export.sender.Sender.__init__",
    "export.sender.Sender._flush",
    "export.sender.Sender.start",
    "export.sender.Sender.stop",
    "stats.accumulation.Fp32Reference.after_accumulate",
    "stats.accumulation.Fp32Reference.before_accumulate",
    "stats.kernels._columns",
    "tracking.clear_detection.GradientIdentity.mark",
    "tracking.tracker.OptimizerTracker.pass_begins",
    "tracking.tracker.OptimizerTracker._requeue_backward_end",
    "tracking.tracker.OptimizerTracker._on_backward_end",
    "export.device_copy.Transfers.drain",
    "export.device_copy.Transfers.submit",
    "export.device_copy.Transfers.prepare",
    "export.device_copy.Transfers.poll",
    "export.transport.Transport.__init__",
    "export.transport.Transport.send",
    "tracking.recorder.peak_bytes",
)
SCALED_PLACES = (
    "hooks.grad_scaler._states_of",
    "hooks.grad_scaler.ScalerOfOptimizer.at_step",
    "hooks.grad_scaler.ScalerOfOptimizer.mark",
    "hooks.grad_scaler.ScalerOfOptimizer.search",
    "hooks.grad_scaler.ScalerOfOptimizer.settle",
    "hooks.grad_scaler.ScalerOfOptimizer.update_token",
    "hooks.grad_scaler.ScalerOfOptimizer.was_updated",
    "tracking.tracker.OptimizerTracker._settle_scale",
    "hooks.grad_scaler.Scalers.at",
    "tracking.tracker.OptimizerTracker.drop_scaled",
    "tracking.tracker.OptimizerTracker.why_skipped",
)
FAULTS = [*((Loop, where) for where in PLACES), *((ScaledLoop, where) for where in SCALED_PLACES)]


def boom(*_: object, **__: object) -> None:
    raise ZeroDivisionError("our own fault")


@pytest.fixture(scope="module")
def unwatched() -> dict[type[Loop | ScaledLoop], list[torch.Tensor]]:
    found = {}
    for kind in (Loop, ScaledLoop):
        bare = kind()
        bare.train(None)
        found[kind] = list(bare.model.parameters())
    return found


@pytest.mark.parametrize(("kind", "where"), FAULTS)
def test_a_fault_of_ours_is_counted_and_logged_once_and_the_training_goes_on(
    collector: Recorded,
    unwatched: dict[type[Loop | ScaledLoop], list[torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    kind: type[Loop | ScaledLoop],
    where: str,
) -> None:
    loop = kind()
    with monkeypatch.context() as broken:
        broken.setattr(f"gradcanary.{where}", boom)
        watch = gradcanary.watch(loop.model, loop.optimizer, url=collector.url, run="broken")
        loop.train(watch)
        watch.close(timeout_s=0.5)
    guard = watch._session.guard
    assert guard.caught > 0
    assert ": " in guard.last
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert sorted(set(messages)) == sorted(messages)
    assert len(messages) >= len(guard.facts) > 0
    assert capsys.readouterr().err.count(f"failed {guard.caught} time") == 1
    assert all(map(torch.equal, loop.model.parameters(), unwatched[kind]))
    watch._session._hooks.detach()
    if (sender := watch._session.sender) is not None:
        sender._stopping.set()
        until(lambda: not sender._thread.is_alive())


def test_a_search_for_scalers_that_raises_is_made_once(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a pass over all objects."""
    asked: list[object] = []

    def living(kind: object) -> None:
        asked.append(kind)
        boom()

    monkeypatch.setattr("gradcanary.hooks.grad_scaler.live_objects", living)
    training = Training()
    with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="searched") as watch:
        training.steps(4)
    assert len(asked) == 1
    assert watch._session.guard.caught == 1
    assert collector.steps() == [0, 1, 2, 3]


def test_the_page_is_told_of_the_first_fault_of_each_place(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcanary.stats.sampler.Sampler.find_frozen", boom)
    loop = Loop()
    with gradcanary.watch(loop.model, loop.optimizer, url=collector.url, run="told"):
        loop.train(None)
    (fact,) = collector.facts("agent_fault")
    assert "comparing weights failed in gradcanary: ZeroDivisionError: our own fault" in fact["text"]


def test_a_fault_keeps_no_gradient_alive(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the guard nor a handler that stores log records holds the frames of a sample that failed."""
    stored: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", stored.append)
    monkeypatch.setattr("gradcanary.stats.kernels._columns", boom)
    training, memory = Training(), []
    logging.getLogger("gradcanary").addHandler(handler)
    try:
        with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="freed") as watch:
            training.steps(3)
            for parameter in training.model.parameters():
                memory.append(StorageWeakRef(parameter.grad.untyped_storage()))
                parameter.grad = None
            alive = sum(not each.expired() for each in memory)
    finally:
        logging.getLogger("gradcanary").removeHandler(handler)
    assert watch._session.guard.caught > 0
    assert alive == 0
    (record,) = stored
    assert "stats/kernels.py" in logging.Formatter().format(record)
    assert "ZeroDivisionError: our own fault" in logging.Formatter().format(record)


def test_layers_that_were_hooked_before_a_fault_are_counted_once(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, made = parameter_hook.ParameterHook, []

    def hook(*arguments: Any) -> parameter_hook.ParameterHook:
        made.append(arguments)
        if len(made) == 3:
            raise ZeroDivisionError("our own fault")
        return really(*arguments)

    monkeypatch.setattr("gradcanary.tracking.layer_hooks.ParameterHook", hook)
    training = Training()
    with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="hooked") as watch:
        training.steps(4)
    assert watch._session.guard.caught == 1
    assert collector.per_step("micro_steps")[1:] == [1] * 3
    assert len(made) == len([*training.model.parameters()]) + 1


# -- the ring --------------------------------------------------------------------------------------------------------


def test_a_full_ring_drops_and_counts(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.3)
    monkeypatch.setattr(records_module, "CAPACITY_BYTES", 0)  # 8 records
    training, bare = Training(), Training()
    bare.model.load_state_dict(training.model.state_dict())
    with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="full") as watch:
        training.steps(300)
    bare.steps(300)
    assert all(map(torch.equal, training.model.parameters(), bare.model.parameters()))
    dropped = watch._session._queue.dropped
    assert dropped > 0
    assert collector.dropped_steps == dropped == 300 - len(collector.steps())
    assert watch._session.guard.caught == 0


def test_a_ring_that_is_given_up_loses_no_item_that_is_put_meanwhile() -> None:
    """The thread that puts may hold the items while the other one gives them up."""
    records: RecordQueue[str] = RecordQueue(4)
    records.put("early")
    items = records._items  # as put() has looked them up
    assert records.discard_all() == 1
    items.append("late")
    records.drop(2)
    assert records.take() == "late"
    assert records.dropped == 3


# -- the network -----------------------------------------------------------------------------------------------------

RUBBISH = {
    "nothing": b"",
    "no HTTP": b"\x00\xff\xfe\r\n\r\n" * 9,
    "no status": b"HTTP/1.1 two hundred\r\n\r\n",
    "cut in the headers": b"HTTP/1.1 200 OK\r\ncontent-le",
    "cut in the body": b'HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{"status": "stored", "next_',
    "a chunk that is none": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 500,
    "more than anybody reads": b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n" + b"[" * 2**21,
}


@contextlib.contextmanager
def serving(answer: bytes, *, is_slow: bool = False, is_cut: bool = False) -> Iterator[str]:
    """Serve the same bytes to whoever connects: one by one, or with a reset in the middle of what comes in."""
    over = threading.Event()

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100 if is_cut else 2**16)
            if is_cut:
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
                return
            with contextlib.suppress(OSError):
                if not is_slow:
                    self.request.sendall(answer)
                for byte in answer if is_slow else ():
                    self.request.sendall(bytes([byte]))
                    if over.wait(0.02):
                        return

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


def assert_undisturbed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    training, bare = Training(), Training()
    bare.model.load_state_dict(training.model.state_dict())
    with gradcanary.watch(training.model, training.optimizer, url=url, run="rubbish") as watch:
        training.steps(15)
        until(lambda: watch._session.sender._began + 0.1 < watch._session.sender._read_at)
        training.steps(15)
        watch.close(timeout_s=0.5)
    bare.steps(30)
    assert all(map(torch.equal, training.model.parameters(), bare.model.parameters()))
    assert watch._session.guard.caught == 0
    assert "30 sampled steps and the end are kept" in capsys.readouterr().err


@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_is_no_answer_and_nothing_is_lost(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(RUBBISH[kind]) as url:
        assert_undisturbed(url, capsys)


def test_training_is_undisturbed_by_cut_off_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(b"", is_cut=True) as url:
        assert_undisturbed(url, capsys)


# A header that comes in 20 minutes, and a body: with each byte a timeout of the socket begins again.
SLOW = {
    "header": b"HTTP/1.1 200 OK\r\nserver: " + b"s" * 60_000,
    "body": b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n" + b" " * 60_000,
    "body of old": b"HTTP/1.0 200 OK\r\n\r\n" + b" " * 60_000,
}


@pytest.mark.parametrize("part", SLOW)
def test_training_is_undisturbed_by_slow_answers_and_data_is_kept(
    part: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is waited for would take longer than a test may."""
    monkeypatch.setattr("gradcanary.export.transport.TIMEOUT_S", 3600.0)
    with serving(SLOW[part], is_slow=True) as url:
        training = Training()
        with gradcanary.watch(training.model, training.optimizer, url=url, run="slow") as watch:
            training.steps(15)
            until(lambda: watch._session.sender._transport._connection)
            training.steps(15)
            watch.close(timeout_s=0.5)
    assert watch._session.guard.caught == 0
    assert "30 sampled steps and the end are kept" in capsys.readouterr().err


@pytest.mark.parametrize("who", ["hangs", "nobody"])
def test_the_thread_of_the_training_touches_no_network_and_no_disk(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a step takes what it takes, whoever hangs."""
    mine, touched, is_on = threading.get_ident(), [], False

    def watched(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def called(*args: object, **kwargs: object) -> object:
            if is_on and threading.get_ident() == mine:
                touched.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, called)

    for name in ("connect", "send", "sendall", "recv", "recv_into"):
        watched(socket.socket, name)
    for owner, name in ((socket, "getaddrinfo"), (os, "open"), (threading.Thread, "join"), (io, "open")):
        watched(owner, name)
    watched(threading.Event, "wait")
    with collector_that(lambda _: Says(hang=True)) as hangs:
        training = Training()
        url = hangs.url if who == "hangs" else NOBODY
        watch = gradcanary.watch(training.model, training.optimizer, url=url, run="still")
        is_on = True
        training.steps(20)
        is_on = False
        until(lambda: hangs.heard if who == "hangs" else watch._session.sender._delivery.failures)
        is_on = True
        training.steps(20)
        is_on = False
        assert touched == []
        is_on = True
        watch.close(timeout_s=0.2)
        assert "join" in touched, "or this test would see nothing"
