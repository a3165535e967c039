"""``gradcanary explain``, and the names that lead to its pages."""

import re
from itertools import chain

import pytest

from gradcanary import cli
from gradcanary.check.rules import RULES
from gradcanary.cli import explain
from gradcanary.cli.incidents import incident_text
from gradcanary.knowledge import pages
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.descriptions import describe
from support.api_answers import full

PAGES = {page.name: page for page in pages()}


def test_rules_and_checks_exist_and_lead_to_one_page() -> None:
    names = list(chain.from_iterable(explain.names_of(PAGES.values()).values()))
    assert len(names) == len(set(names))
    assert {rule for page in PAGES.values() for rule in page.rules} <= set(describe(Rules()))
    assert {rule.page for rule in RULES} - {""} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_its_checks(name: str) -> None:
    line = PAGES[name].text.partition("Checks: ")[2].partition("\n")[0]
    assert {rule.code for rule in RULES if rule.page == name} == set(re.findall(r"`(\w+)`", line))


@pytest.mark.parametrize("name", ["clipping", "clip_before_unscale", "explosion"])
def test_a_page_a_rule_and_a_check_print_the_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", name]) == 0
    printed = capsys.readouterr().out
    page = PAGES["clipping"]
    assert printed.startswith(f"Clipping and unscaling\n\n{page.summary}\n\nWhat to do:\n  - torch: scaler.unscale_(")
    assert printed.endswith(f"\n\nPage: {page.path} (or add --page)\n")
    assert page.path.exists()


def test_the_whole_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "swamping", "--page"]) == 0
    assert capsys.readouterr().out == PAGES["swamping"].text


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:11]] == list(PAGES)
    assert lines[-1] == "One of them: gradcanary explain NAME"


def test_an_unknown_name_says_what_is_close(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "fp16_rnge"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gradcanary explain: there is no page about 'fp16_rnge'. Close to it: fp16_range")
    assert cli.main(["explain", "zzz"]) == 2
    assert "Close" not in capsys.readouterr().err


def test_an_incident_names_the_page_of_its_rule() -> None:
    assert "\nAbout this: gradcanary explain collapse\n" in incident_text(full(rule="collapse"))
    assert "explain" not in incident_text(full(rule="silent"))
