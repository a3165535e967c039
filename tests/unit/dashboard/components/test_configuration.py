"""What ran: facts and changes unfolded, the rest folded; one line for groups that are alike."""

import json
from typing import Any

import pytest

from gradcanary_dashboard.components import configuration, static
from support.api_answers import layer, run, session, text_of

ENVIRONMENT = {
    "command": "python train.py --lr 1e-3 --token ***",
    "git_commit": "4f2a1c9b7e" + 30 * "0",
    "git_dirty": True,
    "host": "node-7",
    "gpus": ["NVIDIA H100", "NVIDIA H100"],
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "job": {"SLURM_JOB_ID": "812"},
}


def setting(step: int, checked: int | None, groups: list[int], name: str, value: Any) -> dict[str, Any]:
    return {"step": step, "checked": checked, "groups": groups, "name": name, "value": value}


def launch(*settings: dict[str, Any], environment: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"launch": "a", "started": "2026-11-20T10:00:00Z", "environment": environment, "settings": list(settings)}


FIRST = (
    setting(0, None, [0, 1, 2], "optimizer", "AdamW"),
    setting(0, None, [0, 2], "weight_decay", 0.01),
    setting(0, None, [1], "weight_decay", 0.0),
    setting(0, None, [0, 1, 2], "amsgrad", False),
)


def shown(*launches: dict[str, Any], **changes: Any) -> str:
    return text_of(configuration.overview(run(launches=list(launches), **changes), [layer(0)]))


def test_without_a_program_only_times_and_launches_are_shown() -> None:
    words = shown(launch(), sessions=[session(1, 0, 9)])
    assert "Details" not in words
    assert not any(name in words for name in ("Host", "Commit", "Optimizer"))
    assert "Launches" in words


def test_times_optimizer_and_micro_steps_are_unfolded() -> None:
    rates = [{"name": f"lr{group}", "tags": {}, "last": rate} for group, rate in enumerate((2e-5, 2e-5, 1e-6))]
    words = shown(launch(*FIRST), last_seen="2026-11-20T12:05:00Z", metrics=rates).partition("Summary")[0]
    for part in ("2 h 5 min", "AdamW, weight_decay 0.01", "2e-5, 1e-6", "8 a step"):
        assert part in words


def test_groups_with_the_same_settings_share_a_line() -> None:
    words = shown(launch(*FIRST))
    assert "Groups 0 and 2: AdamW, weight_decay 0.01" in words
    assert "Group 1: AdamW, weight_decay 0" in words
    assert "amsgrad" not in words


def test_change_has_both_values_and_its_steps() -> None:
    changes = setting(200, 199, [1], "weight_decay", 1e5), setting(1200, 1100, [0, 2], "weight_decay", 0.1)
    words = shown(launch(*FIRST, *changes))
    assert "Step 200: weight_decay of group 1, 0 to 100,000" in words
    assert "Steps 1,100 to 1,200: weight_decay of groups 0 and 2, 0.01 to 0.1" in words


def test_program_and_machine_are_shown_short_and_in_full() -> None:
    unfolded, _, folded = shown(launch(environment=ENVIRONMENT)).partition("Summary")
    for part in ("--token ***", "4f2a1c9b7e, with changes", "2 x NVIDIA H100", "node-7", "torch 2.13.0"):
        assert part in unfolded
    for part in (ENVIRONMENT["git_commit"], "torch: 2.13.0", "812"):
        assert part not in unfolded
        assert part in folded


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/opt/venv/bin/python /home/ada/train.py --lr 1", "python train.py --lr 1"),
        ("train.py --data=/big/set", "train.py --data=/big/set"),
        ("python a.py " + 200 * "x", "python a.py " + 148 * "x" + r" \u2026"),
        ("train", "train"),
    ],
)
def test_a_command_is_shown_without_folders_and_copied_whole(command: str, words: str) -> None:
    said = shown(launch(environment={**ENVIRONMENT, "command": command}))
    assert f'"children": "{words}"' in said
    assert f'"data-copy": "{command}"' in said


def test_newest_launch_comes_first_and_earlier_ones_are_folded() -> None:
    first, second = launch(environment={**ENVIRONMENT, "host": "old"}), launch(environment=ENVIRONMENT)
    words = shown(first, second, launch())
    assert words.index("node-7") < words.index("Launch 1") < words.index("old")


@pytest.mark.parametrize(
    ("sessions", "words"),
    [
        ([session(1, None, None, state="finished")], "1, finished: no step;"),
        ([session(1, None, None, state="crashed")], "1, crashed: no step;"),
        ([session(1, None, None)], "1, live: no step yet;"),
        ([session(1, 0, 9999), session(2, 9990, 12_000, every=10)], "1, live: steps 0 to 9,999"),
        ([session(1, 0, 9999), session(2, 9990, 12_000, every=10)], "10 steps before the end of launch 1"),
        ([session(1, 0, 9999), session(2, 9990, 12_000, every=10)], "sampled each 10th step; agent 1.0 %"),
    ],
)
def test_launches_have_their_steps_and_states(sessions: list[dict[str, Any]], words: str) -> None:
    assert words in shown(sessions=sessions)


def test_a_learning_rate_is_told_beside_a_change_of_its_group_and_without_one_long_ago() -> None:
    start = [setting(0, None, [0, 1], "lr", 2e-5), setting(0, None, [0, 1], "weight_decay", 0.0)]
    change = [setting(600, 599, [0], "lr", 2e-3), setting(600, 599, [1], "lr", 5e-6)]
    words = shown(launch(*start, *change, setting(600, 599, [1], "weight_decay", 1e5)))
    assert "Step 600: lr of group 1, 5e-6" in words
    assert "Step 600: weight_decay of group 1, 0 to 100,000" in words
    assert "lr of group 0" not in words
    assert "2e-5 to" not in words


def beside(tracker: str, url: str | None, store: str | None = None) -> dict[str, Any]:
    named = {"tracker": tracker, "id": "team/toy/1", "name": "lora 16", "url": url, "store": store}
    return launch(environment={**ENVIRONMENT, "trackers": [named]})


def drawn(*launches: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the text of the overview as the browser draws it, and what its links open."""
    words, opened = "", []

    def walk(trees: list[Any]) -> None:
        nonlocal words
        for tree in trees:
            if isinstance(tree, str):
                words += tree
            else:
                opened.extend([tree[1]["href"]] if "href" in tree[1] else [])
                walk(tree[2:])

    walk(json.loads(static.encode(configuration.overview(run(launches=list(launches)), [layer(0)]))))
    return words, opened


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://wandb.ai/team/toy/runs/1", "wandb.ai"),
        ("http://127.0.0.1:5000/#/experiments/1/runs/2", "127.0.0.1:5000"),
        ("http://[::1]:5000", "[::1]:5000"),
    ],
)
def test_a_run_of_a_tracker_is_a_link_with_its_host(url: str, host: str) -> None:
    words, opened = drawn(beside("wandb", url))
    assert f"W&Blora 16 at {host}" in words
    assert opened == [url]


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(document.domain)//https://wandb.ai",
        "data:text/html,<script>alert(1)</script>",
        " https://wandb.ai",
        "//wandb.ai/team",
        "https://wandb.ai@evil.example/team",
        "https://evil.example\\@wandb.ai/team",
        "https://w\N{CYRILLIC SMALL LETTER A}ndb.ai/team",
    ],
)
def test_any_other_address_is_text(url: str) -> None:
    words, opened = drawn(beside("wandb", url))
    assert opened == []
    assert f"lora 16, team/toy/1, {url}" in words


def test_a_run_without_an_address_says_what_it_is() -> None:
    offline, _ = drawn(beside("wandb", None, "offline-run-7"))
    assert "W&Blora 16, team/toy/1, offline run in offline-run-7" in offline
    stored, _ = drawn(beside("mlflow", None, "sqlite:///mlflow.db"))
    assert "MLflowlora 16, team/toy/1, kept in sqlite:///mlflow.db" in stored


def test_of_a_sweep_the_newest_runs_are_shown() -> None:
    (sweep,) = beside("wandb", None)["environment"]["trackers"]
    runs = [{**sweep, "name": f"try {number}"} for number in range(20)]
    words, _ = drawn(launch(environment={**ENVIRONMENT, "trackers": runs}))
    assert "try 7," not in words
    assert "try 19, team/toy/18 earlier runs" in words


def test_an_earlier_launch_keeps_its_links() -> None:
    url = "https://wandb.ai/team/toy/runs/1"
    words, opened = drawn(beside("wandb", url), launch(environment=ENVIRONMENT))
    assert opened == [url]
    assert "W&B: lora 16 at wandb.ai" in words.partition("Launch 1")[2]
