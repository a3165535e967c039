"""What only a GPU shows: ``make test-gpu``, no part of ``make test``.

``GRADCANARY_TEST_DEVICE=cpu`` runs those that make sense there, to try the tests themselves.
"""

import os
from collections.abc import Iterator

# Before CUDA is initialized: cuBLAS is deterministic with it only.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch

from support.agent.gpu_steps import DEVICE
from support.agent.recorded import Recorded, recording

NO_GPU = (
    f"torch {torch.__version__} sees no CUDA device. These tests need a machine with an NVIDIA GPU and its driver, and "
    "a torch that was built for it: make clean, then make test-gpu TORCH='torch==2.13.0', which on Linux brings CUDA. "
    "For another version of CUDA set PIP_INDEX_URL=https://download.pytorch.org/whl/cu126, or what it is, before"
)


def pytest_sessionstart() -> None:
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        pytest.exit(NO_GPU, returncode=1)


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def collector() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded
