"""An incident in the terminal."""

from gradcanary.cli.incidents import incident_text
from support.api_answers import full

CRASH = {"type": "ValueError", "message": "", "frames": ["train.py:12 in step", "train.py:40 in <module>"]}


def test_frames_of_a_crash_stand_under_the_cause() -> None:
    lines = incident_text(full(rule="crash", crash=CRASH)).splitlines()
    first = lines.index("    train.py:12 in step")
    assert lines[first + 1 : first + 3] == ["    train.py:40 in <module>", ""]
    assert lines[first + 3].startswith("More: ")


def test_other_incidents_have_no_frames() -> None:
    assert "train.py" not in incident_text(full(crash=None))
