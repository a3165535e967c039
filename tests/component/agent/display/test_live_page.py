"""``watch.show()`` where there is no notebook: the address, and never an error into the loop."""

import io
import sys

import pytest
import torch

import gradcanary
from support.agent.recorded import Recorded


@pytest.fixture
def watch(collector: Recorded) -> gradcanary.Watch:
    model = torch.nn.Linear(2, 1)
    return gradcanary.watch(model, torch.optim.SGD(model.parameters()), run="mine", url=collector.url)


def test_a_terminal_gets_the_address(watch: gradcanary.Watch, capsys: pytest.CaptureFixture[str]) -> None:
    with watch:
        watch.show()
        assert capsys.readouterr().out == f"{watch.url}\n"
    watch.show()
    assert capsys.readouterr().out == f"{watch.url}\n", "also after the end"


def test_a_closed_stdout_does_not_end_a_training(
    watch: gradcanary.Watch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    with watch:
        monkeypatch.setattr(sys, "stdout", closed)
        watch.show()
        monkeypatch.undo()
        assert f"the page is {watch.url}" in capsys.readouterr().err
