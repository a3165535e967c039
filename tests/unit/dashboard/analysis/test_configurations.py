"""The configurations of compared runs: each argument and setting by its name, what differs, what is not known."""

from typing import Any

import pytest

from gradcanary_dashboard.analysis import configurations
from support.api_answers import run

VERSIONS = {"python": "3.11.7", "torch": "2.13.0"}


def environment(command: str = "python train.py", **more: Any) -> dict[str, Any]:
    known = {"command": command, "git_commit": None, "git_dirty": None, "host": "node-7", "gpus": [], "job": {}}
    return {**known, "versions": VERSIONS, **more}


def setting(name: str, value: Any, *groups: int, step: int = 0) -> dict[str, Any]:
    return {"step": step, "checked": None, "groups": list(groups), "name": name, "value": value}


def sent(*settings: dict[str, Any], metrics: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    launch = {"launch": "a", "started": "2026-11-20T10:00:00Z", "environment": environment(**changes)}
    logged = [{"name": name, "tags": {}, "last": last} for name, last in (metrics or {}).items()]
    return run(launches=[{**launch, "settings": list(settings)}], metrics=logged, framework=None)


def values(*runs: dict[str, Any]) -> dict[str, list[str | None]]:
    return {row.name: [*row.values] for row in configurations.rows(runs)}


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("/opt/venv/bin/python3.11 train.py", {"the program": "train.py"}),
        ("python -m package.train a b", {"the program": "-m package.train", "argument 1": "a", "argument 2": "b"}),
        ("train.py --lr 1e-3 --low -1 --token '***'", {"--lr": "1e-3", "--low": "-1", "--token": "***"}),
        ("train.py --betas 0.9 0.99 --fast --out=/x/y z", {"--betas": "0.9 0.99", "--fast": "set", "--out": "/x/y"}),
        ("train.py ++model.lr=3 data.path=/x", {"model.lr": "3", "data.path": "/x"}),
        ("train.py --name 'not closed", {"--name": "'not closed"}),
        ("", {"the program": ""}),
        ("python3 -u train.py --lr 1e-3", {"the program": "train.py", "--lr": "1e-3"}),
        ("torchrun --nproc-per-node 8 train.py program=x", {"the program": "train.py", "program": "x"}),
        ("/usr/bin/python3 -u -m package.train --lr 1", {"the program": "-m package.train", "--lr": "1"}),
        ("trainer -m 0.9", {"the program": "trainer", "-m": "0.9"}),
    ],
)
def test_arguments_of_a_command_have_their_names(command: str, found: dict[str, str]) -> None:
    read = configurations.arguments(command)
    assert {name: read.get(name) for name in found} == found


def test_what_differs_is_told_of_each_run() -> None:
    first, other = sent(setting("lr", 1e-3, 0)), sent(setting("lr", 1e-4, 0), command="python train.py --seed 2")
    rows = {row.name: row for row in configurations.rows([first, other])}
    assert [name for name, row in rows.items() if row.differs] == [
        configurations.RATE_FIRST,
        configurations.RATE_LAST,
        "--seed",
    ]
    assert rows["--seed"].values == [None, "2"]
    assert rows["torch"].values == ["2.13.0", "2.13.0"]


def test_groups_with_the_same_values_share_them_and_a_change_has_both() -> None:
    decay = [setting("weight_decay", 0.01, 0, 2), setting("weight_decay", 0.0, 1)]
    changed = setting("weight_decay", 1e5, 1, step=600)
    assert values(sent(*decay), sent(*decay, changed))["weight decay"] == [
        "0.01 of groups 0 and 2, 0 of group 1",
        "0.01 of groups 0 and 2, 0 → 100,000 of group 1",
    ]
    assert values(sent(decay[1]), sent(*[setting("eps", 1 / size, 0, step=size) for size in (1, 2, 4, 8)]))["eps"] == [
        None,
        "1 → … → 0.125",
    ]


def test_a_learning_rate_that_is_not_finite_is_left_out() -> None:
    broken = sent(setting("lr", 1e-3, 0, 1), metrics={"lr0": 1e-5})
    broken["metrics"][0]["last"] = None  # as the API sends NaN
    rows = {row.name: row.values for row in configurations.rows([broken, broken])}
    assert rows[configurations.RATE_LAST] == ["0.001", "0.001"]


def test_the_last_learning_rate_is_the_logged_one() -> None:
    scheduled = sent(setting("lr", 1e-3, 0, 1), metrics={"lr0": 1e-5, "lr1": 1e-5, "lr": 7.0})
    told = values(scheduled, sent(setting("lr", 1e-3, 0)))
    assert told[configurations.RATE_FIRST] == ["0.001", "0.001"]
    assert told[configurations.RATE_LAST] == ["1e-5", "0.001"]


def test_a_clip_is_its_limit_if_that_was_seen() -> None:
    rate = setting("lr", 1e-3, 0)
    limited = sent(rate, setting("max_norm", 0.5), metrics={"clip_factor": 0.1, "total_norm": 3.0})
    untouched = sent(rate, metrics={"clip_factor": 1.0, "total_norm": 3.0})
    without, unknown = sent(rate, metrics={"total_norm": 3.0}), sent(rate)
    assert values(limited, untouched, without, unknown)[configurations.CLIP] == [
        "0.5",
        configurations.NO_LIMIT,
        configurations.NO_LIMIT,
        None,
    ]
    rows = configurations.rows([untouched, without])
    assert not any(row.differs for row in rows), "under a limit or without one: of a setting nothing is known"


def test_a_run_that_sent_nothing_differs_from_none() -> None:
    silent = run(framework=None)
    assert configurations.rows([sent(), silent]) == []
    rows = configurations.rows([sent(), silent, sent(git_commit="4f2a1c9b7e0000", git_dirty=True)])
    assert [(row.name, row.values) for row in rows if row.differs] == [
        ("git commit", [None, None, "4f2a1c9b7e, with changes that are not committed"])
    ]
    assert {row.unknown for row in rows} == {frozenset({1})}
