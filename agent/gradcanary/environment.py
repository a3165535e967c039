"""The program of a launch: its command without secrets, git commit, host, versions, and the job of a scheduler.

Read once, in the sender's thread. Nothing is read of the environment but the names in ``JOB``.
"""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from gradcanary import wire
from gradcanary.redaction import HIDDEN, MOST_READ, hide_secrets
from gradcanary.settings import UNPRINTABLE

JOB = (
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_PARTITION"),
    *("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT"),
    *("POD_NAME", "POD_NAMESPACE", "NODE_NAME", "JOB_COMPLETION_INDEX"),  # as Kubernetes' documents name them
)
"""The only variables that are read."""

PACKAGES = ("accelerate", "deepspeed", "diffusers", "lightning", "pytorch_lightning", "peft", "transformers", "trl")
"""Reported if the training has imported them."""

GIT_S = 1.0
"""At most for the commit, and twice that for the dirty flag; a slow disk leaves them unknown."""

MAX_COMMAND, MAX_ARGUMENT, MAX_VALUE, MAX_GPUS = 4_000, 500, 200, 64
"""Characters and names."""

_SENSITIVE = (
    r"[\w.-]*(?:secret|passw(?:or)?d|passphrase|credential|api[_-]?key|access[_-]?key|private[_-]?key|webhook)[\w.-]*"
    r"|(?:[\w.-]*[_.-])?(?:token|key|pwd|pass|auth|authorization|cookie|dsn|pat)"
)
_NAME = re.compile(rf"-*(?:{_SENSITIVE})", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?i)(?<![\w.-])(-*[\"']?(?:{_SENSITIVE})[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|(?:bearer )?[^\s\"',;&}}]+)"
)


def read_environment(environ: Mapping[str, str], gpus: Iterable[str] = ()) -> wire.Environment:
    """Return the environment of this process; ``gpus`` are the names of those that it trains on."""
    commit, is_dirty = _git()
    return wire.Environment(
        command=printable(redacted_command(sys.orig_argv), MAX_COMMAND),
        git_commit=commit,
        git_dirty=is_dirty,
        host=printable(platform.node()),
        gpus=tuple(map(printable, gpus))[:MAX_GPUS],
        versions=tuple(_versions()),
        job=tuple((name, printable(environ[name])) for name in JOB if environ.get(name)),
    )


def redacted_command(arguments: Sequence[str]) -> str:
    """Return a command line for a shell, with ``***`` for each secret, and for a program that is an argument."""
    shown: list[str] = []
    hides_next, is_of_python = False, True
    for argument in (printable(each, MOST_READ) for each in arguments[:MAX_COMMAND]):
        is_option = argument.startswith("-")
        word = HIDDEN if hides_next and not is_option else hide_secrets(argument, _PAIR)
        shown.append(printable(word, MAX_ARGUMENT))
        hides_next = is_option and (_NAME.fullmatch(argument) is not None or (is_of_python and argument == "-c"))
        is_of_python = is_of_python and (is_option or len(shown) == 1)
    return " ".join(word if word == HIDDEN else shlex.quote(word) for word in shown)


def _git() -> tuple[str | None, bool | None]:
    """Return the commit of the working directory, and True if tracked files differ from it; None where unknown."""
    commit = _ask_git(("rev-parse", "HEAD"), GIT_S)
    if commit is None or not re.fullmatch(r"[0-9a-f]{40,64}", commit.strip()):
        return None, None
    changes = _ask_git(("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"), 2 * GIT_S)
    return commit.strip(), None if changes is None else bool(changes.strip())


def _ask_git(arguments: Sequence[str], timeout_s: float) -> str | None:
    # Writes no index, and starts no program that the repository's configuration names.
    git = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
    try:
        done = subprocess.run(  # noqa: S603 -- fixed words; git of the PATH, as the user's own
            (*git, *arguments), capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=timeout_s, check=False
        )
    except (OSError, ValueError, subprocess.SubprocessError):  # no git, a slow disk, or bytes that are no text
        return None
    return done.stdout if done.returncode == 0 else None


def _versions() -> Iterable[tuple[str, str]]:
    modules = dict(sys.modules)
    found: dict[str, object] = {"python": platform.python_version()}
    found |= {name: getattr(modules.get(name), "__version__", None) for name in ("gradcanary", "torch", *PACKAGES)}
    found["cuda"] = getattr(getattr(modules.get("torch"), "version", None), "cuda", None)
    return [(name, printable(version)) for name, version in found.items() if isinstance(version, str)]


def printable(text: str, longest: int = MAX_VALUE) -> str:
    """Return a text in one line of printable characters, shortened to ``longest``."""
    text = UNPRINTABLE.sub(" ", text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
