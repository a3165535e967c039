"""What the agent sends, as a real collector shows it: logged numbers, stats of weights, peak memory, an incident."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gradcanary
from gradcanary import wire
from support.agent.documented import example
from support.agent.scripted import Training, until
from support.collectors import Collector

pytestmark = pytest.mark.smoke


def points(module_collector: Collector, run: str, name: str) -> dict[tuple[tuple[str, str], ...], dict[float, float]]:
    """Return the values of a metric by tags and step; each is its own bucket."""
    answer = module_collector.get(f"/api/v1/runs/{run}/metrics", name=name).json()
    steps = wire.uncolumn("d", answer["steps"]["data"])
    found = {}
    for metric in answer["metrics"]:
        low, mean, high = (wire.uncolumn("d", metric[end]["data"]) for end in ("min", "mean", "max"))
        assert [*low] == pytest.approx([*high], nan_ok=True)
        known = {step: value for step, value in zip(steps, mean, strict=True) if value == value}
        found[tuple(sorted(metric["tags"].items()))] = known
    return found


def test_tagged_metrics_are_kept_per_tag(module_collector: Collector) -> None:
    training = Training()
    with gradcanary.watch(training.model, training.optimizer, url=module_collector.url, run="tags") as watch:
        for step in range(4):
            training.steps(1)
            for rank in ("0", "1"):
                watch.log(reward=torch.tensor(step + 10.0 * int(rank)), tags={"rank": rank, "set": "train"})
            watch.log(reward=100.0 + step)
            watch.log(loss=7.0, tags={"set": "validation"})
    tagged = {rank: (("rank", rank), ("set", "train")) for rank in ("0", "1")}
    assert points(module_collector, "tags", "reward") == {
        tagged["0"]: {step: float(step) for step in range(4)},
        tagged["1"]: {step: step + 10.0 for step in range(4)},
        (): {step: 100.0 + step for step in range(4)},
    }
    losses = points(module_collector, "tags", "loss")
    assert losses[(("set", "validation"),)] == dict.fromkeys(range(4), 7.0)
    assert 7.0 not in losses[()].values()  # the one that was captured is another series


def test_an_incident_calls_back(
    module_collector: Collector, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A threshold that all layers are under; the callback hears of it once, and the end names it."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    heard: list[tuple[gradcanary.Alert, str]] = []
    training = Training()
    with gradcanary.watch(
        training.model,
        training.optimizer,
        url=module_collector.url,
        run="alert",
        absmax_below=1e6,
        on_alert=lambda alert: heard.append((alert, threading.current_thread().name)),
    ) as watch:
        training.steps(30)
        until(lambda: heard)
        training.steps(10)
        assert [each.id for each in watch.incidents] == [heard[0][0].id]
    ((alert, thread),) = heard
    assert (alert.rule, alert.severity, alert.layers) == ("collapse", "critical", 4)
    assert thread == "gradcanary-sender"
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"gradcanary: 1 incident open at the end, collapse (critical, #{alert.id}): {module_collector.url}/runs/alert"
    )
    stored = module_collector.get(f"/api/v1/incidents/{alert.id}").json()
    assert stored["run"] == "alert"
    assert stored["summary"].startswith(alert.summary)  # by now it says how the run ended, too


def test_stats_of_weights_and_peak_memory_are_shown(module_collector: Collector) -> None:
    """The table holds what each layer had at its last turn, series and heatmap every turn."""
    training, norms = Training(), []
    with gradcanary.watch(training.model, training.optimizer, url=module_collector.url, run="weights"):
        for _ in range(12):
            training.steps(1)
            norms.append(float(training.model[0].weight.detach().double().norm()))
    layers = module_collector.get("/api/v1/runs/weights/layers").json()["layers"]
    assert len(layers) == 4
    assert all(0 < layer["update_ratio"] < 1 for layer in layers)
    series = module_collector.get("/api/v1/runs/weights/series", stat="weight_norm", layer="0.weight").json()
    (found,) = series["series"]
    drawn = zip(wire.uncolumn("d", series["steps"]["data"]), wire.uncolumn("f", found["mean"]["data"]), strict=True)
    known = {int(step): value for step, value in drawn if value == value}
    assert 0 < len(known) < 12
    assert known == pytest.approx({step: norms[step] for step in known}, rel=1e-6)
    assert series["phases"] == []
    heatmap = module_collector.get("/api/v1/runs/weights/heatmap", stat="update_ratio").json()
    cells = wire.uncolumn("h", heatmap["cells"]["data"])
    assert sum(cell != -32768 for cell in cells) == 4 + 2 * 11, "all in the first step, and two in each other one"
    peaks = points(module_collector, "weights", "peak_memory_bytes")[()]
    assert sorted(peaks) == list(range(12))
    assert all(peak > 10e6 for peak in peaks.values())


def test_a_threshold_of_the_training_is_that_of_its_rules_and_figures(
    module_collector: Collector, typed: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """0.weight falls from 5e-3 to 5e-5; 2.bias has always been there."""

    def train(run: str, **settings: float) -> list[str]:
        training, levels = Training(), {"0.weight": 5e-3, "0.bias": 5e-3, "2.weight": 5e-3, "2.bias": 5e-5}
        for name, parameter in training.model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: torch.full_like(gradient, levels[name]))
        with gradcanary.watch(
            training.model, training.optimizer, url=module_collector.url, run=run, every=1, **settings
        ):
            training.steps(200)
            levels["0.weight"] = 5e-5
            training.steps(60)
        found = module_collector.get("/api/v1/incidents", run=run, rule="collapse").json()["incidents"]
        told = [module_collector.get(f"/api/v1/incidents/{each['id']}").json() for each in found]
        return [layer["name"] for each in told for layer in each["layers"]]

    assert train("as-asked", collapse_below=1e-4) == ["0.weight"]
    assert train("lower", collapse_below=1e-5) == []
    assert train("as-the-collector") == ["0.weight"]
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\n")
    for run, enter, exits in (("as-asked", 1e-4, 1), ("lower", 1e-5, 0), ("as-the-collector", 1e-4, 1)):
        status, said, _ = typed("test-rules", rules, "--run", run, "--url", module_collector.url)
        assert (status, "collapse (critical) fired at step" in said) == (exits, bool(exits)), said
        of_run = f"/api/v1/runs/{run}"
        assert module_collector.get(of_run).json()["threshold"] == {"enter": enter}
        exit_of = pytest.approx(3 * enter)
        for figure in ("/series", "/layers/0.weight"):
            drawn = module_collector.get(f"{of_run}{figure}", stat="absmax", layer="0.weight").json()
            assert drawn["threshold"] == {"enter": enter, "exit": exit_of}
        assert module_collector.get(f"{of_run}/heatmap", stat="absmax").json()["threshold"] == {"enter": enter}


def test_the_documented_loop_stops_with_a_reason_unless_somebody_knows_of_it(
    module_collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/reference/python-api.md; the same run again goes on, because an earlier launch left that incident."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    monkeypatch.setenv("GRADCANARY_URL", module_collector.url)
    monkeypatch.setenv("GRADCANARY_RUN", "stops")
    monkeypatch.setenv("GRADCANARY_ABSMAX_BELOW", "1e6")
    monkeypatch.chdir(tmp_path)

    def run(steps: int) -> dict[str, object]:
        training, taken = Training(), []

        def loss_of(batch: torch.Tensor) -> torch.Tensor:
            taken.append(batch)
            return training.model(batch).square().mean()

        known = {"gradcanary": gradcanary, "torch": torch, "model": training.model, "optimizer": training.optimizer}
        names = {**known, "loss_of": loss_of, "loader": (torch.randn(4, 4) for _ in range(steps)), "taken": taken}
        exec(example("`stop_on`"), names)
        return names

    names = run(20_000)
    assert 0 < len(names["taken"]) < 20_000
    reason = names["watch"].stop_reason
    assert capsys.readouterr().out == f"{reason}\n"
    assert reason.startswith("collapse (critical, #")
    assert "All 4 parameters went under the threshold given for them" in reason
    assert torch.load("stopped.pt").keys() == names["model"].state_dict().keys()
    names = run(400)
    assert len(names["taken"]) == 400
    assert names["watch"].stop_reason is None


def test_an_acknowledgement_lets_the_training_go_on(
    module_collector: Collector, monkeypatch: pytest.MonkeyPatch, typed: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    training, url = Training(), module_collector.url
    with gradcanary.watch(
        training.model, training.optimizer, url=url, run="acked", absmax_below=1e6, stop_on="critical"
    ) as watch:
        training.steps(30)
        until(lambda: watch.should_stop)
        assert typed("ack", watch.incidents[0].id, "--url", url)[0] == 0
        until(lambda: training.steps(1) or not watch.should_stop)
        assert watch.incidents[0].acknowledged
    with gradcanary.watch(
        training.model, training.optimizer, url=url, run="silenced", absmax_below=1e6, stop_on="critical"
    ) as watch:
        assert typed("silence", "--run", "silenced", "--for", "1h", "--url", url)[0] == 0
        training.steps(30)
        until(lambda: watch.incidents)
        assert (watch.incidents[0].silenced, watch.should_stop) == (True, False)


class Adapters(torch.nn.Module):
    """Six LoRA pairs in a row, and a head."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [{"lora_A": torch.nn.Linear(16, 4), "lora_B": torch.nn.Linear(4, 16)} for _ in range(6)]
        self.blocks = torch.nn.ModuleList(map(torch.nn.ModuleDict, pairs))
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for pair in self.blocks:
            x = x + pair["lora_B"](pair["lora_A"](x))
        return self.head(x)


@pytest.mark.parametrize("shrinks", [False, True])
def test_a_lora_partner_is_blamed_if_it_shrank_and_a_resumed_fault_is_open_again_soon(
    module_collector: Collector, *, shrinks: bool
) -> None:
    torch.manual_seed(0)
    run, model, step = f"partner-{shrinks}", Adapters(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    lora_a, lora_b = (model.blocks[2][f"lora_{half}"].weight for half in "AB")
    lora_a.register_hook(lambda gradient: gradient if shrinks or step < 150 else gradient * 1e-7)

    def train(until: int) -> None:
        nonlocal step
        with gradcanary.watch(model, optimizer, url=module_collector.url, run=run, every=1, step=step):
            for each in range(step, until):
                step = each
                x = torch.randn(32, 16)
                model(x).sub(x.sum(1, keepdim=True).sin()).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if shrinks and step >= 150:
                    with torch.no_grad():
                        lora_b.mul_(0.5)
        step = until

    def told() -> dict[str, Any]:
        [found] = module_collector.get("/api/v1/incidents", run=run, rule="collapse").json()["incidents"]
        return module_collector.get(f"/api/v1/incidents/{found['id']}").json()

    train(260)
    first = told()
    cause, explanation = first["likely_cause"], first["explanation"]
    assert (first["state"], first["reopened"]) == ("ended", 0)
    if shrinks:
        assert cause["code"] == "lora_partner"
        assert cause["evidence"][1].startswith("the weights of 1 of 1 measured partners shrank: the norm of blocks.2")
    else:
        assert cause["code"] == "lora_own"
        assert cause["evidence"][1].startswith(
            "its partner's weights did not shrink: the norm of blocks.2.lora_B.weight"
        )
        assert cause["evidence"][2] == "no setting of a parameter group had changed: lr 0.001, weight_decay 0.01"
        assert "every parameter group" not in explanation["do_first"]
    train(300)
    again = told()
    assert (again["id"], again["reopened"]) == (first["id"], 1)
