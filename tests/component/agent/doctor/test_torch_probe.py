"""torch in a process of its own: right, missing, broken, old, and one that hangs."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from component.agent.doctor.conftest import Examine
from gradcanary.doctor import torch_devices, torch_probe

NOBODY = ("--url", "http://127.0.0.1:9")


def test_this_torch_multiplies_in_each_dtype(monkeypatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    records = torch_devices.Probe([], None).records()
    assert records[0]["version"] == torch.__version__
    assert records[-1]["step"] == "device" or torch.version.cuda
    [cpu] = [each for each in records if each["step"] == "device" and each["device"] == "cpu"]
    assert cpu["matmuls"] == {"float32": "", "float16": "", "bfloat16": ""}


def test_a_wrong_product_and_an_error_are_reported(monkeypatch) -> None:
    multiply = torch.Tensor.__matmul__

    def broken(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype == torch.float16:
            raise RuntimeError("no kernel\nimage")
        return multiply(left, right) + (left.dtype == torch.bfloat16)

    monkeypatch.setattr(torch.Tensor, "__matmul__", broken)
    expected = {"float32": "", "float16": "RuntimeError: no kernel image", "bfloat16": "the result is wrong"}
    assert dict(torch_probe.run_matmuls("cpu")) == expected


@pytest.mark.parametrize(("more", "is_run"), [({"uuid": "aa11"}, True), ({"uuid": "bb22"}, False), ({}, False)])
def test_nothing_is_run_on_a_gpu_that_may_be_in_use(monkeypatch, more, is_run) -> None:
    """No GPU is here: its properties are those of a stand-in."""
    properties = SimpleNamespace(name="NVIDIA X", total_memory=2**34, major=9, minor=0, **more)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    ran: list[str] = []
    monkeypatch.setattr(torch_probe, "run_matmuls", lambda device: ran.append(device) or [("float32", "")])
    found = torch_probe._look_at_gpu(1, ["GPU-aa11"])
    assert (found["name"], found["capability"]) == ("NVIDIA X", [9, 0])
    assert ran == (["cuda:1"] if is_run else [])
    assert ("matmuls" in found) == is_run


def test_a_python_without_torch_is_a_note(examine: Examine) -> None:
    _, found = examine(*NOBODY)
    assert found["torch"]["state"] == "note"
    assert found["torch"]["found"] == f"this Python has none ({sys.executable}): nothing trains here"
    assert "-m gradcanary.cli doctor" in found["torch"]["do"]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("raise OSError('libcudnn.so.9: cannot open shared object file')", "OSError: libcudnn.so.9: cannot open"),
        ("import os; print('Illegal instruction', flush=True); os.abort()", "ended with signal 6: Illegal instruction"),
        ("import sys; sys.exit(3)", "it ended with status 3"),
    ],
)
def test_a_broken_torch_is_a_fault(examine: Examine, torch_of_child: Path, module, says) -> None:
    torch_of_child.write_text(module)
    status, found = examine(*NOBODY)
    assert status == 1
    assert found["torch"]["state"] == "fault"
    assert says in found["torch"]["found"]


def test_a_torch_that_hangs_ends_after_its_time(examine: Examine, torch_of_child: Path, monkeypatch) -> None:
    torch_of_child.write_text("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")
    records, probes = torch_devices.Probe.records, list[torch_devices.Probe]()
    monkeypatch.setattr(torch_devices.Probe, "records", lambda probe: probes.append(probe) or records(probe, 0.5))
    _, found = examine(*NOBODY)
    assert probes[0]._process.poll() is not None, "it is gone"
    assert found["torch"]["found"] == "torch did not get past this: no answer within 0.5 s"
