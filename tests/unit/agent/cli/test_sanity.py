"""The arguments of ``gradcanary sanity``: its own come before ``--``, those of the script after it."""

import argparse

import pytest

from gradcanary.cli import parser, run, sanity
from gradcanary.cli.console import UsageError
from gradcanary.sanity.runner import Source


def parsed(*words: str) -> argparse.Namespace:
    typed, command = run.split_arguments(["sanity", *words])
    return parser().parse_args(typed, argparse.Namespace(command=command))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("train.py",), ["train.py"]),
        (("train.py", "--steps", "5"), ["train.py"]),
        (("--steps", "5", "train.py", "--", "--lr", "3", "--", "x"), ["train.py", "--lr", "3", "--", "x"]),
        (("-m", "pkg.train", "--", "--steps", "7"), ["-m", "pkg.train", "--steps", "7"]),
        (("--", "torchrun", "--nproc-per-node", "2", "train.py"), ["torchrun", "--nproc-per-node", "2", "train.py"]),
        (("--", "-m", "train"), ["-m", "train"]),
    ],
)
def test_the_command_is_what_is_before_and_after_the_dashes(words: tuple[str, ...], command: list[str]) -> None:
    assert sanity.command_of(parsed(*words)) == command


def test_steps_are_those_before_the_dashes() -> None:
    assert parsed("train.py", "--", "--steps", "7").steps == sanity.STEPS
    assert parsed("train.py", "--steps", "5", "--", "--steps", "7").steps == 5


@pytest.mark.parametrize("words", [("train.py", "--lr", "3"), ("train.py", "--steps", "0"), ("t.py", "--steps", "x")])
def test_wrong_arguments_end_with_status_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*words)
    assert ended.value.code == 2
    assert words[-1] in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("--steps", "5"), ("--",)])
def test_nothing_to_run_is_an_error_that_shows_the_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"nothing to run. Usage: gradcanary sanity"):
        sanity.command_of(parsed(*words))


def test_a_training_joins_no_run_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCANARY_RUN", "sdxl-0412")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    source = Source("http://127.0.0.1:9")
    first, second = (sanity.training_environment(["python", "train.py"], source, every="1") for _ in range(2))
    assert first["GRADCANARY_URL"] == source.url
    assert first["GRADCANARY_RUN"].startswith("train-")
    assert len({first["GRADCANARY_RUN"], second["GRADCANARY_RUN"], "sdxl-0412"}) == 3


def test_without_the_collectors_package_an_address_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"needs a collector, and fastapi .*--url"), sanity.collector(None):
        pass
    with sanity.collector("http://127.0.0.1:9") as source:
        assert source.url == "http://127.0.0.1:9"
