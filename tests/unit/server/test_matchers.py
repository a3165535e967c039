"""Expressions find what Python's re finds, and never take long."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server.matchers import Matcher, MatcherError

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\d", "\\.", "\\W", "^", "[]a-]"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        inner.map("({})?".format),
        inner.map("({})*".format),
        inner.map("({}){{1,2}}".format),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.text("ab1.]-", max_size=6))
def test_matcher_finds_the_same_as_re(expression, text):
    assert Matcher(expression).found_in(text) == (re.search(expression, text) is not None)


@pytest.mark.parametrize("expression", ["(a+)+$", "(a|a)*b", "(a|aa)+$", "a*a*a*a*a*a*b", "(.*){9}x"])
def test_matcher_answers_expressions_that_hang_re(expression):
    # In re this is a matter of hours: the suite's time limit is the assertion.
    assert not any(Matcher(expression).found_in("a" * 400 + "!") for _ in range(100))


@pytest.mark.parametrize(
    "expression", ["(", ")", "[", "*", "(?=a)", "\\1", "\\", "a{3,2}", "[b-a]", "x" * 201, "((a{999}){999}){999}"]
)
def test_matcher_reports_unsupported_expressions(expression):
    with pytest.raises(MatcherError, match=r"\w"):
        Matcher(expression)
