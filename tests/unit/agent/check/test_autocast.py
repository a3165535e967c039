"""What a ``with`` block says about autocast. Its defaults are those of the torch that is installed."""

import ast

import pytest
import torch

from gradcanary.check.autocast import DEFAULT_DTYPES, as_autocast
from support.agent.checked import program


def read(context: str) -> tuple[str | None, bool] | None:
    checked = program(f"import torch\ndtype = torch.half\nwith {context}: pass")
    (block,) = [node for node in checked.nodes if isinstance(node, ast.With)]
    found = as_autocast(block.items[0].context_expr, checked)
    return None if found is None else (found.dtype, found.is_off)


@pytest.mark.parametrize("device", sorted(DEFAULT_DTYPES))
def test_default_dtypes_are_those_of_torch(device: str) -> None:
    assert DEFAULT_DTYPES[device] == str(torch.get_autocast_dtype(device)).removeprefix("torch.")


@pytest.mark.parametrize(
    ("context", "found"),
    [
        ("torch.autocast('cuda:0')", ("float16", False)),
        ("torch.autocast('cpu')", ("bfloat16", False)),
        ("torch.autocast('xpu')", (None, False)),
        ("torch.autocast('cuda', dtype)", ("float16", False)),
        ("torch.amp.autocast(device_type='cuda', dtype=torch.bfloat16, enabled=False)", ("bfloat16", True)),
        ("torch.cuda.amp.autocast(True, torch.float16)", ("float16", False)),
        ("torch.cuda.amp.autocast(False)", ("float16", True)),
        ("torch.autocast(*given)", (None, False)),
        ("torch.autocast('cuda', **given)", (None, False)),
        ("torch.autocast('cuda') if x else torch.autocast('cpu')", (None, False)),
        ("torch.no_grad()", None),
        ("context", None),
    ],
)
def test_autocast(context: str, found: tuple[str | None, bool] | None) -> None:
    assert read(context) == found
