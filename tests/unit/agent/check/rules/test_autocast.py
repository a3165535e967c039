"""backward_in_autocast: where the block ends."""

import pytest

from support.agent.checked import found

INSIDE = """\
import contextlib
import torch
context = {context}
for x in loader:
    with context:
        loss = model(x).mean()
        loss.backward()
"""


@pytest.mark.parametrize(
    "context",
    [
        "torch.autocast('cuda', torch.bfloat16)",
        "torch.autocast('cuda', enabled=args.amp)",
        "contextlib.nullcontext() if cpu else torch.amp.autocast('cuda', dtype)",
    ],
)
def test_a_backward_pass_inside_autocast(context: str) -> None:
    assert found(INSIDE.format(context=context), "backward_in_autocast") == [(7, "backward_in_autocast")]


@pytest.mark.parametrize(
    "context", ["torch.autocast('cuda', enabled=False)", "contextlib.nullcontext()", "elsewhere.autocast()"]
)
def test_quiet_where_it_is_off_or_not_known(context: str) -> None:
    assert found(INSIDE.format(context=context)) == []


def test_quiet_after_the_block_and_where_an_inner_one_switches_it_off() -> None:
    text = INSIDE.format(context="torch.autocast('cuda', torch.bfloat16)")
    assert found(text.replace("        loss.backward()", "    loss.backward()"), "backward_in_autocast") == []
    off = "        with torch.autocast('cuda', enabled=False): loss.backward()"
    assert found(text.replace("        loss.backward()", off), "backward_in_autocast") == []


def test_a_helper_that_is_called_inside_is_found_once() -> None:
    text = """\
    import torch
    def update(loss):
        loss.backward()
    with torch.autocast("cpu"):
        update(model(x))
        update(model(y))
    """
    assert found(text) == [(3, "backward_in_autocast")]
