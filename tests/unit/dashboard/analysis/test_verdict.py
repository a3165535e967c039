"""What a page says first about a layer; of a run: tests/unit/agent/display/test_verdict.py."""

import json

from gradcanary.display.verdict import Verdict
from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.verdict import of_layer
from gradcanary_dashboard.components import incident_card
from support.api_answers import incident, layer, text_of


def test_incident_closed_by_the_end_of_a_run_is_not_called_resolved() -> None:
    ended = incident(state="ended", resolution="run_finished", resolved_step=99)
    assert incident_card.tally([ended, incident(state="open", resolution=None)]) == "1 open, 1 ended"
    assert "ended at step 99" in json.dumps(incident_card.panel([ended], View()), default=str)


def test_a_run_that_was_missed_and_then_ended_is_not_unrecovered() -> None:
    missed = incident(rule="silent", state="resolved", resolution="run_finished", resolved_step=99)
    assert incident_card.tally([missed]) == "1 resolved"
    assert "resolved at step 99" in text_of(incident_card.card(missed, View()))


def test_a_layer_waits_for_a_step_only_while_the_run_lives() -> None:
    unmeasured = layer(0, absmax=None, norm=None, step=None, state=None)
    assert of_layer(unmeasured, [], has_ended=True) == Verdict("information", "Nothing was measured of this parameter")
    assert of_layer(unmeasured, [], has_ended=False).tone == "waiting"


def test_a_layer_that_fires_tells_since_when_and_how_far_it_fell() -> None:
    member = {"layer": 1, "name": "blocks.1.lora_A", "since_step": 728, "baseline": 9.9e-4, "value": 4e-7}
    said = of_layer(layer(1, absmax=2.2e-7, rules={"collapse": "firing"}), [incident(layers=[member])])
    assert said == Verdict("critical", "Collapse since step 728", ": from 9.9e-4 to 2.2e-7")
    recovering = of_layer(layer(1, rules={"nonfinite": "recovering"}), [])
    assert recovering == Verdict("critical", "Nonfinite, recovering")
    for state in ("firing", "recovering"):
        ended = of_layer(layer(1, rules={"nonfinite": state}), [], has_ended=True)
        assert ended == Verdict("critical", "Nonfinite, not recovered at the end")


def test_a_layer_without_a_firing_rule_says_what_it_is() -> None:
    tones = {
        "warning": layer(0, rules={"collapse": "suspect"}),
        "waiting": layer(0, step=None, state=None),
        "information": layer(0, below_threshold=True),
        "quiet": layer(0),
    }
    assert {tone: of_layer(one, []).tone for tone, one in tones.items()} == {tone: tone for tone in tones}
    assert "not finite at step 99" in of_layer(layer(0, state="nonfinite"), []).text
