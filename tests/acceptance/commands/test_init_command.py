"""``gradcanary init`` writes the settings of a training, and never over a file that is there."""

import subprocess
import sys
from pathlib import Path

import pytest

from gradcanary import TrainingConfig


def init(folder: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "gradcanary.cli", "init", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.smoke
def test_it_writes_the_defaults_and_says_how_to_use_them(tmp_path: Path) -> None:
    status, out, err = init(tmp_path)
    assert (status, err) == (0, "")
    assert (tmp_path / "gradcanary.yaml").read_text("utf-8") == TrainingConfig().as_yaml()
    first, *code = out.splitlines()
    assert first.startswith("gradcanary.yaml holds the settings")
    given: dict[str, object] = {"gradcanary": __import__("gradcanary")}
    exec(code[0].replace("'gradcanary.yaml'", repr(str(tmp_path / "gradcanary.yaml"))), given)
    assert given["config"] == TrainingConfig()
    assert code[1:] == ["optimizer, watch = gradcanary.setup_training(model, config)"]


def test_a_file_that_exists_is_replaced_by_force_only(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("run: lora-7\n", "utf-8")
    assert init(tmp_path, "mine.yaml") == (2, "", "gradcanary init: mine.yaml exists: --force replaces it\n")
    assert path.read_text("utf-8") == "run: lora-7\n"
    assert init(tmp_path, "mine.yaml", "--force")[0] == 0
    assert TrainingConfig.from_yaml(path) == TrainingConfig()


@pytest.mark.parametrize("words", [("missing/gradcanary.yaml",), (".", "--force")])
def test_a_place_that_takes_no_file_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    status, out, err = init(tmp_path, *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"gradcanary init: {words[0]} cannot be written: ")
    assert list(tmp_path.iterdir()) == []
