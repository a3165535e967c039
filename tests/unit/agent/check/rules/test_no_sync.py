"""no_sync_missing: DDP with accumulation, by a condition or by a loop inside."""

import pytest

from support.agent.checked import found

CODE = "no_sync_missing"
BY_CONDITION = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(loader):
    loss = model(x).mean() / K
    loss.backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
BY_LOOP = """\
import torch
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(steps):
    for x in micro_batches():
        loss = model(x).mean() / K
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_accumulation() -> None:
    assert found(BY_CONDITION, CODE) == [(7, CODE)]
    assert found(BY_LOOP, CODE) == [(7, CODE)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("DDP(net)", "net"),
        ("    if (i + 1) % K == 0:", "    if True:"),
        ("    loss = ", "    model.require_backward_grad_sync = (i + 1) % K == 0\n    loss = "),
        ("    loss.backward()", "    with model.no_sync(): loss.backward()"),
        ("    loss.backward()", "    accelerator.backward(loss)"),
        ("import DistributedDataParallel as DDP", "import Other as DDP"),
    ],
)
def test_quiet(old: str, new: str) -> None:
    assert old in BY_CONDITION
    assert found(BY_CONDITION.replace(old, new), CODE) == []
