"""checkpoint_without_rng: what backward recomputes has other random numbers than the forward pass.

torch.utils.checkpoint restores the random state of the CPU and of one type of device, in both of its kinds (reentrant
and not), unless ``preserve_rng_state=False``. So reentrant with dropout is right by itself. It knows nothing of
Python's ``random``, of numpy, and of a generator of one's own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradcanary.check.findings import Found, Rule
from gradcanary.check.modules import is_layer, module_classes
from gradcanary.check.program import Program

_CHECKPOINTS = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")
_RANDOM = re.compile("(?i)drop_?(out|path|connect)|bernoulli|stochastic_depth|rrelu|gumbel|layer_?drop")
_DRAWS = re.compile(r"torch\.(rand|normal|multinomial|poisson)\w*|.*_like_noise")
_OTHER_RANDOM = re.compile(r"(random|numpy\.random)\.\w")

_WHY_OFF = (
    "preserve_rng_state=False does not restore the random numbers of the forward pass. With dropout backward draws "
    "another mask, and the gradient belongs to an output that the loss never saw. No error, no warning."
)
_FIX_OFF = "Leave preserve_rng_state out: True is its default."
_WHY_OTHER = (
    "checkpoint restores torch's random numbers, not those of Python's random, of numpy or of a torch.Generator. "
    "Backward runs the function again and draws other numbers, so the gradient belongs to another output."
)
_FIX_OTHER = "Draw outside of the function and pass the result as an argument, or draw with torch.rand(())."


def find_checkpoint_without_rng(program: Program) -> Iterator[Found]:
    """Yield checkpoints that do not restore what is random in them."""
    may_be_random = _may_be_random(program)
    for node in program.nodes:
        if isinstance(node, ast.Call):
            if may_be_random:
                yield from (
                    Found(each, _off("checkpoint"), _WHY_OFF, _FIX_OFF) for each in node.keywords if _is_off(each)
                )
            if program.full_name(node.func) in _CHECKPOINTS and node.args:
                yield from _find_other_random(node, program)
        elif isinstance(node, ast.Dict) and may_be_random:
            for key, value in zip(node.keys, node.values, strict=True):
                if _is_text(key, "preserve_rng_state") and _is_false(value):
                    yield Found(key or node, _off("gradient checkpointing"), _WHY_OFF, _FIX_OFF)


def _off(what: str) -> str:
    return f"{what} recomputes with other random numbers"


def _is_off(given: ast.keyword) -> bool:
    return given.arg == "preserve_rng_state" and _is_false(given.value)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_text(node: ast.expr | None, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _may_be_random(program: Program) -> bool:
    """Return False if the file has layers of its own and nothing in them is random."""
    if any(_RANDOM.search(word) for word in program.words):
        return True
    classes = module_classes(program)
    if not classes and not any(is_layer(node, program) for node in program.nodes):
        return True  # the model comes from elsewhere
    calls = (node for each in classes for node in ast.walk(each) if isinstance(node, ast.Call))
    return any(_DRAWS.fullmatch(program.full_name(call.func) or "") for call in calls)


def _find_other_random(call: ast.Call, program: Program) -> Iterator[Found]:
    function: ast.AST | None = call.args[0]
    if not isinstance(function, ast.Lambda):
        function = program.scopes.function(call.args[0], program.scopes.scope(call))
    inner = [node for node in ast.walk(function) if isinstance(node, ast.Call)] if function else []
    names = [program.full_name(each.func) or "" for each in inner]
    random = next((name for name in names if _OTHER_RANDOM.match(name)), None)
    has_generator = any(
        each.arg == "generator" and not _is_text(each.value, "") for call in inner for each in call.keywords
    )
    if random or has_generator:
        message = (
            f"checkpoint does not restore {random or 'a generator'}: backward recomputes with other random numbers"
        )
        yield Found(call, message, _WHY_OTHER, _FIX_OTHER)


CHECKPOINT_WITHOUT_RNG = Rule(
    "checkpoint_without_rng",
    "warning",
    "checkpointing",
    "backward recomputes with other random numbers",
    find_checkpoint_without_rng,
)
