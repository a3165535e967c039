"""What the form of a silence sends."""

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.components import silence_form
from gradcanary_server.matchers import Matcher

TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=40)


NOW = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)


@given(TEXTS.filter(lambda text: text.strip() != ""), TEXTS)
def test_a_beginning_covers_the_names_that_begin_so(prefix: str, rest: str) -> None:
    expression = silence_form.match("prefix", prefix)
    assert expression is not None
    if len(expression) > 200:
        return
    found = Matcher(expression).found_in
    assert found(prefix.strip() + rest)
    assert found(rest) == rest.startswith(prefix.strip())


def test_silence_form_makes_a_layer_expression() -> None:
    assert silence_form.match("all", "x") is None
    assert silence_form.match("regex", " lora_A|mlp ") == "lora_A|mlp"
    for layers in ("prefix", "regex"):
        with pytest.raises(ValueError, match="Say which parameters"):
            silence_form.match(layers, "  ")
    names = ["blocks.4.q", "blocks.4.k", "head", "blocks.10.q"]
    assert silence_form.prefixes(names) == ["blocks.4.", "blocks.10."]


def test_until_when_nobody_is_told() -> None:
    for (span, own), ends in {
        ("8h", None): NOW + timedelta(hours=8),
        ("own", "30m"): NOW + timedelta(minutes=30),
        ("own", " 3 d "): NOW + timedelta(days=3),
        ("own", "2030-01-31 09:00"): datetime(2030, 1, 31, 9, tzinfo=timezone.utc),
        ("own", "2030-01-31T09:00:00+02:00"): datetime(2030, 1, 31, 7, tzinfo=timezone.utc),
    }.items():
        assert datetime.fromisoformat(silence_form.until(span, own, NOW)) == ends
    for wrong in (None, "", "tomorrow", "8x", "2030-13-01"):
        with pytest.raises(ValueError, match="30m, 8h or 3d"):
            silence_form.until("own", wrong, NOW)
