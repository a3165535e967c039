"""What ``gradcanary attach`` prints of a training that it has found."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from gradcanary.arguments import UNPRINTABLE

MOST_NAMED = 20
_SOURCES = {
    "framework": "as the framework counts",
    "optimizer": "as the optimizer counts",
    "relative": "counted from now on: nothing here counts steps",
}
NO_STEP = "no optimizer has stepped yet: what it trains will be on the page with the first step"
NO_OPTIMIZER = "no optimizer lives in this process: the first one that steps will be followed"
NO_WINDOW = "no whole window of micro-steps was seen yet: K and what is low will be on the page"
ALERT = "--absmax-below 1e-4 makes that an alert"
BARRED = "refuses the token: detach, and attach again with --token or GRADCANARY_TOKEN; until then it is kept here"
SPOOLS = "{url} does not answer: what is measured is kept by the training's machine, and sent when it does"
SILENT = "sends only what is not finite: the first rank sends the gradients of all"


def described(said: Mapping[str, Any], pid: int, stopped_s: float | None) -> Iterator[str]:
    """Yield the lines about one process."""
    yield from (f"  {name:<13}{text}" for name, text in _facts(said))
    if said["is_barred"]:
        yield f"  {'collector':<13}{BARRED}"
    elif said["is_heard"] is False:
        yield f"  {'collector':<13}{SPOOLS.format(url=said['url'].partition('/runs/')[0])}"
    by_gdb = "" if stopped_s is None else f"{stopped_s:.2f} s for gdb, "
    yield f"  {'stood still':<13}{by_gdb}{said['held_s']:.2f} s to begin"
    yield f"  {'run':<13}{said['run']}"
    yield f"  {'page':<13}{said['url']}"
    until = "" if said["for_s"] is None else f", or wait {duration(said['for_s'])}"
    yield f"  {'leave with':<13}gradcanary detach {pid}{until}"


def summarized(said: Mapping[str, Any]) -> str:
    """Return in one line what is trained and measured."""
    layers = f"{said['layers']:,} layer{'' if said['layers'] == 1 else 's'} ({_counted(said['dtypes'])})"
    return f"{said['optimizer']}, {layers}, {_micro_steps(said)}"


def _micro_steps(said: Mapping[str, Any]) -> str:
    return f"K = {said['k']} per step, summed in {_counted(said['accumulators']) or 'nothing yet'}"


def _facts(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in said["alive"]:
        yield "optimizer", f"{each['kind']}: {each['tensors']:,} tensors, {each['elements']:,} elements"
    if not said["alive"]:
        yield "optimizer", NO_OPTIMIZER if said["layers"] is None else said["optimizer"]
    if said["layers"] is None:
        yield "layers", NO_STEP
    else:
        yield "layers", f"{said['layers']:,}: {_counted(said['dtypes'])}"
        yield "framework", said["framework"] or "none found"
        yield "step", f"{said['step']:,}, {_SOURCES[said['step_source']]}"
    if said["world_size"] > 1:
        yield "rank", f"{said['rank']} of {said['world_size']}" + (f"; {SILENT}" if said["is_silent"] else "")
    if said["k"] is not None:
        yield "micro-steps", _micro_steps(said)
        yield "low", _low(said)
    elif said["layers"] is not None and not said["is_silent"]:
        yield "micro-steps", NO_WINDOW
    for text in said["unseen"]:
        yield "not seen", text


def _low(said: Mapping[str, Any]) -> str:
    low, layers = said["low"], said["layers"]
    if not low:
        return f"none of {layers:,} layers is under 1e-4 now"
    named = ", ".join(low[:MOST_NAMED]) + (f" and {len(low) - MOST_NAMED:,} more" if len(low) > MOST_NAMED else "")
    return f"{len(low):,} of {layers:,} layers {'is' if len(low) == 1 else 'are'} under 1e-4 now: {named} ({ALERT})"


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def duration(seconds: float) -> str:
    """Return a time as people write it: 45s, 10m, 3h, 6d."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def plain(text: str) -> str:
    """Return it without what would steer a terminal: names of layers and runs are another process's."""
    return "\n".join(UNPRINTABLE.sub(" ", line) for line in text.split("\n"))


def typed(command: tuple[str, ...]) -> str:
    """Return a command as it would be typed, shortened and in one line; its interpreter without the folder."""
    words = (command[0].rpartition("/")[2], *command[1:]) if command else command
    text = " ".join(UNPRINTABLE.sub(" ", shlex.join(words)).split())
    return text if len(text) <= 80 else text[:77] + "..."
