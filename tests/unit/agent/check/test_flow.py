"""The order of events, with helpers in place, and the conditions and blocks around them."""

import ast

from gradcanary.check.flow import MOST_LEVELS, Event, trace
from gradcanary.check.program import MOST_EVENTS_OF_FILE
from support.agent.checked import program


def events(text: str) -> list[Event]:
    checked = program(text)
    return list(checked.flow(checked.source.tree).events)


def calls(text: str) -> list[str]:
    return [ast.unparse(event.node) for event in events(text) if event.call]


def guards(text: str, name: str) -> list[tuple[str, bool]]:
    (event,) = [each for each in events(text) if each.call and ast.unparse(each.node) == f"{name}()"]
    return [(ast.unparse(guard.test) if guard.test else "", guard.holds) for guard in event.guards]


def test_arguments_come_before_their_call() -> None:
    assert calls("a(b(), c=d()).e()") == ["b()", "d()", "a(b(), c=d())", "a(b(), c=d()).e()"]


def test_helpers_and_closures_are_put_in_place() -> None:
    assert calls("def f():\n    a()\n    g()\ndef g():\n    b()\nf()\nc()") == ["f()", "a()", "g()", "b()", "c()"]
    assert calls("def f():\n    a()\nx.step(f)") == ["x.step(f)", "a()"]
    assert calls("def f():\n    a()\np.register_hook(f)") == ["p.register_hook(f)"]


def test_recursion_and_depth_end() -> None:
    assert calls("def f():\n    a()\n    f()\nf()") == ["f()", "a()", "f()"]
    chain = "".join(f"def f{i}():\n    f{i + 1}()\n" for i in range(9))
    assert len(calls(chain + "f0()")) == MOST_LEVELS + 1


def test_conditions() -> None:
    text = (
        "if a:\n    b()\nelse:\n    c()\nd() if e else f()\ng and h()\ni or j()\nwhile k:\n    if m: continue\n    n()"
    )
    assert guards(text, "b") == [("a", True)]
    assert guards(text, "c") == [("a", False)]
    assert guards(text, "f") == [("e", False)]
    assert guards(text, "h") == [("g", True)]
    assert guards(text, "j") == [("i", False)]
    assert guards(text, "n") == [("m", False)]


def test_arms_exclude_each_other() -> None:
    text = "match x:\n    case 1:\n        a()\n    case 2:\n        b()\nif y:\n    c()\nelse:\n    d()\ne()"
    a, b, c, d, e = events(text)
    assert a.excludes(b)
    assert c.excludes(d)
    assert not a.excludes(c)
    assert not any(each.excludes(e) for each in (a, b, c, d))


def test_loops_and_blocks_of_a_caller_are_around_its_helper() -> None:
    text = "def f():\n    with c:\n        a()\nfor x in y:\n    with b:\n        f()"
    (event,) = [each for each in events(text) if each.call and ast.unparse(each.node) == "a()"]
    assert [ast.unparse(each) for each in event.contexts] == ["b", "c"]
    assert len(event.loops) == 1
    assert [each.name for each in event.helpers] == ["f"]


def test_what_is_tried() -> None:
    text = "try:\n    a()\nexcept E:\n    b()\nelse:\n    c()\nfinally:\n    d()"
    assert calls(text) == ["a()", "b()", "c()", "d()"]
    assert guards(text, "b") == [("", True)]
    assert guards(text, "d") == []


def test_helpers_beyond_the_limit_are_not_followed_and_the_flow_says_so() -> None:
    checked = program("def f():\n    a()\n    b()\nf()\nf()\nc()")
    flow = trace(checked.source.tree, checked.scopes, most=3)
    assert [ast.unparse(event.node) for event in flow.events] == ["f()", "a()", "b()", "f()", "c()"]
    assert not flow.is_complete
    assert trace(checked.source.tree, checked.scopes).is_complete


def test_functions_that_all_call_each_other_have_a_limit_in_all() -> None:
    names = range(60)
    text = "".join(f"def f{i}():\n" + "".join(f"    f{j}()\n" for j in names if j != i) for i in names)
    checked = program(text)
    flows = [checked.flow(function) for function in checked.functions]
    assert sum(len(flow.events) for flow in flows) < 2 * MOST_EVENTS_OF_FILE
    assert not flows[-1].is_complete
