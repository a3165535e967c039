"""What is stored is the gradient before the clip, whatever the clip makes of it."""

import base64

import numpy as np
import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.hooks import backward
from support.agent.recorded import recording
from support.collectors import Collector

STEPS, LIMIT = 20, 0.01


def train(collector: Collector, run: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Train under the agent; return layer names and absmax float64 [steps, layers] before and after the clip."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, after = [], []
    with gradcanary.watch(model, optimizer, run=run, url=collector.url):
        for _ in range(STEPS):
            for _ in range(3):
                (10 * model(torch.randn(8, 16)).square().mean()).backward()
            before.append([float(each.grad.double().abs().max()) for each in model.parameters()])
            torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
            after.append([float(each.grad.double().abs().max()) for each in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
    return [name for name, _ in model.named_parameters()], np.array(before), np.array(after)


def stored(collector: Collector, run: str, names: list[str]) -> tuple[list[str], np.ndarray]:
    """Return the phases and absmax [steps, layers] that the collector has."""
    answer = collector.get(f"/api/v1/runs/{run}/series", stat="absmax", layer=names, points=STEPS).json()
    columns = [np.frombuffer(base64.b64decode(each["min"]["data"]), each["min"]["dtype"]) for each in answer["series"]]
    assert [each["name"] for each in answer["series"]] == names
    return answer["phases"], np.array(columns, np.float64).T


@pytest.fixture
def no_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without the private calls that lead to the end of backward."""
    monkeypatch.delattr("torch._C._current_graph_task_id")
    assert not backward.has_callbacks()


@pytest.mark.loop("clipping")
def test_absmax_is_the_unclipped_one(collector: Collector) -> None:
    names, before, after = train(collector, "clipped")
    phases, absmax = stored(collector, "clipped", names)
    assert phases == ["accumulated"]
    np.testing.assert_allclose(absmax, before, rtol=1e-6)
    assert (after < 0.1 * before).all()


@pytest.mark.loop("a torch without the callback of the autograd engine")
def test_without_the_private_callback_it_says_post_clip(collector: Collector, no_callbacks: None) -> None:
    names, _, after = train(collector, "late")
    phases, absmax = stored(collector, "late", names)
    assert phases == ["post_clip"]
    np.testing.assert_allclose(absmax, after, rtol=1e-6)


def clip_in_order(
    unscales: str, clip: str, *, limit: float = 0.5, scale: float = 2.0**14, fused: bool = False
) -> list[str]:
    """Train with a GradScaler that ``unscales`` before the clip or after it; return what is said of the clips."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=4)
    with recording() as collector:
        with gradcanary.watch(model, optimizer, run="order", url=collector.url):
            for step in range(STEPS):
                for _ in range(2):
                    scaler.scale(10 * model(torch.randn(8, 16)).square().mean()).backward()
                if unscales == "before":
                    scaler.unscale_(optimizer)
                if clip == "norm":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
                elif clip == "value":
                    torch.nn.utils.clip_grad_value_(model.parameters(), limit)
                elif clip == "adaptive":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), limit * (1 + 0.1 * step))
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return [fact["text"] for fact in collector.facts("clip_before_unscale")]


@pytest.mark.parametrize(("limit", "fused"), [(0.5, False), (1.0, True), (25, False)])
def test_a_clip_of_scaled_gradients_is_told(limit: float, *, fused: bool) -> None:
    (text,) = clip_in_order("after", "norm", limit=limit, fused=fused)
    assert f"clipped to a norm of {limit:g} while they carry the loss scale" in text


@pytest.mark.parametrize(
    ("unscales", "clip", "scale"),
    [
        ("before", "norm", 2.0**14),
        ("before", "norm", 8.0),  # 0.5 times which is as short a number
        ("before", "value", 2.0**14),
        ("before", "adaptive", 2.0**14),
        ("after", "value", 2.0**14),
        ("after", "none", 2.0**14),
    ],
)
def test_other_clips_are_not(unscales: str, clip: str, scale: float) -> None:
    assert clip_in_order(unscales, clip, scale=scale) == []
