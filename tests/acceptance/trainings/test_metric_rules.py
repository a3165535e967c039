"""Bounds of logged metrics: one of twelve categories collapses, hidden in their mean, and is told."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gradcanary
from support.agent.scripted import Training
from support.collectors import Collector
from support.receivers import SECRET, Receiver
from support.server.fixtures import receiver_factory

__all__ = ["receiver_factory"]

CATEGORIES = ("bottles", *(f"category-{number}" for number in range(11)))
EVERY, EVALUATIONS, AT = 5, 40, 24
"""Steps from one evaluation to the next, their number, and the first one in which ``bottles`` is bad."""

RULES = """\
version: 1
metrics:
  - match: '^clip_score$'
    tags: {category: '.*'}
    falls_by: 0.2
    severity: critical
pace: {wait_s: 0.5}
"""
EASY = RULES.replace("0.2", "0.9").replace("pace: {wait_s: 0.5}\n", "")
MISSPELT = "  - {match: clip_scores, below: 0.2}\n  - {match: clip_score, tags: {split: val}, below: 0.2}\n"


def train(collector: Collector, run: str, scores: np.ndarray, **settings: object) -> None:
    """Train and log scores [evaluation, category]."""
    training = Training()
    with gradcanary.watch(training.model, training.optimizer, url=collector.url, run=run, **settings) as watch:
        for evaluation in scores:
            training.steps(EVERY)
            for category, score in zip(CATEGORIES, evaluation.tolist(), strict=True):
                watch.log(clip_score=score, tags={"category": category, "provider": "sdxl"})


def scores() -> np.ndarray:
    """Scores of 0.31 with noise of 3 %; ``bottles`` fall to 0.12, and the mean of all by 5 %."""
    known = 0.31 + 0.01 * np.random.default_rng(0).standard_normal((EVALUATIONS, len(CATEGORIES)))
    known[AT:, 0] = 0.12
    before, after = known[:AT].mean(), known[AT:].mean()
    assert after > 0.92 * before  # no bound of 20 % on the mean would be crossed
    return known


def test_the_collapse_of_one_category_is_one_message_that_names_it(
    collector_factory: Callable[..., Collector],
    receiver_factory: Callable[..., Receiver],
    typed: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
) -> None:
    receiver, rules = receiver_factory(), tmp_path / "rules.yaml"
    rules.write_text(RULES)
    collector = collector_factory(
        "--webhook", receiver.url, "--rules", str(rules), env={"GRADCANARY_WEBHOOK_SECRET": SECRET}
    )
    train(collector, "sdxl", scores())
    receiver.wait(1)
    time.sleep(2)
    [message] = receiver.verified(SECRET)
    data, name = message["data"], "clip_score{category=bottles, provider=sdxl}"
    since = AT * EVERY + EVERY - 1
    assert message["type"] == "gradient.metric.opened"
    assert data["counts"] == {"firing": 1, "ever": 1, "layers": 12}
    assert [each["name"] for each in data["worst"]] == [name]
    assert data["title"] == "[critical] sdxl: clip_score of category=bottles, provider=sdxl fell by 62 % (#1)"
    assert data["explanation"]["what"].startswith("clip_score of category=bottles, provider=sdxl fell from 0.3")
    assert f"since step {since}; over all 12 series of clip_score the mean of the values is 0." in data["summary"]
    assert data["explanation"]["evidence"] == ["11 of 12 series of clip_score are not in this incident."]
    assert not any(category in receiver.got[0].body.decode() for category in CATEGORIES[1:])

    shown = collector.get("/api/v1/incidents/1").json()
    [member] = shown["layers"]
    assert member["metric"]["tags"] == {"category": "bottles", "provider": "sdxl"}
    assert (member["layer"], member["name"], member["evidence"], member["since_step"]) == (None, name, "fell", since)
    assert member["metric"]["bound"] == pytest.approx(0.8 * member["baseline"])
    status, said, _ = typed("incidents", 1, "--url", collector.url)
    assert status == 0
    assert name in said
    assert "  metric  1/12 series  " in typed("incidents", "--url", collector.url)[1]

    status, said, _ = typed("test-rules", rules, "--run", "sdxl", "--url", collector.url)
    assert status == 1
    assert f"  metric (critical) fired at step {since + 2 * EVERY}, run_finished at step 199" in said
    assert f"    1 of 12 series: {name}\n    opened at" in said
    assert "matches nothing" not in said
    easy = tmp_path / "easy.yaml"
    easy.write_text(EASY + MISSPELT)
    status, said, _ = typed("test-rules", easy, "--run", "sdxl", "--url", collector.url)
    assert status == 0
    assert f"{easy}: 0 incidents, 0 messages" in said
    name, tags = said.splitlines()[-2:]
    assert name.startswith("metrics: match 'clip_scores' matches nothing here: logged are agent_share, clip_score, ")
    assert tags.startswith("metrics: match 'clip_score' with tags {'split': 'val'} matches nothing here: logged are ")


def test_bounds_that_the_training_declares_need_no_file(module_collector: Collector) -> None:
    bounds = {"clip_score": {"below": 0.2, "observations": 2, "severity": "critical"}}
    train(module_collector, "declared", scores(), metrics=bounds, absmax_below=1e6)
    train(module_collector, "without", scores())
    found, collapse = module_collector.get("/api/v1/incidents").json()["incidents"]
    assert (found["run"], found["rule"], found["severity"]) == ("declared", "metric", "critical")
    assert "under the bound of 0.2, since step 124" in found["summary"]
    assert (collapse["run"], collapse["rule"]) == ("declared", "collapse")
    assert found["likely_cause"]["code"] == "metric_after"
    assert found["likely_cause"]["incidents"] == [collapse["id"]]
