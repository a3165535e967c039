"""The table of the suite, for a terminal and as docs/results/detection.md."""

from dataclasses import replace
from pathlib import Path

from detection.rivals import RIVALS
from detection.verdicts import Row, totals
from words.check import Flaw

PAGE = Path(__file__).parents[2] / "docs" / "results" / "detection.md"

HEAD = """\
# What is detected, and what stays quiet

Small real trainings with known truth, each under `gradcanary.watch()` with default rules, one collector for all and a
webhook receiver. What is true is known by how a job was made, and read from its `.grad` and its weights in float64, not
by gradcanary. A step takes 0.1 s at least: a message is gathered for 10 s, in which the false alarm of a short job
would be over. Jobs whose interval the agent chooses by the time of a step wait for 12 s after each thousand instead.
Published by `make detection ARGS=--write`; the jobs are in [tests/detection](../../tests/detection/).
"""

FAULTS_HEAD = """\
## Faults

late: steps from the fault to the incident, negative if the incident is earlier than the step at which the
float64 values count as fallen. Rules that send no messages are on the page only.

words true?: no sentence of headline, cause, evidence, fix or message is false, the true cause is named where the data
show it, and one fix mends the job ([what is held true](../../tests/detection/wording.py)). Numbers are those of the
false sentences, which stand under the tables.
"""

FAULT_COLUMNS = ("case", "what happens", "truth", "said", "layers", "late", "messages", "words true?")

CONTROL_COLUMNS = ("case", "what it is", "steps", "said", "alarms", "messages", "words true?")

CONTROLS_HEAD = """
## Healthy jobs

None may be told of, and none may have an incident at warning or above (alarms). Other incidents are here, too.
"""

RIVALS_HEAD = """
## The rules of others, on the same gradients

Each reads every step in float64, and all layers; which layer it means does not count.

- **absmax < 1e-4** of any layer for 20 steps in a row.
- **SageMaker** Debugger's [VanishingGradient](https://docs.aws.amazon.com/sagemaker/latest/dg/vanishing-gradient.html):
  mean |g| of any layer under 1e-7.
- **AutoTrainer** ([ICSE 2021](https://github.com/shiningrain/AUTOTRAINER), its defaults): the norm of the first matrix
  under 1e-3 of the last one's and under 1e-4, or over 70 times it; 70 % zeros; a loss over 1,000; anything not finite.
  It looks after some epochs, here each 50 steps; its rules on accuracy have nothing to read here.

caught: raised after the fault; early: raised before it, so it would not be believed.
"""


def lines(rows: list[Row]) -> list[str]:
    """Return the table for a terminal."""
    head = (
        f"{'case':34} {'truth':36} {'said':44} {'layers':6} {'late':>5} {'alarms':>6} {'told':>4} {'words':5}  verdict"
    )
    return [head, *(_line(row) for row in rows)]


def _line(row: Row) -> str:
    verdict = f"{'known' if row.is_known else 'WRONG'}: {row.miss}" if row.miss else "ok"
    late = "-" if row.delay is None else row.delay
    told = len(row.messages)
    words = "false" if row.flaws else "true" if row.said else "-"
    start = f"{row.case.name:34} {_truth(row):36} {_said(row):44} {row.layers:6} {late:>5}"
    return f"{start} {len(row.alarms):>6} {told:>4} {words:5}  {verdict}"


def _truth(row: Row) -> str:
    if not row.case.is_fault:
        return "healthy"
    layers = len(set(row.true) - {""})
    what = f", {layers} layer{'s' if layers > 1 else ''}" if layers else ""
    return f"{row.case.rule} from {row.true_step}{what}"


def _said(row: Row) -> str:
    return ", ".join(f"{each.rule} ({each.severity}) at {each.opened_step}" for each in row.said) or "nothing"


def page(rows: list[Row]) -> str:
    """Return docs/results/detection.md."""
    faults = [row for row in rows if row.case.is_fault]
    controls = [row for row in rows if not row.case.is_fault]
    notes = list(dict.fromkeys(flaw for row in rows for flaw in row.flaws))
    parts = [
        HEAD,
        "\n".join(f"- {each}" for each in totals(rows)),
        "",
        _wrong(rows),
        FAULTS_HEAD,
        _table([*FAULT_COLUMNS], [_fault(row, notes) for row in faults]),
        CONTROLS_HEAD,
        _table([*CONTROL_COLUMNS], [_control(row, notes) for row in controls]),
        *_allowed(controls),
        *_footnotes(notes),
        RIVALS_HEAD,
        _table(["", "gradcanary", *RIVALS], _comparison(rows)),
        "",
        _table(["case", "gradcanary", *RIVALS], list(map(_rivals, rows))),
    ]
    return "\n".join(parts) + "\n"


def _wrong(rows: list[Row]) -> str:
    wrong = [row for row in rows if row.miss]
    if not wrong:
        return "Nothing is missed, and nothing healthy has an alarm.\n"
    reasons = [(row, row.case.why) for row in wrong]
    return "Wrong:\n" + "".join(
        f"- **{row.case.name}**: {row.miss}.{f' {reason}' if reason else ''}\n" for row, reason in reasons
    )


def _allowed(rows: list[Row]) -> list[str]:
    """Return the lines under the table of healthy jobs: of alarms that are true, by their jobs."""
    found = [row for row in rows if row.alarms and not row.false_alarms]
    rules = [", ".join(dict.fromkeys(each.rule for each in row.alarms)) for row in found]
    lines = [f"- **{row.case.name}**: {said} is true. {row.case.why}" for row, said in zip(found, rules, strict=True)]
    return ["", *lines] if lines else []


def _fault(row: Row, notes: list[Flaw]) -> list[str]:
    late = "-" if row.delay is None else str(row.delay)
    about = [row.case.name, row.case.about, _truth(row), _said(row), row.layers, late]
    return [*about, str(len(row.messages)), _words(row, notes)]


def _words(row: Row, notes: list[Flaw]) -> str:
    if row.flaws:
        return f"no: {', '.join(str(notes.index(flaw) + 1) for flaw in row.flaws)}"
    return "yes" if row.said else "-"


def _footnotes(notes: list[Flaw]) -> list[str]:
    """Return the lines under the tables, of false sentences by number; without the pattern that found them."""
    shown = [replace(flaw, what=flaw.what.split(" (")[0]) for flaw in notes]
    lines = [f"{number}. {flaw}" for number, flaw in enumerate(shown, 1)]
    return ["", "False words:", "", *lines] if lines else []


def _control(row: Row, notes: list[Flaw]) -> list[str]:
    every = "" if row.case.every == 1 else f", every {row.case.every}"
    steps = f"{row.steps}{every}"
    counts = [str(len(row.alarms)), str(len(row.messages))]
    return [row.case.name, row.case.about, steps, _said(row), *counts, _words(row, notes)]


def _ours(row: Row) -> str:
    if row.case.is_fault:
        return "missed" if row.miss else "caught"
    return "noisy" if row.messages or row.false_alarms else "quiet"


def _rivals(row: Row) -> list[str]:
    return [row.case.name, _ours(row), *(row.rival(name) for name in RIVALS)]


def _comparison(rows: list[Row]) -> list[list[str]]:
    words = [(_ours(row), *(row.rival(name) for name in RIVALS)) for row in rows]
    faults = [each for row, each in zip(rows, words, strict=True) if row.case.is_fault]
    controls = [each for row, each in zip(rows, words, strict=True) if not row.case.is_fault]
    return [
        ["faults caught", *(f"{column.count('caught')} of {len(faults)}" for column in zip(*faults, strict=True))],
        [
            "healthy and noisy",
            *(f"{column.count('noisy')} of {len(controls)}" for column in zip(*controls, strict=True)),
        ],
    ]


def _table(head: list[str], rows: list[list[str]]) -> str:
    every = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(each) + " |" for each in every)
