"""``gradcanary doctor``: what keeps a training from being seen from here, and if this machine does mixed precision.

Each check has a time limit and none writes to the collector. A check that fails itself is a note, and the others go on.
"""

from __future__ import annotations

import json
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from gradcanary import terminal
from gradcanary.doctor import machine, network, torch_devices
from gradcanary.doctor.report import Finding, Rank, find_rank, finding_text, job_text, summary
from gradcanary.settings import Settings


def run(url: str | None, token: str | None, environ: Mapping[str, str], *, as_json: bool) -> int:
    """Print the findings and return the exit status: 1 if one is a fault."""
    rank = find_rank(environ, platform.node())
    if rank.world > 1:  # a launcher ends all ranks after the first status 1, and each of them has something to print
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    found = list(_print_each(rank, url, token, environ, is_silent=as_json or rank.world > 1))
    if as_json:
        _write(json.dumps([asdict(each) for each in found], indent=None if rank.world > 1 else 2))
    elif rank.world > 1:
        _write(job_text(found, rank, terminal.width()))
    else:
        _write(summary(found))
    return 1 if any(each.state == "fault" for each in found) else 0


def _print_each(
    rank: Rank, url: str | None, token: str | None, environ: Mapping[str, str], *, is_silent: bool
) -> Iterator[Finding]:
    for finding in find_all(rank, url, token, environ):
        if not is_silent:
            _write(finding_text(finding, terminal.width()))
        yield finding


def _write(text: str) -> None:
    """Write a text at once: lines of other ranks do not come between."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stdout.flush()


def find_all(rank: Rank, url: str | None, token: str | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings of all checks; torch is imported by a process of its own beside the others."""
    yield machine.describe_process(rank, environ)
    gpus = torch_devices.read_gpus()
    probe = torch_devices.Probe(gpus, rank.local)
    try:
        settings = Settings.resolve(environ, spelled="--{}", url=url, token=token)
    except ValueError as error:
        yield Finding("settings", "fault", str(error), "correct it: watch() and gradcanary run refuse it, too")
    else:
        yield machine.describe_settings(settings, environ, url, token)
        yield from _guarded(
            "collector", lambda: network.check_collector(settings.url, settings.token, environ, rank.host)
        )
    yield from _guarded("spool", lambda: machine.check_spool(environ))
    yield from _guarded("attach", machine.check_attach)
    yield from _guarded("torch", lambda: torch_devices.judge_records(probe.records(), gpus, torch_devices.read_cpu()))


def _guarded(check: str, find: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from find()
    except Exception as error:  # noqa: BLE001 -- the other checks go on
        yield Finding(check, "note", f"could not be checked ({type(error).__name__}: {error})")
