"""A schedule is computed as written, and nothing that is not one is run or believed."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server.errors import ScheduleError
from gradcanary_server.ops import schedules

STEPS = np.array([1_000, 1_001, 6_000, 11_000, 50_000])
LAST = np.array([3e-4, 1e-3])


def rates(text: str, group: int | None = None) -> list[list[float]]:
    """Return the rates of each group at STEPS, of a schedule that begins at the first of them."""
    return schedules.load(text, group).rates(STEPS, 1_000, LAST).T.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant(1e-5)", [1e-5] * 5),
        ("lr * 0.1 if step > 5_000 else lr", [3e-4, 3e-4, 3e-5, 3e-5, 3e-5]),
        ("linear(1e-3, 0, 10_000)", [1e-3, 9.999e-4, 5e-4, 0, 0]),
        ("warmup(4) * 1e-3", [2.5e-4, 5e-4, 1e-3, 1e-3, 1e-3]),
        ("min(lr, 1e-4) / max(1, 2, 4)", [2.5e-5] * 5),
        ("sqrt(4e-8) * exp(-0.0)", [2e-4] * 5),
        ("-(-lr) + 0 * (not step)", [3e-4] * 5),
        ("1e-4 if 1_000 < step <= 6_000 or step == 11_000 else 0", [0, 1e-4, 1e-4, 1e-4, 0]),
        ("(step > 5_000) * 1e-4 - -(step > 5_000) * 1e-4", [0, 0, 2e-4, 2e-4, 2e-4]),
    ],
)
def test_an_expression_is_computed(text: str, expected: list[float]) -> None:
    assert rates(text)[0] == pytest.approx(expected)


def test_a_cosine_is_that_of_pytorch() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=1e-6)
    expected = []
    for _ in range(50):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    found = schedules.load("cosine(3e-4, 1e-6, 50)").rates(np.arange(7, 57), 7, LAST[:1])
    assert found[:, 0] == pytest.approx(expected)


def test_only_a_named_group_changes() -> None:
    assert rates("lr / 2", group=1) == [[3e-4] * 5, [5e-4] * 5]
    with pytest.raises(ScheduleError, match="no parameter group 2; the run has 2 of them, numbered from 0"):
        rates("lr", group=2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a schedule"),
        ("lr +", "is not a schedule"),
        ("lr\0", "is not a schedule"),
        ("__import__('os').system('true')", "is not allowed in a schedule; allowed are numbers, step, lr"),
        ("lr.real", "'lr.real' is not allowed"),
        ("momentum", "'momentum' is not allowed"),
        ("(lambda: lr)()", "is not allowed"),
        ("[lr for _ in (1,)]", "is not allowed"),
        ("'a' * 9", "is not allowed"),
        ("True", "'True' is not allowed"),
        ("1j", "is not allowed"),
        ("lr if step else", "is not a schedule"),
        ("lr << 2", "is not allowed"),
        ("lr in lr", "is not allowed"),
        ("max(*lr)", "is not allowed"),
        ("sqrt(x=lr)", "is not allowed"),
        ("min(lr)", r"min\(\) of 1 value is not allowed"),
        ("cosine(1, 2)", r"cosine\(\) of 2 values is not allowed in a schedule; allowed are constant\(lr\)"),
        ("exp(lr, lr)", r"exp\(\) of 2 values"),
        ("9**9**9", "the learning rate at step 1,000 is inf; allowed are numbers from 0 on"),
        ("9" * 900, "larger than 1.8e308"),
        ("-1e-4", "the learning rate at step 1,000 is -0.0001"),
        ("1e-4 - 1e-8 * step", "the learning rate at step 11,000 is -1e-05"),
        ("lr / (step - 6_000)", "the learning rate at step 1,000 is -6"),
        ("0 / 0", "is nan"),
        ("-" * 100 + "1", "nested more than 50 deep"),
        ("a" + ".b" * 490, "is not allowed in a schedule"),
        ("(" * 500, "is not a schedule"),
        ("1" + "+1" * 600, "1,201 characters; allowed are 1,000"),
    ],
)
def test_what_is_not_a_learning_rate_is_refused(text: str, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        rates(text)


PARTS = st.recursive(
    st.sampled_from(
        ["step", "lr", "0", "1e308", "9", "2.5", "1e-9", "True", "'a'", "x", "9**9**9", "()", "None", "1j"]
    ),
    lambda inner: st.one_of(
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "/", "**", "//", "%", "@", "<", "==", "in", "and"]), inner
        ).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda part: f"-{part}"),
        inner.map(lambda part: f"{part}.__class__"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
        st.tuples(
            st.sampled_from([*schedules._CURVES, *schedules._PLAIN, "eval", "open"]), st.lists(inner, max_size=3)
        ).map(lambda call: f"{call[0]}({', '.join(call[1])})"),
    ),
    max_leaves=12,
)


@given(st.one_of(PARTS, st.text(max_size=60), st.text("step lr()+-*/<>0123456789.e,if", max_size=60)))
def test_any_text_is_a_learning_rate_or_an_error(text: str) -> None:
    try:
        found = schedules.load(text).rates(STEPS, 1_000, LAST)
    except ScheduleError:
        return
    assert found.shape == (5, 2)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    for node in ast.walk(ast.parse(text.strip(), mode="eval")):
        assert not isinstance(node, ast.Attribute | ast.Lambda | ast.Subscript)


def write(folder: Path, name: str, text: str) -> str:
    """Return the path of a file with this text."""
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "step,lr\n1000,1e-4\n11000,0\n"),
        ("a.json", "[[1000, 1e-4], [11000, 0]]"),
        ("a.yaml", "- [1000, 1e-4]\n- [11000, 0.0]\n"),
    ],
)
def test_between_the_points_of_a_file_the_rate_is_straight(tmp_path: Path, name: str, text: str) -> None:
    assert rates(write(tmp_path, name, text))[0] == pytest.approx([1e-4, 0.9999e-4, 0.5e-4, 0, 0])


def test_a_column_of_groups_gives_each_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "step,lr,group\n0,1e-4,1\n")
    assert rates(path) == [[3e-4] * 5, [1e-4] * 5]
    with pytest.raises(ScheduleError, match="has a column of groups: leave out --group"):
        rates(path, group=0)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "lr,step\n", "a.csv, line 1: allowed is step,lr or step,lr,group"),
        ("a.csv", "step,lr\n", "a.csv has no steps"),
        ("a.csv", "step,lr\n0,1e-4\n1\n", "line 3 has 1 cells, the first line 2"),
        ("a.csv", "step,lr\n0,1e-4\n0,1e-5\n", "line 3: step 0 does not come after 0; steps must rise"),
        ("a.csv", "step,lr\n-1,1e-4\n", "line 2: step is '-1'; allowed are whole numbers from 0 on"),
        ("a.csv", "step,lr\n1,inf\n", "line 2: lr is 'inf'; allowed are numbers from 0 on"),
        ("a.csv", "step,lr,group\n1,1,x\n", "line 2: group is 'x'"),
        ("a.json", "[[0, 1e-4],\n [5000]]", "line 2: allowed is a pair of a step and a learning rate"),
        ("a.json", "{}", r"line 1: allowed is a list of pairs, \[\[0, 1e-4\], \[5000, 1e-5\]\]"),
        ("a.yaml", "- [0, nan]\n", "line 1: lr is 'nan'"),
        ("a.yaml", "[", "is neither JSON nor YAML"),
        ("a.yaml", "&a [*a]", "allowed is a pair|is neither JSON nor YAML"),
        ("a.json", "[" * 5_000, "is neither JSON nor YAML"),
    ],
)
def test_an_error_in_a_file_names_its_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        rates(write(tmp_path, name, text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"none\.csv cannot be read"):
        rates(str(tmp_path / "none.csv"))
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScheduleError, match="is not text in UTF-8"):
        rates(str(tmp_path / "bytes.csv"))


def test_a_rate_that_is_unknown_stays_unknown() -> None:
    found = schedules.load("lr / 2").rates(STEPS, 1_000, np.array([math.nan, 1e-3]))
    assert np.isnan(found[:, 0]).all()
    assert found[:, 1].tolist() == [5e-4] * 5


def test_lr_is_the_last_rate_of_the_own_group() -> None:
    first, second = rates("lr * 0.5 ** (step / 1_000)")
    assert second[0] / first[0] == pytest.approx(LAST[1] / LAST[0])
    assert math.isclose(first[0], LAST[0] / 2)
