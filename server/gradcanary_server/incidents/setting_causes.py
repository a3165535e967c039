"""The settings that explain an incident, as sentences with their numbers. Pure.

A setting is named as a cause only if it changed far enough shortly before, or cannot work at all. A warm-up is no jump:
the rules find jumps of a learning rate only after it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradcanary.wire import Setting
from gradcanary.wording import count, number, percent
from gradcanary_server.rules.types import Jump, ScaleFall

NEAR_STEPS = 200
"""A setting that changed, or an incident that opened, at most this many steps before may be the cause."""

MOST_DOUBLINGS = 10
"""Three decades: by then a decay that is a cause has brought its gradients from usual ones to under 1e-4."""

EARLY_STEPS = 1_000
"""A setting that was wrong from the start shows in these first steps of a launch."""

LEAST_JUMP = 3.0
"""As of learning rates: schedules change less at once. Of a momentum its distance to 1 counts as well."""

RISE = 10.0
"""A setting that rose this many times is a cause; schedules of momentum and decay change less at once."""

HIGH_MOMENTUM = 0.999
"""SGD adds up a thousand gradients with it; 0.9 to 0.99 are usual."""

CERTAIN_MOMENTUM = 0.9999
"""More gradients than the first steps have: nothing is forgotten, whatever the fault looks like."""

USUAL_EPS = 1e-6
"""Adam's eps is 1e-8, and up to a hundred times as much in some recipes."""

TINY_CLIP = 1e-3
"""The share of the gradients that a clip leaves, to be the cause of weights that do not move."""


MOST_EPS = 1e4
"""Times its eps, over which a clip to a norm changes hardly a step of an optimizer like Adam, which divides it out: of
10^8 elements alike, each is as many times smaller than the norm."""


LEAST_DECAY = 1e-3
"""The part of the weights that a decay takes in a step, to be a cause long after it rose; a tenth of it is usual."""


class SettingCause(NamedTuple):
    """A code of the catalogue of causes, the setting, and the sentence of the evidence.

    ``step`` is the first one of the value; -1 if the launch began with it.
    """

    code: str
    setting: str
    sentence: str
    step: int = -1


@dataclass(frozen=True)
class Configuration:
    """The settings of the launch of an incident, its groups (0: unknown), and the last norm before a clip."""

    settings: tuple[Setting, ...] = ()
    groups: int = 0
    total_norm: float | None = None

    def value(self, name: str, group: int, step: int) -> bool | float | str | None:
        """Return the value of a setting at a step, None if it is unknown."""
        known = [each for each in self.settings if each.name == name and group in each.groups and each.step <= step]
        return known[-1].value if known else None

    def number(self, name: str, group: int, step: int) -> float | None:
        value = self.value(name, group, step)
        return value if isinstance(value, float) and not isinstance(value, bool) else None


def change_lines(configuration: Configuration, since: int, without: str | None) -> list[str]:
    """Return a line for each setting that changed shortly before a step, ``without`` that of the cause.

    Groups that changed alike share a line.
    """
    return [
        f"{_name(setting, configuration)} went from {exact(before)} to {exact(setting.value)} {_when(setting)}"
        for setting, before in _recent(configuration, since)
        if setting.name not in ("lr", without) and _is_jump(before, setting.value)
    ]


def jump_lines(jumps: Iterable[Jump], groups: int, since: int) -> list[str]:
    """Return one line for each jump of a learning rate; groups that jump alike share one."""
    alike: dict[Jump, list[int]] = {}
    for jump in jumps:
        alike.setdefault(replace(jump, group=-1, highest=None), []).append(jump.group)
    return [
        f"the learning rate{_of_groups(numbers, groups)} {_times(jump.before, jump.after)} at step {jump.step:,}, from "
        f"{exact(float(f'{jump.before:.6g}'))} to {exact(float(f'{jump.after:.6g}'))}{_still(jump, since)}"
        for jump, numbers in alike.items()
    ]


USUAL_DECAY = 0.1
"""Up to here a decay that takes weights does so by its learning rate: AdamW's default is 0.01, GPT-3 had 0.1
(arXiv:2005.14165, appendix B)."""


def find_decay(configuration: Configuration, since: int) -> SettingCause | None:
    """Return weight decay that halves the weights before a step, or doubles them.

    Decoupled weight decay multiplies a weight by ``1 - lr * weight_decay`` in each step.
    """
    for setting in reversed(configuration.settings):
        factor = _factor(configuration, setting)
        if factor is None or setting.step > since:
            continue
        doublings = abs(_doublings(factor, since - _first(setting) + 1))
        # A slow decay takes longer to show than a jump of another setting.
        is_slow = setting.checked is not None and doublings <= MOST_DOUBLINGS
        if doublings >= 1 and (is_slow or _is_early_or_recent(configuration, setting, since)):
            return _decay(configuration, setting, factor)
    return None


def find_momentum(configuration: Configuration, since: int, *, from_start: bool) -> SettingCause | None:
    """Return a momentum of SGD that never brakes; one of the first steps ``from_start``, or if it is certain."""
    for setting in reversed(configuration.settings):
        value = _high_momentum(configuration, setting)
        if value is None:
            continue
        is_near = setting.checked is not None or from_start or value >= CERTAIN_MOMENTUM
        if is_near and _is_early_or_recent(configuration, setting, since):
            return _momentum(configuration, setting, value)
    return None


def find_standing(configuration: Configuration, jumps: Iterable[Jump], since: int) -> list[SettingCause]:
    """Return the settings that rose long before a step and are still in force at it, the last one first."""
    rises = [jump for jump in jumps if jump.now is not None]
    lines = jump_lines(rises, configuration.groups, since)
    found = [SettingCause("rate_stays", "lr", line, rises[0].step) for line in lines[:1]]
    for setting in configuration.settings:
        steps = since - _first(setting)
        if setting.checked is None or steps <= NEAR_STEPS or _is_changed(configuration, setting, since):
            continue
        factor, momentum = _factor(configuration, setting), _high_momentum(configuration, setting)
        if factor is not None and abs(1 - factor) >= LEAST_DECAY:
            cause = _decay(configuration, setting, factor)
        elif momentum is not None:
            cause = _momentum(configuration, setting, momentum)
        else:
            continue
        later = f", and was still in force {count(steps, 'step')} later"
        found.append(cause._replace(sentence=cause.sentence + later))
    return sorted(found, key=lambda cause: cause.step, reverse=True)


def _factor(configuration: Configuration, setting: Setting) -> float | None:
    """Return what weights are multiplied by in each step, None unless this is decoupled weight decay that rose far."""
    value, before = setting.value, _before(configuration, setting)
    if setting.name != "weight_decay" or not isinstance(value, float):
        return None
    rate = configuration.number("lr", setting.groups[0], setting.step)
    has_risen = before is None or (isinstance(before, float) and abs(value) >= RISE * abs(before))
    is_factor = rate is not None and has_risen and is_decoupled(configuration, setting.groups[0], setting.step)
    return 1 - rate * value if rate is not None and is_factor else None


def _decay(configuration: Configuration, setting: Setting, factor: float) -> SettingCause:
    before, value = _before(configuration, setting), exact(setting.value)
    rate = exact(configuration.number("lr", setting.groups[0], setting.step))
    change = "has been" if before is None else f"rose from {exact(before)} to"
    return SettingCause(
        "rate_with_decay" if -USUAL_DECAY <= float(setting.value) <= USUAL_DECAY else "weight_decay",
        "weight_decay",
        f"weight decay{_of_groups(setting.groups, configuration.groups)} {change} {value} {_when(setting)}: with the "
        f"learning rate {rate} each step multiplies its weights by 1 - {rate} * {value} = {exact(round(factor, 6))}",
        _change_step(setting),
    )


def _high_momentum(configuration: Configuration, setting: Setting) -> float | None:
    """Return a momentum that never brakes, None for a usual one and for other settings."""
    if setting.name not in ("momentum", "beta1", "beta2") or not isinstance(setting.value, float):
        return None
    is_high = setting.value >= (HIGH_MOMENTUM if setting.name == "momentum" else 1.0)
    is_damped = configuration.number("dampening", setting.groups[0], setting.step)
    return setting.value if is_high and not is_damped else None


def _momentum(configuration: Configuration, setting: Setting, value: float) -> SettingCause:
    before, name = _before(configuration, setting), setting.name
    change = "has been" if before is None else f"went from {exact(before)} to"
    sums = "all gradients since then" if value >= 1 else f"up to {1 / (1 - value):,.0f} gradients"
    effect = f": each step is the sum of {sums}" if name == "momentum" else ""
    of_groups = _of_groups(setting.groups, configuration.groups)
    sentence = f"{name}{of_groups} {change} {exact(value)} {_when(setting)}{effect}"
    return SettingCause("momentum", name, sentence, _change_step(setting))


def _change_step(setting: Setting) -> int:
    """Return the first step that a change may have been in force at, -1 of the first value of a launch."""
    return -1 if setting.checked is None else _first(setting)


def _is_changed(configuration: Configuration, setting: Setting, since: int) -> bool:
    """Return True if a setting had another value at a later step."""
    return any(configuration.value(setting.name, group, since) != setting.value for group in setting.groups)


def _still(jump: Jump, since: int) -> str:
    """Return that a rate was in force long after its jump, nothing shortly after it."""
    if jump.now is None:
        return ""
    value = "in force" if math.isclose(jump.now, jump.after, rel_tol=0.01) else exact(float(f"{jump.now:.2g}"))
    return f", and was still {value} {count(since - jump.step, 'step')} later"


def find_tiny_clip(configuration: Configuration, step: int) -> SettingCause | None:
    """Return a clip that leaves next to nothing of the gradients, and that no optimizer divides out."""
    known = [each for each in configuration.settings if each.step <= step]
    limits = [each.value for each in known if each.name == "max_norm"]
    limit, norm = limits[-1] if limits else None, configuration.total_norm
    if not isinstance(limit, float) or norm is None or not math.isfinite(norm) or limit > TINY_CLIP * norm:
        return None
    eps = [each.value for each in known if each.name == "eps" and isinstance(each.value, float)]
    if eps and limit > MOST_EPS * max(eps):
        return None
    sentence = f"gradients are clipped to a norm of {exact(limit)}, and had one of {number(norm)} before the clip"
    return SettingCause("clip_limit", "max_norm", sentence)


def scale_words(fall: ScaleFall | None) -> tuple[str, str]:
    """Return what the scale of a GradScaler did, and between which steps, with the steps skipped."""
    if fall is None:
        return "the GradScaler's scale fell", ""
    if fall.before is None:
        return f"the GradScaler's scale is {exact(fall.after)}", f" at step {fall.last:,}"
    skipped = "" if fall.skipped is None else f", and {percent(fall.skipped)} of the steps between them were skipped"
    return (
        f"the GradScaler's scale fell from {exact(fall.before)} to {exact(fall.after)}",
        f" between steps {fall.first:,} and {fall.last:,}{skipped}",
    )


def find_update_cause(
    configuration: Configuration, groups: Collection[int], step: int, code: str, *, is_slow: bool
) -> SettingCause | None:
    """Return the setting because of which weights of some groups do not move, or hardly, None if none is known.

    ``code`` is the cause that the measurements show; ``is_slow`` if they move by a small part of what the optimizer
    should move them by.
    """
    of_groups = _of_groups(sorted(groups), configuration.groups) if groups else ""
    eps, rate = _largest(configuration, "eps", groups, step), _largest(configuration, "lr", groups, step)
    clip = find_tiny_clip(configuration, step)
    if code == "rate_zero":
        return SettingCause(code, "lr", f"the learning rate{of_groups} has been 0 in each step of this launch")
    may_be_epsilon = code == "moves_less" or (code == "hardly_moves" and is_slow)
    if may_be_epsilon and eps is not None and eps > USUAL_EPS:
        return SettingCause("epsilon", "eps", f"eps{of_groups} is {exact(eps)}")
    if clip is not None and code in ("unmoved", "hardly_moves"):
        return clip
    if code == "cannot_move" and rate is not None:
        return SettingCause(code, "lr", f"the learning rate{of_groups} was {exact(rate)} when it was last reported")
    return None


def _largest(configuration: Configuration, name: str, groups: Iterable[int], step: int) -> float | None:
    known = (configuration.number(name, group, step) for group in groups)
    return max((value for value in known if value is not None), default=None)


def exact(value: bool | float | str | None) -> str:
    """Return a value as it was set: ``100,000``, ``0.9999999``, ``1e-8``."""
    if not isinstance(value, float):
        return str(value)
    return re.sub(r"e([+-])0*", lambda sign: f"e{sign[1].strip('+')}", f"{value + 0.0:,.12g}")


def _recent(configuration: Configuration, since: int) -> Iterator[tuple[Setting, bool | float | str]]:
    """Yield the settings that changed shortly before a step, with the values before."""
    for setting in configuration.settings:
        before = _before(configuration, setting)
        if before is not None and _is_recent(setting, since):
            yield setting, before


def _is_jump(before: bool | float | str, after: bool | float | str) -> bool:
    """Return True unless both are numbers that a schedule may lead from one to the other."""
    if not isinstance(before, float) or not isinstance(after, float):
        return before != after
    pairs = ((abs(before), abs(after)), (abs(1 - before), abs(1 - after)))
    return any(max(pair) >= LEAST_JUMP * min(pair) for pair in pairs)


def _before(configuration: Configuration, setting: Setting) -> bool | float | str | None:
    """Return the value before a change, None for the first one."""
    earlier = configuration.settings[: configuration.settings.index(setting)]
    alike = [each for each in earlier if each.name == setting.name and set(setting.groups) <= set(each.groups)]
    return None if setting.checked is None or not alike else alike[-1].value


def _first(setting: Setting) -> int:
    """Return the first step that a setting may have been in force at."""
    return setting.step if setting.checked is None else setting.checked + 1


def _is_recent(setting: Setting, since: int) -> bool:
    return setting.checked is not None and 0 <= since - _first(setting) <= NEAR_STEPS


def _is_early_or_recent(configuration: Configuration, setting: Setting, since: int) -> bool:
    """Return True if a setting changed shortly before a step, or is the first one, in force until this early step."""
    if setting.checked is not None:
        return _is_recent(setting, since)
    later = [each for each in configuration.settings if each.name == setting.name and each.checked is not None]
    return 0 <= since - setting.step <= EARLY_STEPS and not any(
        set(each.groups) & set(setting.groups) for each in later
    )


def is_decoupled(configuration: Configuration, group: int, step: int) -> bool:
    """Return True if the weight decay of a group multiplies its weights by ``1 - lr * weight_decay`` in each step."""
    flag = configuration.value("decoupled_weight_decay", group, step)
    kind = str(configuration.value("optimizer", group, step))
    return flag is True or "AdamW" in kind


def _doublings(factor: float, steps: int) -> float:
    """Return how often a factor doubles a weight in some steps; negative if it halves it."""
    return steps * math.log2(abs(factor)) if factor else -math.inf


def _times(before: float, after: float) -> str:
    """Return ``rose 6,000 times``, of a ratio of two digits; ``rose`` alone from zero."""
    verb = "rose" if after > before else "fell"
    if min(before, after) <= 0:
        return verb
    return f"{verb} {number(float(f'{max(before, after) / min(before, after):.2g}'))} times"


def _when(setting: Setting) -> str:
    if setting.checked is None:
        return f"since step {setting.step:,}"
    if setting.step - setting.checked <= 1:
        return f"at step {setting.step:,}"
    return f"between steps {setting.checked:,} and {setting.step:,}"


def _name(setting: Setting, configuration: Configuration) -> str:
    of_groups = _of_groups(setting.groups, configuration.groups) if setting.groups else ""
    return f"{'the norm of the clip' if setting.name == 'max_norm' else setting.name}{of_groups}"


def _of_groups(numbers: Sequence[int], groups: int) -> str:
    """Return `` of parameter group 1`` or `` of all groups``, and nothing for the only group."""
    if len(numbers) >= groups > 0:
        return " of all groups" if groups > 1 else ""
    *others, last = map(str, numbers)
    return f" of parameter groups {', '.join(others)} and {last}" if others else f" of parameter group {last}"
