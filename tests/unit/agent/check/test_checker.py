"""A file held against the rules: ignore comments, errors of the file itself, and any program without an exception."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary.check.checker import check_source
from support.agent.checked import findings, found

LOOP = """\
import torch
for x in loader:
    with torch.autocast("cpu"):{first}
        (
            model(x)
            .backward({inner}
            )
        ){last}
"""


def ignored(first: str = "", inner: str = "", last: str = "") -> list[tuple[int, str]]:
    return found(LOOP.format(first=first, inner=inner, last=last))


def test_an_ignore_on_a_line_of_the_finding_or_the_first_line_of_its_statement() -> None:
    text = "import torch\nwith torch.autocast('cpu'): loss.backward()"
    assert found(text) == [(2, "backward_in_autocast")]
    assert found(text + "  # gradcanary: ignore") == []
    assert found(text + "  # gradcanary: ignore[backward_in_autocast]") == []
    assert found(text + "  # gradcanary: ignore[never_cleared, backward_in_autocast]") == []
    assert found(text + "  # gradcanary: ignore[never_cleared]") == [(2, "backward_in_autocast")]
    assert ignored() == [(5, "backward_in_autocast")]
    assert ignored(inner="  # gradcanary: ignore[backward_in_autocast]") == []
    assert ignored(first="  # gradcanary: ignore[backward_in_autocast]") == [(5, "backward_in_autocast")]


def test_an_ignore_of_an_unknown_code_is_found() -> None:
    (finding,) = findings("x = 1  # gradcanary: ignore[never_cleared, clip_to_early]\n")
    assert (finding.code, finding.line, finding.column, finding.end_column) == ("unknown_code", 1, 8, 58)
    assert "'clip_to_early'" in finding.message
    assert found("x = 1  # gradcanary: ignore[]\n") == [(1, "unknown_code")]


def test_a_syntax_error_is_the_only_finding_of_its_file() -> None:
    (finding,) = check_source("train.py", b"x = (\n")
    assert (finding.code, finding.severity, finding.line, finding.column) == ("syntax_error", "critical", 1, 5)


def test_what_is_too_deep_for_the_parser_or_for_the_checker_is_a_finding() -> None:
    loop = b"for x in loader:\n    (" + b"+".join([b"loss"] * 5000) + b").backward()\n    optimizer.step()\n"
    (finding,) = check_source("train.py", loop)
    assert finding.code in ("not_checked", "syntax_error")
    chain = "".join(f"a{i + 1} = a{i} if x else y\n" for i in range(600))
    assert found(f"{chain}with a600:\n    loss.backward()\n") == [(1, "not_checked")]


WORDS = [
    *("loss", "loss.backward()", "optimizer.step()", "optimizer.zero_grad()", "scaler.scale(loss).backward()", "*p"),
    *("scaler.step(optimizer)", "scaler.unscale_(optimizer)", "clip_grad_norm_(p, 1)", "torch.autocast('cuda')"),
    *("torch.optim.SGD(p)", "helper()", "helper(helper)", "self.run()", "loss / k", "i % k == 0", "lambda: loss"),
    *("[loss]", "loss := 1", "a.b[0].c"),
]
EXPRESSIONS = st.sampled_from(WORDS).map(lambda word: f"({word})" if ":=" in word or "lambda" in word else word)
SIMPLE = st.one_of(
    EXPRESSIONS.filter(lambda text: text != "*p"),
    st.builds(
        "{} = {}".format, st.sampled_from(["loss", "optimizer", "scaler", "self.x", "a, b", "p.grad", "k"]), EXPRESSIONS
    ),
    st.sampled_from(
        ["loss /= k", "pass", "del p.grad", "import torch", "from torch import *", "global loss", "return"]
    ),
)
HEADS = st.sampled_from(
    [
        "for i in range(k):",
        "while i % k:",
        "if (i + 1) % k == 0:",
        "with torch.autocast('cuda') as a, b:",
        "try:",
        "def helper(loss, *a, k=1, **b):",
        "async def run(self):",
        "class Trainer(torch.nn.Module):",
        "match loss:\n    case [a, *b]:",
    ]
)


def block(head: str, body: list[str]) -> str:
    depth = 2 if head.startswith("match") else 1
    inner = "\n".join(line for each in body for line in each.split("\n"))
    indented = "\n".join("    " * depth + line for line in inner.split("\n"))
    return f"{head}\n{indented}" + ("\nfinally:\n    pass" if head == "try:" else "")


STATEMENTS = st.recursive(
    SIMPLE, lambda inner: st.builds(block, HEADS, st.lists(inner, min_size=1, max_size=4)), max_leaves=25
)


@settings(max_examples=60)
@given(st.lists(STATEMENTS, min_size=1, max_size=6))
def test_no_program_raises_and_each_place_is_in_the_file(statements: list[str]) -> None:
    text = "import torch\n" + "\n".join(statements)
    lines = text.split("\n")
    for finding in check_source("train.py", text.encode()):
        assert 1 <= finding.line <= finding.end_line <= len(lines)
        assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1


@given(st.binary(max_size=200))
def test_no_bytes_raise(content: bytes) -> None:
    assert all(each.line >= 1 and each.column >= 1 for each in check_source("train.py", content))
