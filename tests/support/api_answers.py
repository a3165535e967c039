"""Answers of the read API in miniature, for tests of what is drawn from them."""

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from plotly.utils import PlotlyJSONEncoder

from gradcanary_server.api.layer_table import SHOWN


def column(values: ArrayLike, dtype: str | None = None) -> dict[str, Any]:
    array = np.asarray(values, dtype)
    little = array.astype(array.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def axis(steps: ArrayLike, bucket_steps: int = 1) -> dict[str, Any]:
    """The part of an answer that its axis is made of."""
    return {"bucket_steps": bucket_steps, "steps": column(steps, "float64")}


def heatmap_answer(rows: int, columns: int, block: str = "blocks.0") -> dict[str, Any]:
    cells = np.linspace(-7000, -1000, max(1, rows * columns))[: rows * columns].reshape(rows, columns)
    return {
        "run": "run",
        "stat": "absmax",
        "value": "min",
        "phases": ["accumulated"],
        "revision": 1,
        "bucket_steps": 32,
        "steps": column(np.arange(columns) * 32.0, "float64"),
        "times": column(np.arange(columns) * 1.0, "float64"),
        "rows": [{"layers": [row], "name": f"{block}.{row}", "block": block} for row in range(rows)],
        "cells": column(cells, "int16"),
        "threshold": {"enter": 1e-4},
        "gaps": [],
        "marks": [],
    }


def curve(low: ArrayLike, mean: ArrayLike, high: ArrayLike, nonfinite: ArrayLike | None = None) -> dict[str, Any]:
    """Series of one layer; NaN in ``mean`` is a bucket without data."""
    known = np.isfinite(np.asarray(mean, float))
    return {
        "layer": 7,
        "name": "blocks.0.lora_A",
        "tags": {},
        "min": column(low, "float32"),
        "mean": column(mean, "float32"),
        "max": column(high, "float32"),
        "count": column(known.astype(np.int32)),
        "nonfinite": column(np.zeros(len(known)) if nonfinite is None else nonfinite, "int32"),
    }


def series_answer(series: dict[str, Any], steps: ArrayLike, bucket_steps: int = 1) -> dict[str, Any]:
    return {
        "run": "run",
        "stat": "absmax",
        "phases": ["accumulated"],
        "revision": 1,
        "bucket_steps": bucket_steps,
        "steps": column(steps, "float64"),
        "times": column(steps, "float64"),
        "series": [series],
        "metrics": [{**series, "name": "loss"}],
        "threshold": {"enter": 1e-4, "exit": 3e-4},
        "marks": [],
    }


def layer(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "layer": number,
        "name": f"blocks.{number}.lora_A",
        "block": f"blocks.{number}",
        "shape": [8, 64],
        "param_dtype": "bfloat16",
        "accumulator": {"declared": None, "stored": "bfloat16", "effective": None},
        "micro_steps": 8,
        "step": 99,
        "state": "measured",
        **dict.fromkeys(SHOWN),
        "absmax": 1e-3,
        "norm": 3e-3,
        "nonfinite": 0,
        "rules": {},
        "below_threshold": False,
        "baseline": None,
        **changes,
    }


def run(**changes: Any) -> dict[str, Any]:
    return {
        "run": "run",
        "state": "live",
        "created": "2026-11-20T08:00:00Z",
        "host": "gpu-7",
        "step": 99,
        "last_step_at": "2026-11-20T09:59:58Z",
        "last_seen": "2026-11-20T10:00:00Z",
        "loss": {"name": "loss", "tags": {}, "last": 0.125},
        "layers": 2,
        "firing": {},
        "below_threshold": 0,
        "worst": None,
        "worst_incident": None,
        "unacked": [],
        "accumulators": {"bfloat16": 2},
        "open_incidents": [],
        "headline": "",
        "severity_at_end": None,
        "note": "",
        "tags": [],
        "archived": False,
        "aliases": [],
        "sparkline": None,
        "threshold": {"enter": 1e-4},
        "revision": 1,
        "launches": [],
        "sessions": [],
        "gaps": [],
        "facts": [],
        "metrics": [],
        **changes,
    }


def run_list(*runs: dict[str, Any], following: str | None = None) -> dict[str, Any]:
    return {"runs": list(runs), "next": following}


def incident(number: int = 31, **changes: Any) -> dict[str, Any]:
    return {
        "id": number,
        "run": "run",
        "run_state": "live",
        "rule": "collapse",
        "severity": "critical",
        "state": "open",
        "opened_step": 50,
        "opened": "2026-11-20T10:00:00Z",
        "since_step": 31,
        "resolved_step": None,
        "resolved": None,
        "resolution": None,
        "reopened": 0,
        "reopened_at": None,
        "acked": None,
        "silenced": None,
        "last_deliveries": [],
        "counts": {"firing": 1, "ever": 1, "layers": 2},
        "caused_by": None,
        "also": [],
        "summary": "1 of 2 parameters fell from 0.0031 to 6.1e-7 at step 31.",
        "url": "",
        "runbook_url": "http://127.0.0.1:8787/runbooks/collapse",
        **changes,
    }


def session(number: int, first: int | None, last: int | None, **changes: Any) -> dict[str, Any]:
    return {
        "session": f"session-{number}",
        "launch": f"launch-{number}",
        "rank": 0,
        "world_size": 1,
        "first_step": first,
        "last_step": last,
        "step_source": "given",
        "state": "live",
        "every": 1,
        "phase": "accumulated",
        "agent_share": 0.01,
        "dropped_steps": 0,
        **changes,
    }


def gap(number: int, first: int, last: int, reason: str = "missing") -> dict[str, Any]:
    return {"session": f"session-{number}", "from_step": first, "to_step": last, "reason": reason}


def text_of(component: object) -> str:
    return json.dumps(component, cls=PlotlyJSONEncoder)


def member(number: int, **changes: Any) -> dict[str, Any]:
    plain = {"layer": number, "name": f"blocks.{number}.lora_A", "block": f"blocks.{number}"}
    plain |= {"since_step": 340, "until_step": None, "severity": "critical"}
    values = {"value": 6.1e-7, "baseline": 3.1e-3, "siblings": None, "evidence": "fall", "rank": None}
    return {**plain, **values, **changes}


def delivery(minute: int, **changes: Any) -> dict[str, Any]:
    enqueued = f"2026-11-20T10:{minute:02}:00.000Z"
    tried = {"at": enqueued, "status": 200, "ms": 12, "error": None}
    told = {"endpoint": 1, "name": "on call", "version": 1, "kind": "opened", "state": "delivered"}
    return {**told, "enqueued": enqueued, "delivered": enqueued, "next_attempt": None, "attempts": [tried], **changes}


def full(**changes: Any) -> dict[str, Any]:
    cause = {"code": "c", "text": "Its partner went to zero.", "evidence": ["lr changed"], "incidents": [30]}
    fix = {"framework": "peft", "text": "Check the schedule.", "code": "print(1)"}
    parts = {
        "what": "1 of 2 parameters fell from 0.0031 to 6.1e-7 at step 31.",
        "since": "step 340 (opened 2026-11-20 10:00 UTC)",
        "do_first": "Check the schedule.",
        "why": "Lr changed. Its partner went to zero.",
        "evidence": ["Lr changed.", "Group 1 did not."],
        "more": "Partners share a factor.\nprint(1)",
    }
    more = {"layers": [member(0), member(1)], "deliveries": [delivery(1)], "likely_cause": cause, "fix": fix}
    more |= {"previous": None, "next": 32, "names": {"prefix": "", "suffix": ""}}
    return incident(**{**more, "explanation": parts, "opened_step": 359, "since_step": 340, **changes})
