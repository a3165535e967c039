"""The causes and fixes in docs/runbooks.

A runbook has words of its own above two marks; what is between them comes from ``gradcanary.remedies``, which the
incidents use as well.
"""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradcanary import remedy_texts
from gradcanary.remedies import CAUSES, FRAMEWORKS, TEXTS, WORDS
from support.documents import between

FOLDER = Path(__file__).parents[3] / "docs" / "runbooks"
BEGIN, END = "<!-- causes and fixes: make generated -->\n", "<!-- end -->\n"
BACK = "go back to a checkpoint before that step"

SETTINGS = ("weight_decay", "rate_with_decay", "momentum", "rate_rose")
STANDING = ("rate_stays", "after_earlier")

CAUSES_OF_RULES = {
    "collapse": (
        *("after_nonfinite", "after_explosion", "after_scale_drop", "after_vanished", *SETTINGS),
        *("lora_partner", "lora_own", "whole_blocks", "parameter_group", "rate_jump", "exponential_fall"),
        *("under_siblings", "under_threshold", "low_when_joined", *STANDING, "unknown_fall"),
    ),
    "scale_drop": (
        *("after_nonfinite", "after_explosion", *SETTINGS, "converged", "own_loss_fall", *STANDING, "common_fall"),
    ),
    "nonfinite": (
        *(*SETTINGS, "fp16_overflow", "scale_fell", "loss_diverged", "diverged", "nonfinite_gradient"),
        *("sudden_nonfinite_loss", "nonfinite_loss", "rate_stays"),
    ),
    "explosion": (
        *("beside_collapse", "after_never_cleared", "after_nonfinite", *SETTINGS, "diverging", *STANDING, "exploding"),
    ),
    "vanished": (
        *("frozen_by_script", "handed_over", "never_any_gradient", "only_zeros", "fp16_zeros", "scale_too_low"),
        *("after_nonfinite", "after_explosion", *SETTINGS, "cut_off_blocks", "cut_off", "no_gradient_at_all"),
        *("became_zero", *STANDING, "idle_for_long"),
    ),
    "unused": (
        *("after_not_optimized", "not_in_graph", "multiplied_by_zero", "never_used_unnamed", "never_used", "cancelled"),
    ),
    "accumulation_loss": ("lossy_sum",),
    "accumulator": ("low_precision_sum", "other_dtype"),
    "frozen": ("clip_limit", "stopped_weights", "coarse_weights"),
    "in_vain": ("clip_limit", "in_vain"),
    "no_update": (
        *("lost_update", "rate_zero", "cannot_move", "epsilon", "clip_limit", "unmoved", "hardly_moves", "moves_less"),
    ),
    "second_moments": ("coarse_moments",),
    "fp16_underflow": ("scale_too_low", "fp16_zeros"),
    "clip_before_unscale": ("scaled_clip",),
    "loss_scale": ("scale_fell",),
    "not_optimized": ("in_no_optimizer",),
    "never_cleared": ("kept_gradients",),
    "silent": ("ended_while_stalled", "gone"),
    "stalled": ("lost_rank", "waiting"),
    "crash": ("out_of_memory", "exception_after_fault", "exception"),
    "metric": ("metric_after", "metric_not_finite", "metric_of_tags", "metric_of_all"),
}
"""By rule, in the order in which the collector looks for them (:mod:`gradcanary_server.incidents.causes`)."""


def complete(rule: str, text: str) -> str:
    """Return a runbook with the causes and fixes of its rule between the marks; raises ValueError without marks."""
    return between(text, BEGIN, END, "\n".join(_lines(CAUSES_OF_RULES[rule])) + "\n")


def _lines(causes: Sequence[str]) -> Iterator[str]:
    yield "## Likely causes, in the order of the search\n"
    for number, code in enumerate(causes, 1):
        others = [name for name in CAUSES_OF_RULES if code == f"after_{name}"]
        link = "".join(f" See [{name}]({name}.md)." for name in others)
        yield from _item(f"{number}. ", CAUSES[code].text + link)
    yield "\n## Fixes, by framework\n"
    yield "The incident names one of them, for your framework. *That step* is the one at which it began.\n"
    by_remedy: dict[str, list[int]] = {}
    for number, code in enumerate(causes, 1):
        if code.removeprefix("after_") not in CAUSES_OF_RULES:
            by_remedy.setdefault(CAUSES[code].remedy, []).append(number)
    for place, (remedy, numbers) in enumerate(by_remedy.items()):
        if place:
            yield ""
        plural = "s" if len(numbers) > 1 else ""
        yield from _item("", f"**Cause{plural} {', '.join(map(str, numbers))}.** {_with_back(TEXTS[remedy])}")
        yield from _by_framework(remedy)


def _by_framework(remedy: str) -> Iterator[str]:
    """Yield the lines to type: one block for all frameworks, or a point for those that have the same words."""
    default = ("", remedy_texts.CODE.get(remedy, ""))
    alike: dict[tuple[str, str], list[str]] = {}
    for framework in FRAMEWORKS if remedy in WORDS else ():
        alike.setdefault(WORDS[remedy].get(framework, default), []).append(framework)
    for (text, code), frameworks in alike.items():
        yield f"\n{', '.join(frameworks)}{': ' + text if text else ''}"
        yield f"\n```text\n{code}\n```" if code else ""
    if not alike and default[1]:
        yield f"\n```text\n{default[1]}\n```"


def _with_back(text: str) -> str:
    return text.replace("{back}", BACK)


def _item(mark: str, text: str) -> list[str]:
    rest = " " * len(mark)
    return textwrap.wrap(text, 110, initial_indent=mark, subsequent_indent=rest, break_on_hyphens=False)
