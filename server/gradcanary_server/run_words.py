"""Incidents of a whole run in words: what no single layer did. Pure."""

from datetime import datetime, timezone

from gradcanary_server.incident_state import Incident, Member

RULES = ("scale_drop", "silent", "stalled")

_LOSS = {
    "information": "and the loss came down with them",
    "warning": "further than the loss explains, or the loss is not known",
    "critical": "while the loss did not fall",
}


def headline(incident: Incident, member: Member) -> str:
    """Return a few words for a list."""
    if incident.rule == "scale_drop":
        return f"all gradients fell together at step {incident.since_step:,}"
    since = "its start" if member.evidence == "no_step" else f"step {member.since_step:,}"
    return f"{'nothing heard' if incident.rule == 'silent' else 'no new step'} since {since}"


def sentence(incident: Incident, member: Member) -> str:
    """Return what happened, from what to what and when."""
    if incident.rule == "scale_drop":
        far = " to exactly zero" if member.value is None else f" by {member.value:.1f} decades"
        since = f"{incident.since_step:,}"
        return f"the gradients of all layers fell together{far} at step {since}, {_LOSS[incident.severity]}"
    since = _moment(incident, member)
    if incident.rule == "stalled":
        return f"the process lives and makes no step: step {member.since_step:,} was the last one, at {since}"
    last = "it had made no step" if member.evidence == "no_step" else f"its last step was {member.since_step:,}"
    return f"nothing was heard of the run since {since}, and it did not say that it ended; {last}"


def ending(incident: Incident) -> str:
    """Return how it ended that something did not come."""
    if incident.resolution == "run_finished":
        return "The run ended"
    if incident.resolution == "run_deleted":
        return "The run was deleted"
    if incident.resolution == "rule_changed":
        return "The rule became another one"
    return "It was heard of again" if incident.rule == "silent" else "It went on"


def _moment(incident: Incident, member: Member) -> str:
    """Return the moment since when something did not come: a member's value is for how many seconds that was."""
    noticed = incident.opened if incident.reopened_at is None else incident.reopened_at
    moment = datetime.fromtimestamp(noticed - (member.value or 0.0), tz=timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M} UTC"
