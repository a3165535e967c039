"""What is said of each rule: the numbers in force, every kind of evidence."""

from dataclasses import replace

from gradcanary_server.rules import signals
from gradcanary_server.rules.config import NAMES, Collapse, Rules, Silent
from gradcanary_server.rules.descriptions import describe
from gradcanary_server.rules.types import SEVERITIES


def whens(rules: Rules, name: str) -> str:
    return " / ".join(case["when"] for case in describe(rules)[name]["cases"])


def test_each_rule_is_described_with_the_severities_that_it_can_have() -> None:
    described = describe(Rules())
    assert (*described,) == NAMES
    for name, of_rule in signals.RULES.items():
        said = {case["severity"] for case in described[name]["cases"]}
        assert said == {SEVERITIES[signal.severity] for signal in of_rule} | ({"critical"} & said), name


def test_numbers_are_those_in_force() -> None:
    rules = Rules(collapse=Collapse(enter=1e-6, fall_decades=2.5), silent=Silent(after_s=90.0))
    assert "is under 1e-6, at least 2.5 decades below" in whens(rules, "collapse")
    assert "for 1.5 minutes and 10 of its heartbeats" in whens(rules, "silent")
    assert "over 5 % of a gradient" in whens(Rules(), "accumulation_loss")


def test_only_the_evidence_that_counts_is_described() -> None:
    by_threshold = replace(Rules(), collapse=Collapse(evidence="threshold", norm_below=1e-6))
    assert whens(by_threshold, "collapse").split(" / ") == [
        "the gradient of a parameter is under 1e-4: no baseline, no grace",
        "its L2 norm is under 1e-6: no baseline, no grace",
    ]
    assert "siblings" not in whens(replace(Rules(), collapse=Collapse(evidence=("fall",))), "collapse")
    assert "L2 norm" not in whens(Rules(), "collapse")
