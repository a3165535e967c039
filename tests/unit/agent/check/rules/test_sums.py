"""low_precision_sum: buffers, and what is added to them."""

import pytest

from support.agent.checked import found

CODE = "low_precision_sum"
TRAINING = """\
import torch
total = {made}
for x in loader:
    loss = model(x)
    {add}
"""


@pytest.mark.parametrize(
    "made",
    [
        "torch.zeros((), dtype=torch.bfloat16)",
        "torch.zeros(1, device=device, dtype=torch.half)",
        "torch.zeros(1).half()",
        "torch.tensor(0.0).to(device, torch.bfloat16)",
        "torch.zeros(1, dtype=torch.float16).cuda()",
        "x.new_zeros(1, dtype=torch.bfloat16)",
    ],
)
@pytest.mark.parametrize("add", ["total += loss", "total = total + loss", "total = loss + total", "total.add_(loss)"])
def test_sums(made: str, add: str) -> None:
    assert found(TRAINING.format(made=made, add=add), CODE) == [(5, CODE)]


@pytest.mark.parametrize(
    ("made", "add"),
    [
        ("torch.zeros(1)", "total += loss"),
        ("torch.zeros(1, dtype=torch.bfloat16).float()", "total += loss"),
        ("torch.randn(4, dtype=torch.bfloat16)", "total += loss"),
        ("torch.zeros(1, dtype=torch.bfloat16)", "total = loss"),
        ("torch.zeros(1, dtype=torch.bfloat16)", "x += 1"),
        ("0", "y = torch.zeros(1, dtype=torch.bfloat16); y += loss"),
        ("torch.zeros(9, dtype=torch.bfloat16)", "total[x] += loss"),
    ],
)
def test_quiet(made: str, add: str) -> None:
    assert found(TRAINING.format(made=made, add=add), CODE) == []


def test_elements_of_lists_and_dictionaries() -> None:
    text = """\
    import torch
    sums = [torch.zeros_like(p, dtype=torch.bfloat16) for p in parameters]
    named = {n: torch.zeros_like(p, dtype=torch.bfloat16) for n, p in parameters}
    for x in loader:
        for i, (buffer, p) in enumerate(zip(sums, parameters)):
            buffer.add_(p.grad)
        for n, p in parameters:
            named[n] += p.grad
    for buffer in sums:
        buffer += 1
    """
    assert found(text, CODE) == [(6, CODE), (8, CODE)]


def test_attributes_over_calls() -> None:
    text = """\
    import torch
    class Trainer:
        def __init__(self):
            self.total = torch.zeros(1, dtype=torch.bfloat16)
            self.optimizer = torch.optim.SGD(parameters)
        def step(self, x):
            loss = self.model(x)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.total += loss.detach()
    """
    assert found(text, CODE) == [(11, CODE)]
