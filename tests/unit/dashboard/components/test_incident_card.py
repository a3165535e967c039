"""The card of an incident."""

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.components import incident_card
from support.api_answers import full, incident, member, text_of


def test_a_card_says_what_happened_and_who_was_told() -> None:
    told = incident(
        layers=[member(1, since_step=31)],
        explanation=full()["explanation"],
        caused_by=30,
        also=[32, 33],
        fix={"framework": "peft", "text": "Check the schedule.", "code": "print(1)"},
        deliveries=[
            {
                "endpoint": 1,
                "name": "on call",
                "version": 1,
                "kind": "opened",
                "state": "pending",
                "attempts": [{"at": "", "status": 503, "ms": 1, "error": None}],
            }
        ],
    )
    said = text_of(incident_card.card(told, View()))
    for words in (
        "since step 31",
        "opened at step 50",
        "Its partner went to zero.",
        "Lr changed",
        "/incidents/30",
        "/incidents/33",
        "Check the schedule.",
    ):
        assert words in said
    assert "pending; last attempt: 503" in said
    assert "0.0031" in said


def test_a_card_says_who_knows_and_until_when_nobody_is_told() -> None:
    acked = {"at": "2026-11-20T02:00:00.000Z", "by": "ada", "note": "restarting"}
    silenced = {"until": "2026-11-20T10:00:00.000Z", "members": 1, "firing": 1}
    said = text_of(incident_card.card(incident(acked=acked, silenced=silenced), View()))
    assert "acked by ada: restarting" in said
    assert '"silenced, ends "' in said
    assert silenced["until"] in said
    some = text_of(incident_card.card(incident(silenced={**silenced, "firing": 18}), View()))
    assert "1 of 18 parameters silenced, ends " in some
    assert "silenced" not in text_of(incident_card.card(incident(), View()))


def test_a_listed_incident_without_details_is_a_card_too() -> None:
    said = text_of(incident_card.panel([incident(state="resolved", resolution="layer_gone", resolved_step=80)], View()))
    assert "parameter gone" in said
    assert "resolved at step 80" in said
