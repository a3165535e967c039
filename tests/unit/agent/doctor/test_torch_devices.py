"""What is said of records of devices that this machine has not."""

import pytest

from gradcanary.doctor.torch_devices import find_idle, judge_records, parse_gpus

SMI = "GPU-aa11, NVIDIA H100 80GB HBM3, 4, 550.90.12\nGPU-bb22, NVIDIA A100, [N/A], 550.90.12\n"
GPUS = parse_gpus(SMI)
ALL_RIGHT = {"float32": "", "float16": "", "bfloat16": ""}
NO_CPU = ("", frozenset[str]())


def gpu(capability, matmuls=None, **more):
    found = {"step": "device", "device": "cuda:0", "name": "NVIDIA X", "memory": 80 * 2**30, "tf32": "highest"}
    found |= {"capability": capability, "is_rocm": False, **more}
    return found if matmuls is None else {**found, "matmuls": matmuls}


def judged(record, gpus=GPUS, cpu=NO_CPU):
    [finding] = judge_records([record], gpus, cpu)
    return finding


def test_rows_of_nvidia_smi():
    assert [(each["uuid"], each["used_mib"]) for each in GPUS] == [("GPU-aa11", 4), ("GPU-bb22", float("inf"))]
    assert find_idle(GPUS) == ["GPU-aa11"]
    assert find_idle(parse_gpus("GPU-cc33, NVIDIA H100, 1025, 550\nGPU-dd44, NVIDIA H100, 1024, 550\n")) == ["GPU-dd44"]
    assert parse_gpus("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == []


@pytest.mark.parametrize(
    ("record", "state", "says"),
    [
        (gpu([9, 0], ALL_RIGHT), "ok", "NVIDIA X, 80.0 GiB, compute capability 9.0: bf16 and fp16 in hardware, TF32"),
        (gpu([8, 0], ALL_RIGHT), "ok", "TF32 in float32 matmuls off"),
        (gpu([8, 0], ALL_RIGHT, tf32="high"), "ok", "TF32 in float32 matmuls on"),
        (gpu([7, 5], ALL_RIGHT), "note", "bf16 is emulated (in hardware from 8.0 on), fp16 in hardware; matm"),
        (gpu([7, 0], {**ALL_RIGHT, "bfloat16": "no"}), "note", "fp16 in hardware; bfloat16: no"),
        (gpu([6, 1], ALL_RIGHT), "note", "no tensor cores for fp16"),
        (gpu([9, 4], ALL_RIGHT, is_rocm=True), "ok", "NVIDIA X, 80.0 GiB: bf16 and fp16 by ROCm"),
        (gpu([9, 0]), "ok", "nothing was run on it"),
        (gpu([9, 0], {**ALL_RIGHT, "bfloat16": "wrong"}), "fault", "bfloat16: wrong"),
        (gpu([9, 0], dict.fromkeys(ALL_RIGHT, "no kernel image")), "fault", "float32, float16, bfloat16: no kernel"),
        (gpu([9, 0], dict.fromkeys(ALL_RIGHT, "CUDA-capable device(s) is/are busy or unavailable")), "note", "busy"),
    ],
)  # fmt: skip
def test_gpus(record, state, says):
    finding = judged(record)
    assert (finding.check, finding.state) == ("cuda:0", state)
    assert says in finding.found
    assert bool(finding.do) == (state != "ok")


@pytest.mark.parametrize(
    ("error", "gpus", "state"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", GPUS, "fault"),
        ("RuntimeError: Found no NVIDIA driver on your system.", [], "note"),
        ("RuntimeError: Found no NVIDIA driver on your system.", GPUS, "fault"),
        ("RuntimeError: No CUDA GPUs are available", [], "note"),
        ("RuntimeError: CUDA unknown error", [], "fault"),
    ],
)
def test_cuda_that_does_not_begin(error, gpus, state, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    finding = judged({"step": "cuda", "error": error}, gpus)
    assert finding.state == state
    assert (error in finding.found) == (state == "fault")


def test_gpus_that_are_hidden_are_a_note(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = judged({"step": "cuda", "count": 0})
    assert (finding.state, finding.found) == ("note", "CUDA_VISIBLE_DEVICES='' hides 2 GPUs")


@pytest.mark.parametrize(
    ("version", "cuda", "state", "says"),
    [
        ("2.3.1+cu121", "12.1", "fault", "gradcanary needs 2.4 or newer"),
        ("2.10.0a0+git1", "13.0", "ok", "2.10.0a0+git1, CUDA 13.0"),
        ("2.4.0+cpu", None, "note", "this machine has NVIDIA H100 80GB HBM3, which it does not use"),
    ],
)
def test_versions(version, cuda, state, says):
    record = {"step": "torch", "version": version, "cuda": cuda, "hip": None, "took_s": 1.0}
    finding = judged(record)
    assert finding.state == state
    assert says in finding.found


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"avx512_bf16", "amx_bf16"}, "bf16 in hardware (avx512_bf16, amx_bf16), fp16 emulated by float32; matmuls"),
        ({"bf16", "asimdhp"}, "bf16 in hardware (bf16), fp16 in hardware (asimdhp)"),
        (set(), "bf16 unknown, fp16 unknown"),
    ],
)
def test_cpus(flags, says):
    finding = judged({"step": "device", "device": "cpu", "matmuls": ALL_RIGHT}, cpu=("", frozenset(flags)))
    assert finding.state == "ok"
    assert finding.found.startswith(says)


def test_a_probe_that_was_cut_names_the_device():
    records = [{"step": "begin", "device": "cuda:1"}, {"step": "cut", "why": "no answer within 120 s"}]
    [finding] = judge_records(records, GPUS, NO_CPU)
    assert (finding.check, finding.state) == ("cuda:1", "fault")
    assert "nvidia-smi" in finding.do
