"""Each rule has its runbook, which says of causes and fixes what the product says."""

import pytest
from dash import html

from gradcanary import cli, knowledge
from gradcanary.cli.incidents import incident_text
from gradcanary.remedies import CAUSES
from gradcanary_dashboard.components.incident_text import reasons
from gradcanary_dashboard.pages import registry
from gradcanary_server.incidents import causes
from gradcanary_server.rules.config import NAMES, Rules
from gradcanary_server.rules.descriptions import describe
from support.api_answers import full, text_of
from support.documents import runbooks

MEANINGS = {rule: described["means"] for rule, described in describe(Rules()).items()}


def test_each_rule_has_a_runbook_and_each_runbook_a_rule() -> None:
    assert {page.name for page in knowledge.runbooks()} == set(NAMES) == set(runbooks.CAUSES_OF_RULES)


@pytest.mark.parametrize("rule", NAMES)
def test_a_runbook_has_its_parts_and_the_causes_of_the_product(rule: str) -> None:
    page = knowledge.runbook(rule)
    assert page is not None
    assert page.text.startswith(f"# {rule}\n\n{MEANINGS[rule]}\n\n")
    assert [line.removeprefix("## ") for line in page.text.splitlines() if line.startswith("## ")] == [
        "Is it real?",
        "Likely causes, in the order of the search",
        "Fixes, by framework",
        "Ack, silence, or a new baseline?",
        "How it decides",
    ]


def test_each_cause_of_the_collector_is_in_the_runbook_of_its_rule() -> None:
    for rule, found in [*causes._CODES.items(), *causes._AFTER.items()]:
        assert set(found.values()) <= set(runbooks.CAUSES_OF_RULES[rule]), rule
    assert set(CAUSES) == {code for codes in runbooks.CAUSES_OF_RULES.values() for code in codes}


@pytest.mark.parametrize("rule", NAMES)
def test_an_incident_leads_to_its_runbook(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    incident = full(rule=rule)
    assert f'"href": "/runbooks/{rule}"' in text_of(reasons(incident, html.H3))
    assert registry.find(f"/runbooks/{rule}") == (registry.RUNBOOK, {"rule": rule})
    assert f"\nRunbook: gradcanary runbook {rule}\n" in incident_text(incident)
    assert cli.main(["runbook", rule]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"# {rule}\n\n{MEANINGS[rule]}\n")
    assert "<!--" not in printed


def test_runbooks_are_listed_and_a_wrong_name_says_what_is_close(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook"]) == 0
    assert capsys.readouterr().out.split("\n\n")[0].split() == sorted(NAMES)
    assert cli.main(["runbook", "colapse"]) == 2
    assert "Close to it: collapse. 'gradcanary runbook' lists all" in capsys.readouterr().err
