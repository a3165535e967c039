"""The arithmetic of a loss."""

import pytest

from gradcanary.check.rules.losses import may_be_divided
from support.agent.checked import program


def reads_as_divided(loss: str, before: str = "pass", after: str = "") -> bool:
    loop = f"for x in y:\n    {before}\n    ({loss}).backward()\n    optimizer.step()\n"
    checked = program(f"import torch.nn.functional as F\n{loop}{after}")
    (step,) = checked.steps
    count = checked.source.tree.body[1].target  # any name
    return may_be_divided(step.backwards[0], count, step, checked)


@pytest.mark.parametrize(
    ("loss", "before"),
    [
        ("loss", "loss = F.mse_loss(a, b)"),
        ("loss", "loss, logits = model(a)"),
        ("loss.mean()", "loss = criterion(a)"),
        ("loss.float()", "loss = model(a)['loss']"),
        ("a + 0.5 * b", "a = model(c).loss"),
        ("loss", "loss = model(a); loss += penalty(a)"),
    ],
)
def test_undivided(loss: str, before: str) -> None:
    assert not reads_as_divided(loss, before)


@pytest.mark.parametrize(
    ("loss", "before"),
    [
        ("loss / 4", "loss = F.mse_loss(a, b)"),
        ("loss", "loss = F.mse_loss(a, b) * scale"),
        ("loss", "loss = model(a); loss /= 4"),
        ("loss.sum()", "loss = model(a)"),
        ("loss", "loss = F.mse_loss(a, b, reduction=how)"),
        ("loss", "pass"),
        ("a if b else c / 4", "a = model(c)"),
        ("-loss", "loss = model(a)"),
        ("build(x)(a)", "pass"),
        ("other.mean()", "pass"),
    ],
)
def test_divided_or_not_known(loss: str, before: str) -> None:
    assert reads_as_divided(loss, before)


def test_helpers_are_followed_and_recursion_ends() -> None:
    assert not reads_as_divided("f(x)", after="def f(x):\n    return F.mse_loss(x, x), 1\n")
    assert reads_as_divided("f(x)", after="def f(x):\n    return F.mse_loss(x, x) / 4\n")
    assert reads_as_divided("f(x)", after="def f(x):\n    return f(x)\n")
