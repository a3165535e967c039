"""What every rule has: a code of its own, a severity and a line for the list."""

from gradcanary.check.checker import CODES
from gradcanary.check.findings import ALWAYS
from gradcanary.check.output import GITHUB
from gradcanary.check.rules import RULES


def test_every_rule_is_described() -> None:
    codes = [rule.code for rule in RULES]
    assert sorted({*codes, *ALWAYS}) == sorted([*codes, *ALWAYS])
    assert set(codes) < CODES
    assert {rule.severity for rule in RULES} <= set(GITHUB)
    assert [rule.code for rule in RULES if not rule.summary or rule.summary.endswith(".")] == []
