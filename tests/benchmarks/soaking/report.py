"""Judges what a soak has written down.

Each training wrote down its own gradients. All of them must be in the collector, as the same numbers. Not those that a
killed training made in its last seconds, unless the collector had shown them before. Expected incidents follow from the
kind of a training.
"""

import csv
import json
import math
import statistics
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from soaking.training import ROW

TAIL_S = 3.0
"""Before a kill -9, in which steps may get lost: half a second by the documents, and the rest for a busy machine."""

EXPECTED = {"collapse": ["collapse"], "nan": ["nonfinite"], "crash": ["crash"], "killed": ["silent"]}
STATUS = {"crash": 1, "killed": -9}
MORE = {"mib": 16.0, "files": 4, "threads": 3, "connections": 4}
"""At most between the medians of the second and the last quarter; of memory also a tenth."""

WAIT_S = 10.0
"""An incident that recovers before its first message is due needs none."""

FAULTS = ("kill", "stop", "fill_spool", "fill_store", "stand_still")
GROWN_MIB = 8.0
"""At most, of the last collector in the second half of its life."""

REPEAT_S = 120.0
"""After a fault of the collector or its disk has begun, in which a message may be sent again under its id."""

Line = dict[str, Any]


def main(folder: Path) -> int:
    """Print the numbers and each expectation, misses first; return the exit status."""
    jobs = lines(folder, "jobs")
    checks = [
        *unharmed(folder, jobs),
        *samples(folder, jobs),
        *incidents(folder, jobs),
        *messages(folder),
        *flat(folder, jobs),
    ]
    left = json.loads((folder / "left.json").read_text())
    checks.append(("files left in the spool", not left, f"{len(left)} {left[:3] or ''}"))
    print("\n".join(summary(folder, jobs)))
    print("\n| | expectation | found |\n|---|---|---|")
    for name, is_met, found in sorted(checks, key=lambda each: each[1]):
        print(f"| {'met' if is_met else 'MISSED'} | {name} | {found} |")
    return int(not all(is_met for _, is_met, _ in checks))


Check = tuple[str, bool, object]


def lines(folder: Path, sort: str) -> list[Line]:
    """Return what was written down of a sort."""
    file = folder / f"{sort}.jsonl"
    return [json.loads(each) for each in file.read_text().splitlines()] if file.exists() else []


def line(minute: int, found: Mapping[str, Any]) -> str:
    """Return one line of progress."""
    of = found.get("collector") or dict.fromkeys(MORE, 0)
    holds = f"{of['mib']:.0f} MiB {of['files']} files {of['threads']} threads {of['connections']} connections"
    (spooled, spool), (_, store) = found["spool"], found["store"]
    stores = f"store {store / 2**20:.1f} MiB, spool {spooled} files {spool / 2**10:.0f} KiB"
    told = f"{found['runs']} runs, {found['incidents']} incidents, messages {found['messages']}"
    return f"{minute:4} min: collector {holds}; {stores}; {told}"


def summary(folder: Path, jobs: Sequence[Line]) -> Iterator[str]:
    """Yield what happened."""
    measured = lines(folder, "samples")
    hours = (measured[-1]["at"] - measured[0]["at"]) / 3600
    yield f"{hours:.2f} hours; trainings by kind: {dict(Counter(each['kind'] for each in jobs))}"
    yield f"faults: {dict(Counter(each['fault'] for each in lines(folder, 'faults') if 'fault' in each))}"
    visits = Counter(f"{each['what']} {each['status']}" for each in lines(folder, "attaches"))
    yield f"commands with their exit status: {dict(visits)}, sync {len(lines(folder, 'syncs'))}"
    yield f"incidents: {dict(Counter(each['rule'] for each in found_incidents(folder)))}"


def unharmed(folder: Path, jobs: Sequence[Line]) -> Iterator[Check]:
    """Yield whether each training ended as it was ordered to, and nothing printed a traceback."""
    other = [(each["run"], each["status"]) for each in jobs if each["status"] != STATUS.get(each["kind"], 0)]
    yield "trainings end as ordered", not other, f"{len(jobs) - len(other)} of {len(jobs)} {other or ''}"
    unknown = {each.name for each in (folder / "trainings").iterdir()} - {each["run"] for each in jobs}
    yield "each training is written down", not unknown, sorted(unknown) or "all"
    texts = {each["run"]: (folder / "trainings" / each["run"] / "log").read_text() for each in jobs}
    faulty = [run for run, text in texts.items() if text.count("Traceback") > run.startswith("crash")]
    yield "no traceback of the agent", not faulty, faulty or "none"
    yield (
        "no traceback of a collector",
        (found := (folder / "collector.log").read_text().count("Traceback")) == 0,
        found,
    )
    errors = [each["error"] for each in lines(folder, "faults") if "error" in each]
    yield "no error of the soak itself, collectors start again", not errors, errors or "none"
    refused = [each for each in lines(folder, "attaches") if each["status"] != 0]
    yield (
        "each attach and detach succeeds",
        not refused,
        [(e["run"], e["what"], e["output"][-200:]) for e in refused] or "all",
    )
    alone = [each for each in lines(folder, "syncs") if each["status"] not in (0, 1)]
    yield "each sync ends", not alone, [each["output"] for each in alone] or "all"


def samples(folder: Path, jobs: Sequence[Line]) -> Iterator[Check]:
    """Yield whether each gradient that a training measured is in the collector, as the same number."""
    count, tail, lost, other, shown, gaps = 0, 0, [], [], [], []
    for job in jobs:
        truth = list(ROW.iter_unpack((folder / "trainings" / job["run"] / "truth").read_bytes()))
        found = exported(folder / "exports" / f"{job['run']}.csv")
        end = job["ordered"] - TAIL_S if job["kind"] == "killed" else math.inf
        for step, at, *values in due(truth, job):
            if step not in found:
                tail += at > end
                lost += [(job["run"], step)] if at <= end else []
                continue
            count += 1
            is_first = any(step <= each["begin"] for each in job["windows"])
            if not same(values, found[step], is_partial=is_first):
                other.append((job["run"], step))
        if job["seen"] is not None and not set(range(job["seen"] + 1)) <= set(found):
            shown.append(job["run"])
        run = json.loads((folder / "exports" / f"{job['run']}.json").read_text())
        if job["kind"] != "attached" or job["windows"]:
            gaps += [(job["run"], each) for each in run.get("gaps", [{"no run": run}])]
    yield (
        "each step is in the collector",
        not lost,
        f"{count:,} are, {tail} of killed trainings' last {TAIL_S:g} s are not, lost {len(lost)} {lost[:5] or ''}",
    )
    yield "as the same numbers", not other, f"{len(other)} differ {other[:5] or ''}"
    yield "killed trainings: all that the collector had shown before", not shown, shown or "all"
    yield "no gaps reported", not gaps, f"{len(gaps)} {gaps[:3] or ''}"


def due(truth: Sequence[tuple[Any, ...]], job: Line) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that the collector must have: all, or those while the training was attached to."""
    if job["kind"] != "attached":
        # Of a crash the last backward pass had its optimizer step; else every step is whole, too.
        yield from truth
        return
    for window in job["windows"]:
        end = window["end"]
        yield from (row for row in truth if window["begin"] <= row[0] and (end is None or row[0] <= end - 1))


def exported(file: Path) -> dict[int, list[str]]:
    """Return the rows of an export by step."""
    with file.open(newline="") as opened:
        return {int(row[0]): row[2:] for row in list(csv.reader(opened))[1:]}


def same(values: Sequence[float], found: Sequence[str], *, is_partial: bool) -> bool:
    """Return True if a row has these numbers, in float32; NaN and a partial window have none."""
    if len(values) != len(found):
        return False
    return all(
        (text == "" and (is_partial or not math.isfinite(value)))
        or (text != "" and struct.pack("<f", float(text)) == struct.pack("<f", value))
        for value, text in zip(values, found, strict=True)
    )


def found_incidents(folder: Path) -> list[Line]:
    """Return the incidents of the collector that are worth a message."""
    found = json.loads((folder / "incidents.json").read_text())
    return [each for each in found if each["severity"] != "information"]


def incidents(folder: Path, jobs: Sequence[Line]) -> Iterator[Check]:
    """Yield whether each training has the incidents of its kind, and no other."""
    by_run = defaultdict(list)
    for each in found_incidents(folder):
        by_run[each["run"]].append(each["rule"])
    other = []
    for job in jobs:
        wanted, found = EXPECTED.get(job["kind"], []), sorted(by_run.pop(job["run"], []))
        # A session whose end waits in a spool is silent until that is sent, which may take over five minutes.
        if job["has_spool"]:
            wanted, found = ([rule for rule in rules if rule != "silent"] for rules in (wanted, found))
        if found != wanted:
            other.append((job["run"], found))
    other += list(by_run.items())
    yield "each training has the incidents of its kind", not other, f"{len(other)} have others {other[:6] or ''}"


def brief_incidents(folder: Path) -> set[int]:
    """Return those that recovered before their first message was due, or before a collector was there to send it.

    A replay after an outage has the fault and the recovery within seconds.
    """
    faults = [each["at"] for each in lines(folder, "faults") if each.get("fault") in FAULTS]
    found = set()
    for each in found_incidents(folder):
        if each["state"] == "resolved":
            begin, end = (datetime.fromisoformat(each[key]).timestamp() for key in ("opened", "resolved"))
            if end - begin < WAIT_S or any(begin <= fault <= begin + WAIT_S for fault in faults):
                found.add(each["id"])
    return found


def received(folder: Path, name: str) -> list[Line]:
    """Return the messages of a receiver with their bodies read."""
    return [{**each, **json.loads(each["body"])} for each in json.loads((folder / f"{name}.json").read_text())]


def opened(folder: Path, name: str) -> dict[int, Counter[str]]:
    """Return how often each id was received of messages that open an incident."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for each in received(folder, name):
        if each["type"].endswith(".opened"):
            found[each["data"]["incident"]][each["id"]] += 1
    return found


def messages(folder: Path) -> Iterator[Check]:
    """Yield whether both receivers were told of each incident once: by one message, which repeats only under its id."""
    brief = brief_incidents(folder)
    wanted = {each["id"] for each in found_incidents(folder)} - brief
    troubles = [each["at"] for each in lines(folder, "faults") if each.get("fault") in FAULTS]
    for name in ("sound", "slow"):
        ids, got = opened(folder, name), received(folder, name)
        other = sorted(set(ids) - wanted - brief)
        silent, doubled = wanted - set(ids), {key: dict(each) for key, each in ids.items() if len(each) > 1}
        yield (
            f"{name} receiver: one opening for each incident",
            not silent and not doubled and not other,
            f"{len(ids)} of {len(wanted)}, brief {len(brief)}, no {sorted(silent)}, twice {doubled}, unknown {other}",
        )
        bodies, sent_again = defaultdict(set), []
        times: dict[str, list[float]] = defaultdict(list)
        for each in got:
            bodies[each["id"]].add(each["body"])
            times[each["id"]].append(each["at"])
        changed = [key for key, each in bodies.items() if len(each) > 1]
        yield (
            f"{name} receiver: a repeat has the same bytes",
            not changed,
            f"{len(got) - len(bodies)} repeats {changed or ''}",
        )
        if name == "sound":
            for key, at in times.items():
                near = any(t - 5 <= moment <= t + REPEAT_S for moment in at[:1] for t in troubles)
                sent_again += [key] if len(at) > 1 and not near else []
            yield "sound receiver: repeats only beside a fault", not sent_again, sent_again or "none elsewhere"


def unsettled(folder: Path) -> bool:
    """Return True while a killed run is not silent yet, or a message is on its way."""
    brief = brief_incidents(folder)
    wanted = [each for each in found_incidents(folder) if each["id"] not in brief]
    silent = {each["run"] for each in wanted if each["rule"] == "silent"}
    killed = {e["run"] for e in lines(folder, "jobs") if e["kind"] == "killed" and not e["has_spool"]}
    told = [set(opened(folder, name)) for name in ("sound", "slow")]
    return bool(killed - silent) or any({each["id"] for each in wanted} - each for each in told)


def flat(folder: Path, jobs: Sequence[Line]) -> Iterator[Check]:
    """Yield what the collector, the long trainings and the folders hold: medians of two quarters.

    Each training has a connection to the collector, which is an open file there. These are subtracted.
    """
    measured = [each for each in lines(folder, "samples") if each["share"] < 1]
    for each in measured:
        alive = each["runs"] - sum(job["at"] <= each["at"] for job in jobs)
        for kind in ("files", "connections"):
            if "collector" in each:
                each["collector"][kind] -= alive
    second = [each for each in measured if 0.25 <= each["share"] < 0.5]
    last = [each for each in measured if each["share"] >= 0.75]
    if not second or not last:
        yield "long enough to compare quarters", False, f"{len(measured)} samples"
        return
    for name in sorted({key for each in measured for key in each if isinstance(each[key], dict)}):
        for kind, more in MORE.items():
            old, new = (statistics.median(each[name][kind] for each in part if name in each) for part in (second, last))
            most = old + max(more, old / 10 if kind == "mib" else 0)
            yield f"{name}: {kind}", new <= most, f"{old:.0f} -> {new:.0f}, at most {most:.0f}"
    yield growth(measured)
    for what, more in (("spool", 20), ("store", 2)):
        old, new = (statistics.median(each[what][0] for each in part) for part in (second, last))
        yield f"files of the {what}", new <= old + more, f"{old:.0f} -> {new:.0f}, at most {old + more:.0f}"


def growth(measured: Sequence[Line]) -> Check:
    """Return by how much the last collector grew in the second half of its life, after its caches and threads."""
    found = [each["collector"] for each in measured if "collector" in each]
    life = [each["mib"] for each in found if each["pid"] == found[-1]["pid"]]
    old, new = (
        statistics.median(life[part]) for part in (slice(len(life) // 2, -len(life) // 4), slice(-len(life) // 4, None))
    )
    return (
        "collector: mib, third and fourth quarter of the last one's life",
        new <= old + GROWN_MIB,
        f"{old:.0f} -> {new:.0f}",
    )
