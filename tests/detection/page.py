"""The table of the suite, for a terminal and as docs/results/detection.md."""

from dataclasses import replace
from pathlib import Path

from detection.rivals import RIVALS
from detection.verdicts import Row, totals
from words.check import Flaw

PAGE = Path(__file__).parents[2] / "docs" / "results" / "detection.md"

HEAD = """\
# What is detected, and what stays quiet

These are small real trainings with known truth. Each runs under `gradcanary.watch()` with default rules. One collector
with a webhook receiver serves all.
"""

MEASURED = """\
## How it was measured

- The truth is known from the code of each job. It is read from the job's `.grad` and weights in float64, without
  gradcanary.
- A step takes 0.1 s at least. The collector gathers a message for 10 s, and the false alarm of a short job would end
  before that. If the agent chooses the interval by the time of a step, the job waits for 12 s after each thousand steps
  instead.
- `make detection ARGS=--write` publishes this page. The jobs are in [tests/detection](../../tests/detection/).
"""

FAULTS_HEAD = """\
## Faults

- **late**: steps from the fault to the incident. It is negative if the incident is earlier than the step at which the
  float64 values count as fallen.
- **messages**: rules that send none are on the page only.
- **words true?** is *yes* if three things hold. No sentence of headline, cause, evidence, fix or message is false. The
  true cause is named if the data show it. One fix repairs the job ([the truth of each
  fault](../../tests/detection/wording.py)). Numbers are those of the false sentences under the tables.
"""

FAULT_COLUMNS = ("case", "what happens", "truth", "reported", "layers", "late", "messages", "words true?")

CONTROL_COLUMNS = ("case", "what it is", "steps", "reported", "alarms", "messages", "words true?")

CONTROLS_HEAD = """
#
## Healthy jobs

A healthy job may send no message, and may have no incident at warning or above (alarms). The table has other incidents,
too.
"""

RIVALS_HEAD = """
#
## Other rules, on the same gradients

Each rule reads every step and all layers in float64. It need not name the right layer.

- **absmax < 1e-4** of any layer for 20 steps in a row.
- **SageMaker** Debugger's [VanishingGradient](https://docs.aws.amazon.com/sagemaker/latest/dg/vanishing-gradient.html):
  mean |g| of any layer under 1e-7.
- **AutoTrainer** ([ICSE 2021](https://github.com/shiningrain/AUTOTRAINER), its defaults). The norm of the first matrix
  is under 1e-3 of the last one's and under 1e-4, or over 70 times it. Or 70 % are zeros, the loss is over 1,000, or
  anything is not finite. It looks after some epochs, here each 50 steps. Its rules on accuracy have no data here.

*caught*: raised after the fault. *early*: raised before it, so it would not be believed.
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
        MEASURED,
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
