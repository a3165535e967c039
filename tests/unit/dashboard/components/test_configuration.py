"""The configuration of a run: one line for groups that are alike, changes with both values, the rest folded."""

from typing import Any

from gradcanary_dashboard.components import configuration
from support.api_answers import run, text_of

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


def shown(*launches: dict[str, Any]) -> str:
    return text_of(configuration.cards(run(launches=list(launches))))


def test_unknown_configuration_has_no_card() -> None:
    assert configuration.cards(run(launches=[launch()])) == []


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


def test_program_and_machine_are_shown() -> None:
    words = shown(launch(environment=ENVIRONMENT))
    for part in ("--token ***", "Git commit 4f2a1c9b7e, with changes", "2 x NVIDIA H100", "torch: 2.13.0", "812"):
        assert part in words


def test_newest_launch_comes_first_and_earlier_ones_are_folded() -> None:
    first, second = launch(environment={**ENVIRONMENT, "host": "old"}), launch(environment=ENVIRONMENT)
    words = shown(first, second, launch())
    assert "Configuration of launch 2" in words
    assert words.index("node-7") < words.index("Launch 1") < words.index("old")
