"""Regular expressions of strangers, matched in time proportional to the text; pure.

Python's own ``re`` backtracks: ``(a+)+$`` on forty letters stops a process for hours. Here an expression becomes a
non-deterministic automaton (Thompson) that is walked with the set of all states it may be in, and each set that a
character leads to is remembered. Understood: literals, ``.``, ``[...]``, ``\\d \\w \\s`` and their capitals, ``|``,
groups, ``* + ?``, ``{m,n}``, ``^`` and ``$``. Not: references, look-around, flags.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

MAX_EXPRESSION = 200
"""Characters of an expression."""

MAX_STATES = 2_000
"""States of its automaton, after counts such as ``{3}`` were written out."""

MAX_DEPTH = 20
"""Groups inside groups."""

MAX_WORK = 1_000_000
"""States visited for one expression over all texts, about a second; a usual one takes hundreds."""

_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d{1,3})(,?)(\d{0,3})\})\??")
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]")
_SET_OPERATORS = re.compile(r"[\[&~|]")

Test = Callable[[str], object]


class ExpressionError(ValueError):
    """This is no expression that we match; the message says why."""


@dataclass
class _State:
    """``test`` leads over one character to ``outs``; without it they are reached at once, if ``anchor`` allows."""

    test: Test | None = None
    anchor: str | None = None
    outs: list[int] = field(default_factory=list)


class _Automaton:
    """States; number 0 accepts."""

    def __init__(self) -> None:
        self.states: list[_State] = [_State()]

    def add(self, state: _State) -> int:
        if len(self.states) >= MAX_STATES:
            raise ExpressionError("the expression is too large")
        self.states.append(state)
        return len(self.states) - 1

    def closure(self, begin: Iterable[int], *, start: bool, end: bool) -> frozenset[int]:
        """Return what is reached without a character; a ``$`` waits in the set for the end."""
        seen: set[int] = set()
        waiting = list(begin)
        while waiting:
            number = waiting.pop()
            state = self.states[number]
            if number in seen or (state.anchor == "^" and not start):
                continue
            seen.add(number)
            if state.test is None and (end or state.anchor != "$"):
                waiting.extend(state.outs)
        return frozenset(seen)


class Expression:
    """A compiled expression; raises ExpressionError for what it does not understand."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_EXPRESSION:
            raise ExpressionError(f"an expression has at most {MAX_EXPRESSION} characters")
        self._automaton = _Automaton()
        self._begin = _Parser(text).parse()(self._automaton, 0)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._work = 0

    def found_in(self, text: str) -> bool:
        """Tell whether it matches anywhere in the text, as ``re.search`` would; raises ExpressionError at MAX_WORK."""
        now = self._automaton.closure([self._begin], start=True, end=not text)
        for character in text:
            if 0 in now:
                return True
            now = self._step(now, character)
        return 0 in self._automaton.closure(now, start=not text, end=True)

    def _step(self, now: frozenset[int], character: str) -> frozenset[int]:
        known = self._steps.get((now, character))
        if known is None:
            states = (self._automaton.states[number] for number in now)
            reached = [
                out for state in states if state.test is not None and state.test(character) for out in state.outs
            ]
            # A search may begin anew behind every character.
            known = self._automaton.closure([*reached, self._begin], start=False, end=False)
            self._steps[now, character] = known
            self._work += len(now) + len(known)
            if self._work > MAX_WORK:
                raise ExpressionError("the expression takes too long on these names")
        return known


_Node = Callable[[_Automaton, int], int]
"""Puts itself in front of a state and returns the state it begins with."""


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise self._error("')' without '('")
        return node

    def _error(self, message: str) -> ExpressionError:
        return ExpressionError(f"{message} at character {self._at + 1}")

    def _take(self, token: str) -> bool:
        found = self._text.startswith(token, self._at)
        self._at += len(token) if found else 0
        return found

    def _alternatives(self) -> _Node:
        nodes = [self._sequence()]
        while self._take("|"):
            nodes.append(self._sequence())
        return nodes[0] if len(nodes) == 1 else _any_of(nodes)

    def _sequence(self) -> _Node:
        nodes: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            nodes.append(self._quantified(self._atom()))
        return _in_order(nodes)

    def _quantified(self, node: _Node) -> _Node:
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return node
        self._at = found.end()
        sign, low, comma, high = found.groups()
        if sign is not None:
            return _repeated(node, int(sign == "+"), 1 if sign == "?" else None)
        most = int(high) if high else (None if comma else int(low))
        if most is not None and most < int(low):
            raise self._error("a count that ends before it begins")
        return _repeated(node, int(low), most)

    def _atom(self) -> _Node:
        character = self._text[self._at]
        if character in "*+?{":
            raise self._error(f"nothing to repeat before {character!r}")
        if character == "[":
            return self._class()
        self._at += 1
        if character == "(":
            return self._group()
        if character == "\\":
            return self._escaped()
        if character in "^$":
            return lambda automaton, after: automaton.add(_State(anchor=character, outs=[after]))
        return _one(lambda _: True) if character == "." else _one(character.__eq__)

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("too many groups inside groups")
        if self._text.startswith("?", self._at) and not self._take("?:"):
            raise self._error("of the groups with '?' only '(?:' is understood")
        node = self._alternatives()
        if not self._take(")"):
            raise self._error("a '(' is not closed")
        self._depth -= 1
        return node

    def _class(self) -> _Node:
        found = _CLASS.match(self._text, self._at)
        if found is None:
            raise self._error("a '[' is not closed")
        inside = _SET_OPERATORS.sub(r"\\\g<0>", found.group()[1:-1].replace("\\[", "["))
        try:
            test = re.compile(f"[{inside}]", re.DOTALL).fullmatch
        except re.error as error:
            raise self._error(f"{error.msg} in the class") from error
        self._at = found.end()
        return _one(test)

    def _escaped(self) -> _Node:
        if self._at == len(self._text):
            raise self._error("a lone backslash")
        character = self._text[self._at]
        self._at += 1
        if character in "dwsDWS":
            return _one(re.compile("\\" + character).fullmatch)
        if character.isalnum():
            raise self._error(f"'\\{character}' is not understood")
        return _one(character.__eq__)


def _one(test: Test) -> _Node:
    return lambda automaton, after: automaton.add(_State(test=test, outs=[after]))


def _in_order(nodes: Sequence[_Node]) -> _Node:
    def build(automaton: _Automaton, after: int) -> int:
        # An empty sequence takes a state too, so that counts around it are counted.
        begin = after if nodes else automaton.add(_State(outs=[after]))
        for node in reversed(nodes):
            begin = node(automaton, begin)
        return begin

    return build


def _any_of(nodes: Sequence[_Node]) -> _Node:
    return lambda automaton, after: automaton.add(_State(outs=[node(automaton, after) for node in nodes]))


def _repeated(node: _Node, least: int, most: int | None) -> _Node:
    """Return the node ``least`` to ``most`` times, None = any number of times."""

    def build(automaton: _Automaton, after: int) -> int:
        begin = after
        if most is None:
            begin = automaton.add(_State())
            automaton.states[begin].outs = [node(automaton, begin), after]
        for _ in range(most - least if most is not None else 0):
            begin = automaton.add(_State(outs=[node(automaton, begin), after]))
        for _ in range(least):
            begin = node(automaton, begin)
        return begin

    return build
