"""A trial in words: what rules would have found, where, and how often they would have spoken. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradcanary_server.notifications import prefixes
from gradcanary_server.summaries import step
from gradcanary_server.takes import Source
from gradcanary_server.timestamps import timestamp
from gradcanary_server.trial import Story, Trial

SHOWN = 4
"""Patterns of layers in a line."""


def lines(source: Source, trials: Mapping[str, Trial], steps: tuple[int, int]) -> Iterator[str]:
    """Yield what to print of rules, by what they are called, that were tried on the same run."""
    yield f"{source.name}: steps {step(steps[0])} to {step(steps[1])}, {len(source.layers)} layers"
    if source.gone_before is not None:
        yield (
            f"Single samples before step {step(source.gone_before)} are gone (GRADCANARY_RAW_DAYS): the rules see what "
            "is left, and learn baselines from it."
        )
    for name, trial in trials.items():
        yield ""
        yield f"{name}: {_count(len(trial.stories), 'incident')}, {_count(trial.messages, 'message')}"
        for story in trial.stories:
            yield from _story(story, source)


def _story(story: Story, source: Source) -> Iterator[str]:
    what = story.case.incident
    end = "still open" if what.resolved_step is None else f"{what.resolution} at step {step(what.resolved_step)}"
    again = f", reopened {_times(what.reopened)}" if what.reopened else ""
    yield f"  {what.rule} ({what.severity}) fired at step {step(what.opened_step)}{again}, {end}"
    yield f"    {_layers(story, source)}"
    for message in story.messages:
        yield f"    {message.kind} at {timestamp(message.at)}, after step {step(message.step)}"


def _layers(story: Story, source: Source) -> str:
    named = [source.layers[number] for number in story.case.members if number is not None]
    if not named:
        return "the whole run"
    members = set(named)
    patterns = prefixes(named, [name for name in source.layers.values() if name not in members])
    more = f" and {len(patterns) - SHOWN} more" if len(patterns) > SHOWN else ""
    whole = "the whole run, " if None in story.case.members else ""
    return f"{whole}{len(named)} of {_count(len(source.layers), 'layer')}: {', '.join(patterns[:SHOWN])}{more}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
