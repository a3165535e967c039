"""The words of the field that pages explain on hover, one sentence each."""

from __future__ import annotations

EXPLAINED = {
    "absmax": "The largest absolute value in the gradient of a parameter.",
    "K": "Accumulation steps: the micro-steps whose gradients are summed for one optimizer step.",
    "declared": "The dtype that a configuration asks gradients to be summed in.",
    "stored": "The dtype of the tensor that gradients are summed in.",
    "effective": "The dtype that the values show: float32 numbers that were rounded to bfloat16 count as such.",
    "weights": "The dtype of the parameter itself.",
    "firing": "The rule has seen enough bad steps, and not yet as many good ones since.",
    "not recovered": "The rule fired until the run ended.",
    "low": "Under the threshold (1e-4 by default), but it has always been, or not fallen: that is no incident.",
    "baseline": "The parameter's own normal level: the largest median of its absmax so far, which no fall changes.",
    "siblings": "The upper quartile of parameters of the same module class and shape, named alike but for numbers.",
    "update ratio": "How far a step moves the weights: the norm of the change, by the norm of the weights.",
}
"""By the word as pages show it."""


def explain(*words: str) -> str:
    """Return what these words mean; of several each on a line of its own, after the word."""
    return EXPLAINED[words[0]] if len(words) == 1 else "\n".join(f"{word}: {EXPLAINED[word]}" for word in words)
