"""Training steps: which loop they are, what happens in them, and how often."""

import ast

import pytest

from gradcanary.check.steps import FRAMEWORK, PLAIN, SCALED, TrainingStep
from support.agent.checked import program


def steps(text: str) -> list[TrainingStep]:
    return list(program(text).steps)


@pytest.mark.parametrize(
    ("backward", "how"),
    [
        ("loss.backward()", PLAIN),
        ("loss.backward(retain_graph=True)", PLAIN),
        ("torch.autograd.backward(loss)", PLAIN),
        ("scaler.scale(loss).backward()", SCALED),
        ("scaled = scaler.scale(loss)\nscaled.backward()", SCALED),
        ("accelerator.backward(loss)", FRAMEWORK),
        ("engine.backward(loss)", FRAMEWORK),
        ("self.manual_backward(loss)", FRAMEWORK),
        ("with amp.scale_loss(loss, o) as scaled: scaled.backward()", FRAMEWORK),
    ],
)
def test_ways_of_a_backward_pass(backward: str, how: str) -> None:
    (step,) = steps(f"import torch\n{backward}\noptimizer.step()")
    assert [each.how for each in step.backwards] == [how]


def test_a_step_is_the_innermost_loop_around_both() -> None:
    text = """\
    for epoch in epochs:
        for batch in loader:
            for part in batch:
                model(part).backward()
            optimizer.step()
    """
    (step,) = steps(text)
    assert step.loop.lineno == 2
    assert [loop.lineno for loop in step.inner_loops(step.backwards[0].event)] == [3]


def test_two_loops_are_two_steps_and_a_helper_is_none_of_its_own() -> None:
    text = """\
    def update(loss):
        loss.backward()
        optimizer.step()
    for x in a:
        update(x)
    while True:
        update(y)
    """
    assert [step.loop.lineno for step in steps(text)] == [4, 6]
    assert [step.loop for step in steps(text.split("    for")[0])] == [None]


def test_a_backward_pass_and_a_step_in_loops_beside_each_other_share_the_loop_around() -> None:
    text = "for i in x:\n    for y in i:\n        y.backward()\n    for o in optimizers:\n        o.step()\n"
    (step,) = steps(text.replace("o.step", "optimizer.step"))
    assert step.loop.lineno == 1


def test_a_loop_that_only_evaluates_is_no_step() -> None:
    assert steps("for x in y:\n    model(x)\n") == []
    assert steps("for x in y:\n    loss.backward()\n") == []


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("if (i + 1) % k == 0:", "k"),
        ("if not i % self.k:", "self.k"),
        ("if i % 8 == 7 or is_last:", "8"),
        ("if not (i % k != 0):", "k"),
        ("if i % k:", None),
        ("if i % k != 0:", None),
        ("if i % 1 == 0:", None),
        ("if i % len(x) == 0:", None),
        ("if is_update:", None),
        ("if '%d' % i == x:", None),
    ],
)
def test_periods(condition: str, count: str | None) -> None:
    (step,) = steps(f"for i in x:\n    loss.backward()\n    {condition}\n        optimizer.step()")
    period = step.period(step.optimizer_steps[0].event)
    assert (period and ast.unparse(period.count)) == count
    assert step.period(step.backwards[0].event) is None


def test_a_condition_around_the_whole_loop_is_no_period_of_its_steps() -> None:
    (step,) = steps("if n % 2 == 0:\n    for i in x:\n        loss.backward()\n        optimizer.step()")
    assert step.period(step.optimizer_steps[0].event) is None
    (step,) = steps(
        "def f():\n    if n % 2: return\n    for i in x:\n        loss.backward()\n        optimizer.step()"
    )
    assert step.period(step.optimizer_steps[0].event) is None


def test_what_a_loss_is_made_of() -> None:
    text = """\
    for x, y in loader:
        unused = f(x)
        out = model(x)
        loss = criterion(out, y)
        loss += penalty
        update(loss)
    def update(value):
        value.backward()
        optimizer.step()
    """
    (step,) = steps(text)
    (backward,) = step.backwards
    assert sorted(each.node.lineno for each in step.makers(backward.loss, backward.event)) == [3, 4, 5]


@pytest.mark.parametrize(
    "clear",
    [
        "optimizer.zero_grad()",
        "model.zero_grad()",
        "p.grad = None",
        "p.grad.zero_()",
        "p.grad.data.fill_(0)",
        "del p.grad",
    ],
)
def test_what_clears_gradients(clear: str) -> None:
    (step,) = steps(f"for x in y:\n    loss.backward()\n    optimizer.step()\n    {clear}")
    assert len(step.clears) == 1
