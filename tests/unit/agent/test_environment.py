"""The command of a launch is reported, and its secrets are not."""

import platform
import shlex
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import environment

KEY = "Xk29_secret-of-mine8"
COMMANDS = {
    "an option and its value": ["--api-key", KEY],
    "an option with its value": [f"--hub_token={KEY}"],
    "a word of hydra": [f"wandb.api_key={KEY}"],
    "a short password": ["--password", "abc"],
    "a user in a URL": [f"--db=postgresql://me:{KEY}@host/runs"],
    "a query": [f"https://bucket.example/data?X-Amz-Signature={KEY}"],
    "a webhook": [f"https://hooks.slack.com/services/T0/B0/{KEY}"],
    "JSON": [f'{{"model": "a", "token": "{KEY}"}}'],
    "a header": [f"--header=Authorization: Bearer {KEY}"],
    "an assignment": [f"export HF_TOKEN={KEY} && python x.py"],
    "a token of Hugging Face": ["--x", "hf_abcdefghijklmnop123456"],
    "a token of the collector": ["gc_ingest_abcdefghijklmnop123456"],
    "a key of wandb": ["0123456789abcdef0123456789abcdef01234567"],
}


@pytest.mark.parametrize("case", COMMANDS)
def test_secret_is_hidden(case: str) -> None:
    shown = environment.redacted_command(["python", "train.py", *COMMANDS[case]])
    assert shown.startswith("python train.py ")
    assert "***" in shown
    for secret in (KEY, "abc", "abcdefghijklmnop123456", "0123456789abcdef"):
        assert secret not in shown.replace("abc.example", "")


@pytest.mark.parametrize(
    "argument",
    ["--max_tokens=512", "--tokenizer", "bert-base", "--lr=1e-3", "https://host.example/a/b.json", "a/b.c", "--keys"],
)
def test_other_arguments_are_shown(argument: str) -> None:
    assert environment.redacted_command(["python", "-m", "train", argument]) == f"python -m train {argument}"


def test_code_of_an_argument_is_hidden_but_not_a_configuration() -> None:
    assert environment.redacted_command(["python", "-u", "-c", "train()"]) == "python -u -c ***"
    assert environment.redacted_command(["python", "train.py", "-c", "small.yaml"]) == "python train.py -c small.yaml"


@given(st.lists(st.text(max_size=60), max_size=8))
def test_command_is_one_printable_line_that_a_shell_reads(arguments: list[str]) -> None:
    shown = environment.redacted_command(arguments)
    assert shown.isprintable() or not any(map(str.isprintable, arguments)) or "\n" not in shown
    assert len(shlex.split(shown)) == len(arguments)


def test_secret_where_an_argument_is_cut_is_hidden() -> None:
    shown = environment.redacted_command(["python", "train.py", "x" * 488 + " hf_abcdefghijklmnop123456 " + "y" * 90])
    assert "hf_" not in shown
    assert len(shown) < 530


def test_long_argument_takes_no_time() -> None:
    began = time.thread_time()
    environment.redacted_command(
        ["python", *("secret." * 30_000, "token_" * 30_000, "a" * 200_000, "http://" * 20_000)]
    )
    assert time.thread_time() - began < 2


def test_only_listed_variables_are_read() -> None:
    found = environment.read_environment(
        {"SLURM_JOB_ID": "812", "SLURM_JWT": KEY, "AWS_SECRET": KEY, "POD_NAME": "a\nb"}
    )
    assert dict(found.job) == {"SLURM_JOB_ID": "812", "POD_NAME": "a b"}
    assert KEY not in str(found)


def test_environment_is_that_of_this_process() -> None:
    found = environment.read_environment({}, ["NVIDIA H100"])
    assert found.command == environment.redacted_command(sys.orig_argv)[: environment.MAX_COMMAND]
    assert (found.host, found.gpus) == (platform.node(), ("NVIDIA H100",))
    assert dict(found.versions)["python"] == platform.python_version()


def git(*words: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *name, *words], check=True, capture_output=True)


def test_git_commit_and_changes(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment.read_environment({}).git_commit is None
    git("init", "-q")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-q", "-m", "a")
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / "b.py").write_text("2")  # not tracked: the outputs of a training lie beside its code
    assert (environment.read_environment({}).git_commit, environment.read_environment({}).git_dirty) == (head, False)
    (tmp_path / "a.py").write_text("3")
    assert environment.read_environment({}).git_dirty is True


def test_git_that_hangs_or_is_missing_is_left(tmp_path, monkeypatch) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(environment, "GIT_S", 0.05)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert environment.read_environment({}).git_commit is None
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert environment.read_environment({}).git_commit is None
