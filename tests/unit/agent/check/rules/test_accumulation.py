"""loss_not_divided, scheduler_per_micro_step and never_cleared: the mistake, and the correct twins that are quiet."""

import pytest

from support.agent.checked import findings, found

NOT_DIVIDED = "loss_not_divided"
PER_MICRO_STEP = "scheduler_per_micro_step"
NEVER_CLEARED = "never_cleared"

ACCUMULATED = """\
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
optimizer = torch.optim.AdamW(model.parameters())
schedule = CosineAnnealingLR(optimizer, 1000)
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y) / accumulate
    loss.backward()
    if (i + 1) % accumulate == 0:
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
"""
UNDIVIDED = ACCUMULATED.replace(" / accumulate", "")


def test_the_correct_loop_is_quiet() -> None:
    assert found(ACCUMULATED) == []


def test_a_loss_that_is_not_divided() -> None:
    assert found(UNDIVIDED) == [(8, NOT_DIVIDED)]
    assert "accumulate, the number of micro-steps" in findings(UNDIVIDED)[0].message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (i + 1) % accumulate == 0:", "if not (i + 1) % accumulate:"),
        ("if (i + 1) % accumulate == 0:", "if i % args.accumulate == args.accumulate - 1 or i == last:"),
        ("    if (i + 1) % accumulate == 0:", "    is_update = (i + 1) % accumulate == 0\n    if is_update:"),
        (" == 0:", " == 0 and True:"),
        ("accumulate == 0", "8 == 0"),
        ("F.cross_entropy(model(x), y)", "model(x, labels=y).loss"),
        ("F.cross_entropy(model(x), y)", "model(x)[0] + 0.1 * penalty(x)"),
    ],
)
def test_other_spellings_of_accumulation(old: str, new: str) -> None:
    assert [code for _, code in found(UNDIVIDED.replace(old, new))] == [NOT_DIVIDED]


def test_a_step_behind_continue() -> None:
    text = UNDIVIDED.replace("if (i + 1) % accumulate == 0:", "if (i + 1) % accumulate != 0: continue")
    text = text.replace("        optimizer.step", "    optimizer.step").replace("        schedule", "    schedule")
    assert found(text.replace("        optimizer.zero", "    optimizer.zero")) == [(8, NOT_DIVIDED)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("loss.backward()", "(loss / accumulate).backward()"),
        ("loss.backward()", "loss = loss / accumulate; loss.backward()"),
        ("loss.backward()", "loss /= accumulate; loss.backward()"),
        ("loss.backward()", "loss.div(accumulate).backward()"),
        ("loss.backward()", "(loss * weight).backward()"),
        ("loss.backward()", "accelerator.backward(loss)"),
        ("loss.backward()", "loss.backward(scale)"),
        ("F.cross_entropy(model(x), y)", "F.cross_entropy(model(x), y, reduction='sum')"),
        ("F.cross_entropy(model(x), y)", "imported.loss(model(x), y, accumulate)"),
        ("F.cross_entropy(model(x), y)", "weights @ model(x)"),
        ("        optimizer.step", "        for p in params: p.grad /= accumulate\n        optimizer.step"),
        ("        optimizer.step", "        average_gradients(model, accumulate)\n        optimizer.step"),
        ("AdamW(model.parameters())", "AdamW(model.parameters(), lr=base / accumulate)"),
        ("        optimizer.zero_grad()", "    optimizer.zero_grad()"),
        ("        optimizer.step()", "    optimizer.step()"),
        ("    loss.backward()", "    if i % accumulate == 0: loss.backward()"),
        ("% accumulate == 0", "% 1 == 0"),
        ("(i + 1) % accumulate == 0", "should_step(i)"),
        ("(i + 1) % accumulate == 0", "'%d' % i == last"),
    ],
)
def test_quiet_twins_of_loss_not_divided(old: str, new: str) -> None:
    text = UNDIVIDED.replace(old, new)
    assert text != UNDIVIDED
    assert found(text, NOT_DIVIDED) == []


def test_a_division_in_a_helper_is_seen() -> None:
    text = UNDIVIDED.replace("F.cross_entropy(model(x), y)", "loss_of(x, y)")
    helper = "def loss_of(x, y):\n    return F.cross_entropy(model(x), y){}\n"
    assert found(text + helper.format("")) == [(8, NOT_DIVIDED)]
    assert found(text + helper.format(" / accumulate")) == []


def test_accelerate_divides_by_itself() -> None:
    text = """\
    from accelerate import Accelerator
    import torch
    accelerator = Accelerator(gradient_accumulation_steps=4)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    """
    assert found(text) == []


def test_a_loop_of_two_optimizers_is_no_accumulation() -> None:
    text = """\
    import torch
    first, second = torch.optim.Adam(a), torch.optim.Adam(b)
    for i, x in enumerate(loader):
        first.zero_grad()
        critic(x).mean().backward()
        first.step()
        if i % 5 == 0:
            second.zero_grad()
            generator(x).mean().backward()
            second.step()
    """
    assert found(text) == []


EARLY = ACCUMULATED.replace("        schedule.step()\n", "") + "    schedule.step()\n"


def test_a_schedule_in_each_micro_step() -> None:
    assert found(EARLY) == [(12, PER_MICRO_STEP)]
    assert findings(EARLY)[0].fix.endswith("optimizer.step()\nschedule.step()")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1000", "len(loader) * epochs"),
        ("enumerate(loader)", "zip(range(1000), loader)"),
        ("CosineAnnealingLR(optimizer, 1000)", "make_schedule(optimizer)"),
        ("    schedule.step()", "    if i % accumulate == 0: schedule.step()"),
        ("    schedule.step()", "schedule.step()"),
        ("    schedule.step()", "    schedule.step(loss)"),
        ("    schedule.step()", "    if warm: schedule.step()"),
        ("import torch\n", "import torch\nfrom accelerate import Accelerator\n"),
    ],
)
def test_quiet_twins_of_scheduler_per_micro_step(old: str, new: str) -> None:
    text = EARLY.replace(old, new)
    assert text != EARLY
    assert found(text, PER_MICRO_STEP) == []


def test_a_schedule_counted_in_steps_of_the_optimizer() -> None:
    assert found(EARLY.replace("1000", "len(loader) // accumulate")) == [(12, PER_MICRO_STEP)]


UNCLEARED = """\
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
"""


def test_gradients_that_nothing_clears() -> None:
    assert found(UNCLEARED) == [(8, NEVER_CLEARED)]
    assert found(UNCLEARED.replace("    for x", "    optimizer.zero_grad()\n    for x")) == [(9, NEVER_CLEARED)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        loss =", "        optimizer.zero_grad()\n        loss ="),
        ("        loss =", "        model.zero_grad(set_to_none=True)\n        loss ="),
        ("        loss =", "        for p in model.parameters(): p.grad = None\n        loss ="),
        ("        loss =", "        for p in model.parameters(): p.grad.zero_()\n        loss ="),
        ("        loss =", "        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n        loss ="),
        ("        loss =", "        prepare(optimizer)\n        loss ="),
        ("        loss =", "        prepare(model)\n        loss ="),
        ("        loss =", "        callback.on_step_begin()\n        loss ="),
        ("        loss =", "        clear = optimizer.zero_grad\n        loss ="),
        ("optimizer.step()", "optimizer.step()\n        break"),
        ("torch.optim.SGD(model.parameters(), lr=0.1)", "make(model)"),
        ("optimizer.step()", "optimizer.step(lambda: again())"),
        ("loss.backward()", "accelerator.backward(loss)"),
    ],
)
def test_quiet_twins_of_never_cleared(old: str, new: str) -> None:
    text = UNCLEARED.replace(old, new)
    assert text != UNCLEARED
    assert found(text, NEVER_CLEARED) == []


def test_a_closure_that_clears() -> None:
    text = """\
    import torch
    optimizer = torch.optim.LBFGS(model.parameters())
    for x, y in loader:
        def closure():
            {clear}
            loss = criterion(model(x), y)
            loss.backward()
            return loss
        optimizer.step(closure)
    """
    assert found(text.format(clear="optimizer.zero_grad()")) == []
    assert found(text.format(clear="pass")) == [(9, NEVER_CLEARED)]


def test_an_optimizer_of_a_trainer_is_followed_to_its_methods() -> None:
    text = """\
    import torch
    class Trainer:
        def __init__(self, model):
            self.model = model
            self.optimizer = torch.optim.AdamW(model.parameters())
        def fit(self, loader):
            for batch in loader:
                self.train_step(batch)
        def train_step(self, batch):
            {clear}
            self.model(batch).mean().backward()
            self.optimizer.step()
    """
    assert found(text.format(clear="pass")) == [(12, NEVER_CLEARED)]
    assert found(text.format(clear="self.optimizer.zero_grad()")) == []
    assert found(text.format(clear="self.of_the_base_class()")) == []
