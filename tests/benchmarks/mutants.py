"""Break a module at one place after another, and count the mutants that its tests see: docs/results/mutants.md.

All tests run once, to see which lines each reaches. For each mutant the functions of a forked child get the code of the
changed module. Then the tests that reach the change run, the quickest first, until one fails. Annotations, default
arguments, class bodies and plain texts are not changed.
"""

import __future__

import argparse
import ast
import gc
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import coverage
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[2]
RULES, INCIDENTS = "tests/unit/server/rules", "tests/unit/server/incidents"
TEXTS = " ".join(
    f"{INCIDENTS}/test_{name}.py" for name in ("causes", "claims", "text", "setting_causes", "explanation")
)
TESTS = {
    "agent/gradcanary/remed": f"{TEXTS} tests/unit/test_runbooks.py",
    "agent/gradcanary/stats/": "tests/unit/agent/stats tests/component/agent/stats",
    "server/gradcanary_server/incidents/": f"{TEXTS} tests/unit/server/notify/test_planner_inhibition.py",
    "server/gradcanary_server/notify/": "tests/unit/server/notify",
    "server/gradcanary_server/rules/detectors/": f"{RULES}/detectors {RULES}/test_false_alarms.py",
    "server/gradcanary_server/rules/": RULES,
    "server/gradcanary_server/tsdb/": "tests/unit/server/tsdb tests/component/server/tsdb",
}
"""The tests by the beginning of a module's path; the first that fits counts."""

OPPOSITES = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
OPERATORS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt} | {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LONGEST_S = 60
"""CPU time of the tests of one mutant: what needs more counts as seen."""
NOT_RUN = ("annotation", "decorator_list", "args", "returns", "type_params")


def _changes(node: ast.AST) -> Iterator[Callable[[], object]]:  # noqa: C901 - one case for each kind of change
    """Yield functions that change a node in place."""
    match node:
        case ast.Compare(ops=[*_, last]):
            for table in (OPERATORS, OPPOSITES):
                if type(last) in table:
                    yield partial(node.ops.__setitem__, -1, table[type(last)]())
        case ast.BinOp() | ast.BoolOp() if type(node.op) in OPERATORS:
            yield lambda: setattr(node, "op", OPERATORS[type(node.op)]())
        case ast.UnaryOp(op=ast.USub()):
            yield lambda: setattr(node, "op", ast.UAdd())
        case ast.UnaryOp(op=ast.Not()):
            yield lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.Constant(value=bool()):
            yield lambda: setattr(node, "value", not node.value)
        case ast.Constant(value=int()):
            yield lambda: setattr(node, "value", node.value + 1)
        case ast.Constant(value=float()):
            yield lambda: setattr(node, "value", node.value * 1.5 or 1.0)
        case ast.Return(value=ast.expr()) if ast.unparse(node.value) != "None":
            yield lambda: setattr(node, "value", ast.Constant(None))
        case ast.Name(ctx=ast.Load()) if node.id in NAMES:
            yield lambda: setattr(node, "id", NAMES[node.id])
        case ast.comprehension(ifs=[*_, _]):
            yield lambda: node.ifs.pop()
        case ast.If() | ast.IfExp() if isinstance(node.test, ast.Name | ast.Call | ast.Attribute):
            yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.Dict() if len(node.keys) > 1:
            for place in range(len(node.keys)):
                yield lambda at=place: (node.keys.pop(at), node.values.pop(at))
                yield lambda at=place: node.values.__setitem__(at, node.values[at - 1])
        case ast.Set() | ast.Tuple(ctx=ast.Load()) | ast.List(ctx=ast.Load()) if len(node.elts) > 1:
            for place in range(len(node.elts)):
                yield lambda at=place: node.elts.pop(at)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Raise():
            yield lambda: setattr(node, "__class__", ast.Pass)


def _nodes(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[ast.AST, ast.stmt]]:
    """Yield the nodes that run, each with the innermost statement around it."""
    statement = node if isinstance(node, ast.stmt) else statement
    yield node, statement
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_alias = name == "slice" and isinstance(child, ast.Tuple)  # dict[str, int]
            if isinstance(child, ast.AST) and name not in NOT_RUN and not is_alias:
                yield from _nodes(child, statement)


def _mutants(tree: ast.Module) -> list[tuple[ast.stmt, ast.stmt, Callable[[], object]]]:
    """Return the function or constant of each mutant, its statement, and a function that makes it."""
    parts = [each for part in tree.body for each in (part.body if isinstance(part, ast.ClassDef) else [part])]
    parts = [each for each in parts if isinstance(each, ast.FunctionDef) or (_is_constant(each) and each in tree.body)]
    return [(part, at, change) for part in parts for node, at in _nodes(part, part) for change in _changes(node)]


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


class Mutants:
    """A plugin of pytest that runs the tests for each mutant of some modules."""

    def __init__(self, paths: list[Path], sample: int, longest_s: float) -> None:
        self.paths, self.sample, self.longest_s = paths, sample, longest_s
        self.functions: list[FunctionType] = []
        self.reached: dict[pytest.Item, set[tuple[str, int]]] = {}

    def pytest_configure(self) -> None:
        """Draw the same few examples for each mutant, keep none, and do not shrink."""
        few = settings(max_examples=10, database=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
        settings.register_profile("mutants", few)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Print each mutant that no test sees, and the score of each module."""
        self.reached = self._reached_lines(session.items)
        gc.unfreeze()
        self.functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
        gc.collect = gc.freeze = int  # a child is there for a moment
        if _is_seen([*self.reached], int):
            pytest.exit("a test fails without a change, after it has run once", 1)
        for path in self.paths:
            self._score(path)
        return True

    def _score(self, path: Path) -> None:
        source, name = path.read_text(), path.relative_to(ROOT)
        total = len(_mutants(ast.parse(source)))
        chosen = sorted(random.Random(0).sample(range(total), min(total, self.sample)))
        killed = 0
        for number in chosen:
            tree = ast.parse(source)
            part, statement, change = _mutants(tree)[number]
            lines, before = self._lines(path, part, statement), ast.unparse(statement)
            change()
            tests = [item for item in self.reached if lines & self.reached[item]]
            if _is_seen(tests, partial(self._apply, path, tree, part)):
                killed += 1
            else:
                at = f"{name}:{statement.lineno}"
                print(f"\n{at}: {_shown(before, ast.unparse(statement))} ({len(tests)} tests)", flush=True)
        print(f"\n{name}: {killed} of {len(chosen)} killed, {total} in all", flush=True)

    def _reached_lines(self, items: list[pytest.Item]) -> dict[pytest.Item, set[tuple[str, int]]]:
        """Run all tests, and return the lines that each reaches, of those that are quick enough, the quickest first."""
        tracer = coverage.Coverage(data_file=None, config_file=False, include=[f"{ROOT}/agent/*", f"{ROOT}/server/*"])
        tracer.start()
        seconds = {}
        reached: dict[pytest.Item, set[tuple[str, int]]] = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            tracer.switch_context(item.nodeid)
            began = time.process_time()
            reports = runtestprotocol(item, nextitem=following, log=False)
            seconds[item] = time.process_time() - began
            if all(report.passed for report in reports):
                reached[item] = set()
            else:
                print(f"left out, not passed: {item.nodeid}")
        tracer.stop()
        data, by_name = tracer.get_data(), {item.nodeid: lines for item, lines in reached.items()}
        for file in data.measured_files():
            for line, names in data.contexts_by_lineno(file).items():
                for name in by_name.keys() & set(names):
                    by_name[name].add((file, line))
        quick = sorted((item for item in reached if seconds[item] <= self.longest_s), key=seconds.__getitem__)
        print(f"{len(quick)} of {len(items)} tests, {sum(map(seconds.__getitem__, quick)):.0f} s of CPU", flush=True)
        return {item: reached[item] for item in quick}

    def _lines(self, path: Path, part: ast.stmt, statement: ast.stmt) -> set[tuple[str, int]]:
        """Return the lines of a statement; of a constant those of the functions that have its name."""
        if isinstance(part, ast.FunctionDef):
            last = statement.body[0].lineno - 1 if getattr(statement, "body", ()) else statement.end_lineno
            return {(str(path), line) for line in range(statement.lineno, max(last, statement.lineno) + 1)}
        names = _names(part, ast.Store)
        codes = [code for each in self.functions for code in _codes(each.__code__) if names & set(code.co_names)]
        return {(code.co_filename, line) for code in codes for *_, line in [*code.co_lines()][1:]}

    def _apply(self, path: Path, tree: ast.Module, part: ast.stmt) -> None:
        """Give all functions of the module their new code, or a constant its new value wherever it is imported."""
        if isinstance(part, ast.FunctionDef):
            new = {(code.co_qualname, code.co_firstlineno): code for code in _codes(_compiled(path, tree))}
            for function in self.functions:
                code = function.__code__
                if code.co_filename == str(path):
                    with suppress(ValueError, KeyError):  # a lambda that uses other variables than before
                        function.__code__ = new[code.co_qualname, code.co_firstlineno]
            return
        modules = [
            vars(each) for name, each in [*sys.modules.items()] if name.partition(".")[0].startswith("gradcanary")
        ]
        values = next(each for each in modules if each.get("__file__") == str(path))
        old, changed = dict(values), set()
        for each in tree.body:
            if _is_constant(each) and (each is part or changed & _names(each, ast.Load)):
                exec(_compiled(path, ast.Module([each], [])), values)
                changed |= _names(each, ast.Store)
        for each in modules:
            each.update({name: values[name] for name in changed if name in each and each[name] is old[name]})


def _compiled(path: Path, tree: ast.Module) -> CodeType:
    return compile(ast.fix_missing_locations(tree), path, "exec", __future__.annotations.compiler_flag)


def _is_seen(tests: list[pytest.Item], change: Callable[[], None]) -> bool:
    """Return True if a test fails after the change, or needs far too long."""
    if not tests:
        return False
    if child := os.fork():
        return os.waitpid(child, 0)[1] != 0
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))
    signal.alarm(60 * LONGEST_S)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    try:
        change()
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            if any(report.failed for report in runtestprotocol(item, nextitem=following, log=False)):
                os._exit(1)
        os._exit(0)
    finally:
        os._exit(1)


def _shown(before: str, after: str) -> str:
    """Return the part of a statement that changed, before and after, with a few characters around it."""
    start = _alike(before, after)
    end = min(_alike(before[::-1], after[::-1]), len(before) - start, len(after) - start)
    was, now = (each[start : len(each) - end] for each in (before, after))
    rest = before[len(before) - end :]
    return f"{before[:start][-50:]}[{was[:60]} -> {now[:60]}]{rest[:40]}".replace("\n", " ")


def _alike(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "modules", type=Path, nargs="+", help="files with the same tests, such as agent/gradcanary/remedies.py"
    )
    parser.add_argument("--sample", type=int, default=100, help="mutants at most, drawn with a fixed seed")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds of CPU: a test that needs more is left out")
    parser.add_argument("--tests", help="other tests than those of TESTS")
    arguments = parser.parse_args()
    paths = [path.resolve() for path in arguments.modules]
    name = str(paths[0].relative_to(ROOT))
    tests = arguments.tests or next(tests for start, tests in TESTS.items() if name.startswith(start))
    plugin = Mutants(paths, arguments.sample, arguments.longest)
    return pytest.main(
        [
            *(f"{ROOT}/{test}" for test in tests.split()),
            "-qq",
            "-s",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore:Module already imported",
        ],
        [plugin],
    )


if __name__ == "__main__":
    sys.exit(main())
