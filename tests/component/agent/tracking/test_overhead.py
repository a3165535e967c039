"""``every="auto"`` in real trainings: when it leaves 1, that nothing is lost by it, and that its price is all there."""

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary import wire
from gradcanary.tracking.device_clock import DeviceClock
from gradcanary.tracking.overhead import LONGEST_S, IntervalPolicy, Measurement, Meter
from support.agent.recorded import recording
from support.agent.scripted import Training, until
from support.collectors import Collector

NOTHING = 1e-9
"""A budget that no agent keeps to."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that does not let looks wait for it."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.01)


class Still(Training):
    """Gradients as in the beginning, whatever the step; those of a layer shrink when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.taken = 1.0, 0
        self.optimizer.param_groups[0]["lr"] = 0.0
        self.model[0].weight.register_hook(lambda gradient: gradient * self.scale)

    def steps(self, count: int) -> None:
        super().steps(count)
        self.taken += count


class Shown:
    """What a collector says of a run."""

    def __init__(self, collector: Collector, run: str) -> None:
        self.get, self.path = collector.get, f"/api/v1/runs/{run}"

    @property
    def run(self) -> dict:
        return self.get(self.path).json()

    @property
    def every(self) -> int:
        return self.run["sessions"][0]["every"]

    def sampled(self, first: int, last: int) -> tuple[list[int], list[int], int]:
        """Return the widths of buckets between two steps, those with samples of a layer, and how many they hold."""
        span = {"from": first, "to": last, "points": 2000, "layer": "0.weight"}
        answer = self.get(f"{self.path}/series", stat="absmax", **span).json()
        counts = wire.uncolumn("i", answer["series"][0]["count"]["data"])
        steps = wire.uncolumn("d", answer["steps"]["data"])
        held = [int(step) for step, count in zip(steps, counts, strict=True) if count]
        widths = [span["bucket_steps"] for span in answer["spans"] or [answer]]
        return widths, held, sum(counts)

    def points(self, name: str) -> tuple[int, list[float]]:
        """Return how many points a metric has, and the largest ones of its buckets."""
        (metric,) = self.get(f"{self.path}/metrics", name=name).json()["metrics"]
        largest = [value for value in wire.uncolumn("d", metric["max"]["data"]) if value == value]
        return sum(wire.uncolumn("i", metric["count"]["data"])), largest


def test_a_collapse_after_the_interval_has_changed_is_found_and_drawn(module_collector: Collector) -> None:
    """Quick steps under a budget that is far too small: 1 for 1,000 steps, then 10, then 100."""
    shown, training = Shown(module_collector, "auto"), Still()
    with gradcanary.watch(
        training.model, training.optimizer, url=module_collector.url, run="auto", every="auto", budget=NOTHING
    ) as watch:
        training.steps(1000)
        until(lambda: shown.run["step"] == 998)
        assert shown.every == 1
        while shown.every == 1:
            training.steps(20)
            assert training.taken < 100_000
        begun, training.scale = training.taken, 1e-6
        while not any(each.rule == "collapse" for each in watch.incidents):
            training.steps(50)
            assert training.taken < begun + 5000
        while shown.every == 10:
            training.steps(50)
            assert training.taken < 200_000
        training.steps(300)
    assert (shown.run["gaps"], shown.every) == ([], 100)
    opened = module_collector.get("/api/v1/incidents", run="auto").json()["incidents"]
    assert {each["rule"] for each in opened} == {"collapse", "no_update"}, "the learning rate is zero"
    (incident,) = (each for each in opened if each["rule"] == "collapse")
    found = module_collector.get(f"/api/v1/incidents/{incident['id']}").json()
    assert [layer["name"] for layer in found["layers"]] == ["0.weight"]
    assert begun - 1 <= found["layers"][0]["since_step"] < begun + 100
    assert shown.sampled(0, 999) == ([1], list(range(1000)), 1000)
    widths, held, samples = shown.sampled(0, training.taken)
    assert widths == sorted(widths), "narrow buckets of the first steps, each sample of the last ones in one"
    assert widths[-1] == 100
    assert held[-3:] == list(range(0, training.taken, 100))[-3:]
    assert 1000 + (training.taken - 1000) / 100 < samples < 1000 + (training.taken - 1000) / 2
    heatmap = module_collector.get("/api/v1/runs/auto/heatmap", stat="absmax").json()
    assert -32768 not in wire.uncolumn("h", heatmap["cells"]["data"])
    losses, (shares, largest) = shown.points("loss")[0], shown.points("agent_share")
    assert losses == training.taken
    assert 10 < shares < training.taken / 2
    assert all(0 < share <= 1 for share in largest)


@pytest.mark.parametrize("budget", [1.0, NOTHING])
def test_the_first_1000_steps_are_those_of_the_launch(budget: float) -> None:
    """It begins at step 12,345; with room in the budget it stays at 1."""
    training = Still()

    def is_there() -> bool:
        training.steps(20)
        return training.taken >= 1300 and (collector.batches[-1]["every"] > 1) == (budget == NOTHING)

    with recording() as collector:
        with gradcanary.watch(
            training.model, training.optimizer, url=collector.url, run="late", budget=budget, step=12_345
        ):
            until(is_there)
        every = {step: batch["every"] for batch in collector.batches for step in batch["steps"]}
    assert [every[step] for step in range(12_345, 13_345)] == [1] * 1000
    assert all(step % wide == 0 for step, wide in every.items())


RESTLESS_STEPS = 201


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval that is another one every few steps, from the first on, and hooks that are disabled in between."""
    draws = random.Random(1)
    monkeypatch.setattr("gradcanary.tracking.overhead.GRACE_STEPS", 0)
    monkeypatch.setattr("gradcanary.tracking.overhead.LOOK_STEPS", 1)
    monkeypatch.setattr(Measurement, "is_complete", lambda *_: draws.random() < 0.2)
    monkeypatch.setattr(
        "gradcanary.tracking.overhead.next_policy", lambda *_: IntervalPolicy(draws.choice([1, 1, 10, 10, 100]))
    )
    for name in ("LEARNED_AFTER", "SPREAD"):
        monkeypatch.setattr(f"gradcanary.tracking.hook_sampler.{name}", 1)


def _absmax(model: nn.Sequential) -> float:
    """Of a layer whose hook may rest."""
    return float(model[0].bias.grad.abs().max())


def _plain(truth: list[float]) -> Iterator[nn.Module]:
    """Two micro-steps, and a step that is skipped now and then."""
    training = Training()
    yield training.model
    for step in range(RESTLESS_STEPS):
        for _ in range(2):
            training.model(torch.randn(8, 4)).square().mean().backward()
        truth.append(_absmax(training.model))
        if step % 7 != 3:
            training.optimizer.step()
        training.optimizer.zero_grad()


def _closure(truth: list[float]) -> Iterator[nn.Module]:
    """LBFGS, which evaluates several times."""
    model = Training().model
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
    yield model
    for _ in range(RESTLESS_STEPS):
        inputs = torch.randn(8, 4)

        def closure(inputs: torch.Tensor = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        truth.append(_absmax(model))


def _with_another(truth: list[float]) -> Iterator[nn.Module]:
    """An optimizer beside the main one, of a backward pass of its own."""
    main, other = Training(), Training()
    model = nn.ModuleDict({"main": nn.Sequential(*main.model, nn.Linear(2, 2)), "other": other.model})
    main.optimizer.add_param_group({"params": [*model["main"][-1].parameters()]})
    yield model
    for _ in range(RESTLESS_STEPS):
        for training, inner in ((main, model["main"]), (other, model["other"])):
            training.optimizer.zero_grad()
            inner(torch.randn(8, 4)).square().mean().backward()
            training.optimizer.step()
        truth.append(_absmax(model["main"]))


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("train", [_plain, _closure, _with_another])
def test_numbers_are_right_however_often_the_interval_changes(train: Callable) -> None:
    torch.manual_seed(0)
    truth: list[float] = []
    training = train(truth)
    with recording() as collector, gradcanary.watch(next(training), url=collector.url, run="restless") as watch:
        assert next(training, None) is None
        watch.close()
        every = {step: batch["every"] for batch in collector.batches for step in batch["steps"]}
        (name,) = {"0.bias", "main.0.bias"} & {*collector.names}
        found = {step: values[name] for step, values in collector.stat("absmax").items()}
        states = {state for of_step in collector.states().values() for state in of_step.values()}
        losses = collector.metric("loss")
    assert {1, 10} <= set(every.values())
    assert all(step % wide == 0 for step, wide in every.items())
    assert found == pytest.approx({step: truth[step] for step in every}, rel=1e-6)
    assert states <= {"measured", "partial"}
    assert list(losses) == list(range(RESTLESS_STEPS))


class Clock:
    """Stands for the module ``time``; what is measured takes as long as it says."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("overhead", "device_clock"):
        monkeypatch.setattr(f"gradcanary.tracking.{module}.time", clock)
    return clock


def test_the_share_is_what_all_hooks_and_the_sender_took_of_the_time(clock: Clock) -> None:
    meter = Meter(10, 0.01)
    step_hook = meter.timed(clock.passes)
    layer_hook = meter.timed_layer_hook(lambda: 4.0, lambda _: clock.passes(1e-5))
    assert meter.share() == 0.0
    meter.window_begins()
    for step in range(160):
        step_hook(0.25 if step % 10 == 0 else 0.0)
        layer_hook(torch.zeros(()))
        clock.passes(1.0)
        meter.set_sender_time(0.05 * (step + 1))
        meter.window_ended(is_sampled=step % 10 == 0)
    took = 16 * 0.25 + 160 * 4e-5 + 160 * 0.05
    assert meter.share() == pytest.approx(took / (160 * (1.0 + 1e-5) + 16 * 0.25))
    assert meter.every == 10


def test_a_hook_of_a_layer_counts_for_others_but_not_what_has_a_clock_of_its_own_nor_waiting(clock: Clock) -> None:
    meter = Meter("auto", 0.01)
    inner = meter.timed(clock.passes)
    meter.timed_layer_hook(lambda: 16.0, lambda _: inner(0.5))(torch.zeros(()))
    assert meter.spent_s == 0.5
    meter.timed_layer_hook(lambda: 16.0, lambda _: clock.passes(3.0))(torch.zeros(()))
    assert meter.spent_s == pytest.approx(0.5 + 16 * LONGEST_S)


def test_steps_that_are_not_sampled_do_not_make_a_sample_dear(clock: Clock) -> None:
    """2 % of each step, 5 % of a sampled one more: 10 brings it to 2.5 %, 100 would save little, and is tried."""
    meter, found = Meter("auto", 0.01), []
    hook = meter.timed(clock.passes)
    meter.window_begins()
    for step in range(6000):
        is_sampled = step % meter.every == 0
        hook(0.07 if is_sampled else 0.02)
        clock.passes(1.0 - 0.02)
        meter.set_sender_time(0.0)
        meter.window_ended(is_sampled=is_sampled)
        found.append(meter.every)
    assert (found[998], found[999]) == (1, 10)  # by the measurements of the first 1,000 steps
    assert (found[1318], found[1319]) == (10, 100)  # by the next two
    assert sorted(set(found)) == [1, 10, 100]
    assert meter.share() == pytest.approx(0.02, abs=0.001)


class Moment:
    """Stands for an event of a stream; it completes once the device's time has come to it."""

    def __init__(self, device: "Device", at_s: float) -> None:
        self.device, self.at_s = device, at_s

    def query(self) -> bool:
        return self.device.now_s >= self.at_s

    def elapsed_time(self, end: "Moment") -> float:
        assert self.query(), "read before it has completed"
        assert end.query(), "read before it has completed"
        return (end.at_s - self.at_s) * 1e3


class Device:
    """A GPU whose work is queued: kernels of so many seconds."""

    def __init__(self) -> None:
        self.now_s = self.queued_s = 0.0

    def launch(self, seconds: float) -> None:
        self.queued_s = max(self.queued_s, self.now_s) + seconds

    def record(self, _device: torch.device) -> Moment:
        return Moment(self, max(self.queued_s, self.now_s))


def test_device_time_of_a_sample_counts_after_it_completes(clock: Clock) -> None:
    """A second a step; a sample takes 0.5 s of the device, and 0.1 s of the host to launch it, which is in it."""
    meter, device = Meter("auto", 0.01), Device()
    meter.device_clock = DeviceClock(device.record)
    meter.device_clock.devices = [torch.device("cuda:0")]

    def launch() -> None:
        device.launch(0.5)
        clock.passes(0.1)

    hook = meter.timed(lambda: meter.device_clock.time(launch))
    meter.window_begins()
    shares = []
    for step in range(160):
        if step % 10 == 0:
            hook()
        clock.passes(1.0)
        meter.set_sender_time(0.0)
        meter.window_ended(is_sampled=step % 10 == 0)
        shares.append(meter.share())
        if step > 40:
            device.now_s += 1.5
    assert shares[40] == pytest.approx(5 * 0.1 / (41 + 5 * 0.1))
    assert meter.share() == pytest.approx(16 * 0.5 / (160 + 16 * 0.1))


def test_samples_over_the_pending_limit_are_not_timed() -> None:
    device, launched = Device(), []
    timer = DeviceClock(device.record)
    timer.devices = [torch.device("cuda:0"), torch.device("cuda:1")]
    for _ in range(100):
        device.launch(1.0)
        timer.time(lambda: launched.append(device.launch(1.0)))
    assert (len(launched), timer.take()) == (100, 0.0)
    device.now_s = 1000.0
    assert timer.take() == pytest.approx(64.0, rel=1e-3)
