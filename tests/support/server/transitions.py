"""Changes as the fold would report them."""

from gradcanary_server.rules.types import Transition


def fired(layer_no, step=359, since=340, severity="critical", rule="collapse", evidence="fall", value=6.1e-7, jumps=()):
    return Transition(step, rule, layer_no, "fired", severity, since, value, 3.1e-3, None, evidence, jumps=jumps)


def resolved(layer_no, step=900, rule="collapse", resolution="recovered"):
    return Transition(step, rule, layer_no, "resolved", "critical", 0, resolution=resolution)
