"""Names of a file: full names under aliases, and the values that a name may hold."""

import ast

import pytest

from support.agent.checked import program


def last_value(text: str) -> tuple[list[str], bool]:
    """Return the values of the argument of the last ``probe()``, and whether they are all."""
    checked = program(text)
    (call,) = [node for node in checked.nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "probe"]
    values = checked.scopes.values(call.args[0])
    return sorted(ast.unparse(each.node) for each in values.found), values.is_complete


@pytest.mark.parametrize(
    ("head", "name", "full"),
    [
        ("import torch", "torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
        ("import torch.nn.utils", "torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
        ("import torch.nn as nn", "nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
        ("from torch.nn.utils import clip_grad_norm_ as clip", "clip", "torch.nn.utils.clip_grad_norm_"),
        ("from .torch import clip", "clip", ".torch.clip"),
        ("from torch import clip\nclip = other", "clip", None),
        ("try:\n    from apex import clip\nexcept ImportError:\n    from torch import clip", "clip", None),
        ("import torch", "model.torch", None),
        ("from torch import *", "clip", None),
    ],
)
def test_full_names(head: str, name: str, full: str | None) -> None:
    checked = program(f"{head}\n{name}()")
    call = checked.source.tree.body[-1].value
    assert checked.full_name(call.func) == full


def test_a_parameter_hides_an_import() -> None:
    checked = program("import torch\ndef f(torch):\n    torch.optim()")
    (call,) = [node for node in checked.nodes if isinstance(node, ast.Call)]
    assert checked.full_name(call.func) is None


@pytest.mark.parametrize(
    ("text", "values", "is_complete"),
    [
        ("a = 1\nprobe(a)", ["1"], True),
        ("a = 1\na = 2\nprobe(a)", ["1", "2"], True),
        ("a = 1 if b else 2\nprobe(a)", ["1", "2"], True),
        ("a = b = 3\nprobe(b)", ["3"], True),
        ("a, b = 1, 2\nprobe(b)", ["2"], True),
        ("a, b = f()\nprobe(b)", [], False),
        ("a = 1\nfor a in x: pass\nprobe(a)", ["1"], False),
        ("a = 1\na += 1\nprobe(a)", ["1"], False),
        ("probe(a)", [], False),
        ("a = b\nb = a\nprobe(a)", [], True),
        ("a = make()\na, b = accelerator.prepare(a, b)\nprobe(a)", ["make()"], True),
        ("a = make()\na = accelerator.prepare(a)\nprobe(a)", ["make()"], True),
        ("def f(a):\n    probe(a)\nf(7)\nf(a=8)", ["7", "8"], False),
        ("def f(b, a=6):\n    probe(a)\nf(7)\nf(*x)", ["6"], False),
        ("def f():\n    a = 1\n    def g():\n        probe(a)\n", ["1"], True),
        ("a = 1\ndef f():\n    global a\n    a = 2\nprobe(a)", ["1", "2"], True),
        ("class A:\n    def __init__(self):\n        self.a = 5\n    def f(self):\n        probe(self.a)", ["5"], True),
        (
            "class A:\n    def f(self):\n        probe(self.a)\nclass B:\n    def f(self):\n        self.a = 5",
            [],
            False,
        ),
        ("if (a := 4): probe(a)", ["4"], True),
        ("with f() as a: probe(a)", [], False),
    ],
)
def test_values(text: str, values: list[str], is_complete: bool) -> None:
    assert last_value(text) == (values, is_complete)


def test_functions_that_are_certain() -> None:
    text = """\
    def f(): pass
    def g(): pass
    def g(): pass
    class A:
        def f(self):
            return probe(self.f, self.h, f, g)
        def h(self): pass
        h = wrap(h)
    """
    checked = program(text)
    (call,) = [node for node in checked.nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "probe"]
    found = [checked.scopes.function(each, checked.scopes.scope(call)) for each in call.args]
    assert [each and each.lineno for each in found] == [5, None, 1, None]
