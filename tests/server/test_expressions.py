"""Expressions answer as Python's re would, and never take long."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server.expressions import Expression, ExpressionError

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\d", "\\.", "\\W", "^", "$", "[]a-]"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        inner.map("({})".format),
        inner.map("(?:{})?".format),
        inner.map("({})*".format),
        inner.map("({})+".format),
        inner.map("({}){{1,2}}".format),
        inner.map("({}){{2}}".format),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.text("ab1.]-", max_size=6))
def test_it_finds_what_re_finds(expression, text):
    assert Expression(expression).found_in(text) == (re.search(expression, text) is not None)


@pytest.mark.parametrize("expression", ["(a+)+$", "(a|a)*b", "(a|aa)+$", "a*a*a*a*a*a*b", "(.*){9}x"])
def test_what_makes_re_hang_is_answered(expression):
    began = time.process_time()
    assert not Expression(expression).found_in("a" * 400 + "!")
    assert time.process_time() - began < 5  # hours in re; a second here


@pytest.mark.parametrize(
    "expression",
    ["(", ")", "[", "a)", "*", "a**", "(?=a)", "(?P<n>a)", "\\1", "\\b", "\\", "a{3,2}", "[b-a]", "x" * 201, "(" * 40,
     "((a{999}){999}){999}", "((){999}){999}"],
)  # fmt: skip
def test_what_it_does_not_understand_it_says(expression):
    with pytest.raises(ExpressionError, match=r"\w"):
        Expression(expression)


def found_in_hostile_names(expression):
    names = ("".join(chr(33 + (seed * i * i) % 900) for i in range(500)) for seed in range(20_000))
    return sum(expression.found_in(name) for name in names)


def test_work_is_bounded_whatever_the_names():
    with pytest.raises(ExpressionError, match="too long"):
        found_in_hostile_names(Expression("(a|b|.){60}.*(a?b?){60}.*x{60}"))
