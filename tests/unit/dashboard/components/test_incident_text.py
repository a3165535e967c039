"""Sentences about an incident."""

from gradcanary_dashboard.components import incident_text
from support.api_answers import incident, text_of


def test_an_incident_without_deliveries_says_that_no_message_was_sent() -> None:
    assert "no message was sent" in text_of(incident_text.told(incident()))
