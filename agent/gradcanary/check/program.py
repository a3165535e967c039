"""A parsed file as rules see it: names, kinds, events, and training steps, each made when it is first asked for.

How a rule is written:

- It is a function from a ``Program`` to ``Found`` ones, with a ``Rule`` beside it that ``rules/__init__.py`` lists.
- ``program.steps`` are the loops that train: ``backwards``, ``optimizer_steps``, ``clips``, ``clears``, all ``events``
  in order, ``before(event)``, ``after(event)``, ``period(event)`` for ``% K``, ``makers`` of a loss.
  ``program.flow(function)`` has the events of any function, ``program.nodes`` are the bare nodes of ``ast``.
- ``program.full_name(node)`` is ``torch.nn.utils.clip_grad_norm_`` under any alias, ``program.scopes.values(node)`` are
  what a name may hold, ``program.kind(node, scope)`` is an optimizer, a schedule or a scaler. ``program.words`` are all
  names of the file: evidence that something is nowhere in it.
- Yield only what the file proves. What is passed in from elsewhere, dynamic, or only likely is no finding.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property

from gradcanary.check import kinds
from gradcanary.check.flow import MOST_EVENTS, Event, Flow, trace
from gradcanary.check.kinds import Kind
from gradcanary.check.scopes import FUNCTIONS, Scope, ScopeNode, Scopes
from gradcanary.check.source import Source
from gradcanary.check.steps import TrainingStep, as_backward, find_steps

MOST_EVENTS_OF_FILE = 200_000
"""Of all functions, each with its helpers; those after it are seen without helpers, as if they came from elsewhere."""

FRAMEWORKS = ("lightning", "trainer", "accelerate", "torch")


class Program:
    """One file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._flows: dict[ast.AST, Flow] = {}
        self._left = MOST_EVENTS_OF_FILE

    @cached_property
    def scopes(self) -> Scopes:
        """Return the names of the file and what they are bound to."""
        return Scopes(self.source.tree)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Return all nodes of the file."""
        return tuple(ast.walk(self.source.tree))

    @cached_property
    def words(self) -> frozenset[str]:
        """Return every name, attribute and keyword of the file: to be sure that something is nowhere in it."""
        return frozenset(_words(self.nodes))

    @cached_property
    def framework(self) -> str:
        """Return lightning, trainer, accelerate or torch: the one in whose words a fix is written."""
        imported = {name for name in self.scopes.imports.values() if name}
        roots = {name.partition(".")[0] for name in imported}
        if roots & {"lightning", "pytorch_lightning"} and not self.imports("Fabric"):
            return "lightning"
        if any(name.startswith("transformers.") and name.endswith("Trainer") for name in imported):
            return "trainer"
        return "accelerate" if "accelerate" in roots else "torch"

    def imports(self, *names: str) -> bool:
        """Return True if the file imports something whose last name is one of these, or mentions it below a module."""
        found = {str(name).rpartition(".")[2] for name in self.scopes.imports.values()}
        return any(name in found or name in self.words for name in names)

    def wording(self, texts: Mapping[str, str]) -> str:
        """Return the text for the file's framework, else that for plain torch."""
        return texts.get(self.framework, texts["torch"])

    def full_name(self, node: ast.AST) -> str | None:
        """Return the full name of what a name or attribute is imported from, else None."""
        return self.scopes.full_name(node)

    def kind(self, node: ast.expr | None, scope: Scope) -> Kind | None:
        """Return what an expression is, None if that is not known."""
        return kinds.kind_of(node, scope, self.scopes)

    def is_kind(self, node: ast.expr | None, scope: Scope, name: str) -> bool:
        """Return True if an expression is of that kind."""
        kind = self.kind(node, scope)
        return kind is not None and kind.name == name

    def flow(self, node: ScopeNode) -> Flow:
        """Return what a function, or the module, does, with its helpers in place."""
        if node not in self._flows:
            self._flows[node] = trace(node, self.scopes, min(self._left, MOST_EVENTS))
            self._left = max(self._left - len(self._flows[node].events), 0)
        return self._flows[node]

    @cached_property
    def functions(self) -> tuple[ScopeNode, ...]:
        """Return the module and every function of the file, methods included."""
        return (self.source.tree, *(node for node in self.nodes if isinstance(node, FUNCTIONS)))

    @cached_property
    def steps(self) -> tuple[TrainingStep, ...]:
        """Return the training steps of the file."""
        if not self.words & {"backward", "manual_backward"}:
            return ()
        flows = {node: self.flow(node) for node in self.functions}
        return tuple(find_steps(flows, self.scopes))

    def backward_events(self) -> Iterator[Event]:
        """Yield the backward passes of the file, once for each way that leads to them."""
        for node in self.functions:
            yield from (event for event in self.flow(node).events if as_backward(event, self.scopes))

    def events(self) -> Iterator[Event]:
        """Yield what each function does by itself, without its helpers: each call of the file once."""
        for node in self.functions:
            yield from (event for event in self.flow(node).events if not event.helpers)


def _words(nodes: tuple[ast.AST, ...]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.keyword, ast.arg)) and node.arg:
            yield node.arg
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")
