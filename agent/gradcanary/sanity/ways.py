"""Ways of one training, as two dtypes: what the options name, and the command of each.

A script takes a value where its arguments say so: ``--dtype {precision}``. A way may also bring arguments of its own,
``bf16=--bf16``, for scripts that have a flag and no value. Pure: no I/O.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["compare", "accumulate", "checkpointing", "stress"]

PLACEHOLDERS: dict[Kind, str] = {"compare": "precision", "accumulate": "accumulate", "checkpointing": "checkpointing"}
"""What stands in braces in the script's arguments; that of ``stress`` is the name before its "="."""

_ENTRY = re.compile(r"""(?:[^,'"]|'[^']*'|"[^"]*"|['"])+""")
"""A comma separates ways, except between quotation marks."""


_WITH_WORDS: dict[Kind, str] = {
    "compare": "--compare 'fp32=,bf16=--bf16,fp16=--fp16'",
    "checkpointing": "--checkpointing='off=,on=--gradient_checkpointing'",
}

_EXAMPLES: dict[Kind, str] = {
    "compare": "two ways or more, as in --compare fp32,bf16",
    "accumulate": "two numbers or more, as in --accumulate 1,4,16",
    "checkpointing": f"two ways, as in {_WITH_WORDS['checkpointing']}",
    "stress": "a name and values, as in --stress lr=3e-3,1e-2",
}


class WayError(ValueError):
    """The option and the script's arguments do not fit together; the message shows what to write."""


@dataclass(frozen=True)
class Way:
    """One way: its name, and the command that trains in this way; ``k``: its accumulation steps."""

    name: str
    command: tuple[str, ...]
    k: int | None = None


@dataclass(frozen=True)
class Experiment:
    """Ways to run one after another. The others are compared with the first one; ``placeholder`` names what differs."""

    kind: Kind
    placeholder: str
    ways: tuple[Way, ...]
    effective_batch: int | None = None


def plan(kind: Kind, text: str, command: Sequence[str], *, effective_batch: int | None = None) -> Experiment:
    """Return the ways that an option names for a command; raises WayError where the two do not fit together.

    ``text`` is the option's value: ``fp32,bf16``, or ``lr=3e-3,1e-2`` for ``stress``. ``effective_batch`` is the
    number of examples of an optimizer step, for ``accumulate``.
    """
    placeholder, entries = _split_name(text) if kind == "stress" else (PLACEHOLDERS[kind], text)
    found = [_split_entry(entry) for entry in _ENTRY.findall(entries)]
    names = [name for name, _ in found]
    if len(names) < (1 if kind == "stress" else 2) or len(set(names)) < len(names) or not all(names):
        raise WayError(f"--{kind} {text}: give {_EXAMPLES[kind]}, each once")
    if kind == "accumulate":
        _check_batch(command, effective_batch)
    ways = []
    for name, words in found:
        k = _micro_steps(name) if kind == "accumulate" else None
        own = _set_batch(command, k, effective_batch) if k and effective_batch else command
        ways.append(Way(name, _substitute(own, kind, placeholder, name, words), k))
    return Experiment(kind, placeholder, tuple(ways), effective_batch)


def _split_name(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or not re.fullmatch(r"\w+", name):
        raise WayError(f"--stress {text}: give {_EXAMPLES['stress']}")
    return name, values


def _split_entry(entry: str) -> tuple[str, list[str] | None]:
    """Return the name of a way, and its arguments if the entry has an "="."""
    name, equals, words = entry.partition("=")
    try:
        return name.strip(), shlex.split(words) if equals else None
    except ValueError as error:
        raise WayError(f"{entry}: {error}") from error


def _micro_steps(name: str) -> int:
    if not re.fullmatch("[1-9][0-9]*", name, re.ASCII):
        raise WayError(f"--accumulate {name}: not a number of micro-steps. Give {_EXAMPLES['accumulate']}")
    return int(name)


def _check_batch(command: Sequence[str], effective_batch: int | None) -> None:
    """Raise WayError if the arguments have ``{batch}`` and no effective batch was given, or the other way round."""
    has_batch = any("{batch}" in word for word in command)
    if has_batch and effective_batch is None:
        raise WayError("{batch} is the effective batch divided by the micro-steps: add --effective-batch 64")
    if effective_batch is not None and not has_batch:
        raise WayError(
            "--effective-batch: write {batch} where the script takes the batch of one micro-step, as in "
            "-- --batch {batch} --accumulate {accumulate}"
        )


def _set_batch(command: Sequence[str], k: int, effective_batch: int) -> list[str]:
    if effective_batch % k:
        raise WayError(f"--effective-batch {effective_batch} cannot be divided by {k} micro-steps")
    return [word.replace("{batch}", str(effective_batch // k)) for word in command]


def _substitute(
    command: Sequence[str], kind: Kind, placeholder: str, name: str, words: list[str] | None
) -> tuple[str, ...]:
    """Return the command of one way: its arguments, or its name, at the placeholder; else its arguments at the end."""
    mark = f"{{{placeholder}}}"
    if not any(mark in word for word in command):
        if words is None:
            raise WayError(_missing(kind, placeholder, name))
        return (*command, *words)
    given = [name] if words is None else words
    found: list[str] = []
    for word in command:
        if mark in word and word != mark and len(given) != 1:
            raise WayError(f"{word} takes one word, and {name} has {len(given)}: write {mark} as a word of its own")
        found += given if word == mark else [word.replace(mark, "".join(given))]
    return tuple(found)


def _missing(kind: Kind, placeholder: str, name: str) -> str:
    """Return the text that shows how a script takes the values of an option."""
    option = "dtype" if kind == "compare" else placeholder
    text = (
        f"--{kind}: the script does not get {name!r}. Write {{{placeholder}}} where it takes the value, as in "
        f"gradcanary sanity train.py --{kind} ... -- --{option} {{{placeholder}}}"
    )
    return f"{text}. Or give the arguments of each way: {_WITH_WORDS[kind]}" if kind in _WITH_WORDS else text
