"""Which answer has which shape: of ``GET /schemas`` and of the OpenAPI document.

Routes name their shape by :func:`answered` and return plain JSON: to validate what was just built would cost every
reader what it costs the tests once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from gradcanary import wire
from gradcanary_server import endpoint_shapes, incident_shapes, run_shapes, storage_shapes, token_shapes, trial_shapes
from gradcanary_server.rules import Rules

_PLACE = "#/components/schemas/{model}"


@dataclass(frozen=True)
class RulesInForce(Rules):
    """The rules that a collector applies, their number in its store, and the file that they are from."""

    rules_version: int | None = None
    file: str | None = None


class SchemaInBrief(TypedDict):
    """A schema, and what it is of."""

    name: str
    of: str
    url: str


class SchemaList(TypedDict):
    """Which schemas there are."""

    schemas: list[SchemaInBrief]


class Health(TypedDict):
    """That the process takes requests."""

    status: str


class Readiness(TypedDict):
    """Whether everything works, and what does not."""

    status: str
    checks: dict[str, str]


ANSWERS: dict[str, tuple[str, Any]] = {
    "runs": ("the answer to GET /runs", run_shapes.RunList),
    "run": ("the answer to GET and PATCH /runs/{run}", run_shapes.RunInFull),
    "layers": ("the answer to GET /runs/{run}/layers", run_shapes.LayerTable),
    "series": ("the answer to GET /runs/{run}/series", run_shapes.StatSeries),
    "heatmap": ("the answer to GET /runs/{run}/heatmap", run_shapes.HeatmapShape),
    "metrics": ("the answer to GET /runs/{run}/metrics", run_shapes.MetricsShape),
    "demo": ("the answer to GET and POST /demo", run_shapes.DemoShape),
    "rules": ("the answer to GET /rules", RulesInForce),
    "backtest": (
        "the answer to GET /rules/backtest, POST /rules/trials, GET /rules/trials/{id}",
        trial_shapes.BacktestShape,
    ),
    "storage": ("the answer to GET /storage", storage_shapes.StorageShape),
    "incidents": ("the answer to GET /incidents", incident_shapes.IncidentList),
    "incident": ("the answer to GET /incidents/{id} and POST /incidents/{id}/ack", incident_shapes.IncidentInFull),
    "silences": ("the answer to GET /silences", incident_shapes.SilenceList),
    "silence-preview": ("the answer to GET /silences/preview", incident_shapes.SilencePreview),
    "silenced": ("the answer to POST /silences and PATCH /silences/{id}", incident_shapes.SilenceShape),
    "endpoints": ("the answer to GET /endpoints", endpoint_shapes.EndpointList),
    "endpoint": ("the answer to GET and PATCH /endpoints/{id}", endpoint_shapes.EndpointShape),
    "made-endpoint": ("the answer to POST /endpoints", endpoint_shapes.NewEndpointShape),
    "rotated-endpoint": ("the answer to POST /endpoints/{id}/rotate", endpoint_shapes.RotatedShape),
    "tested-endpoint": ("the answer to POST /endpoints/{id}/test", endpoint_shapes.OutcomeShape),
    "deliveries": ("the answer to GET /endpoints/{id}/deliveries", endpoint_shapes.DeliveryList),
    "redelivered": ("the answer to POST /deliveries/{id}/redeliver", endpoint_shapes.RedeliveredShape),
    "tokens": ("the answer to GET /tokens", token_shapes.TokenList),
    "made-token": ("the answer to POST /tokens", token_shapes.NewTokenShape),
    "audit": ("the answer to GET /audit", token_shapes.AuditPage),
    "schemas": ("the answer to GET /schemas", SchemaList),
    "health": ("the answer to GET /healthz", Health),
    "readiness": ("the answer to GET /readyz, also where it is 503", Readiness),
    "reply": ("the answer to what agents send", wire.Reply),
}
"""What each is the schema of, and its type."""

Responses = dict[int | str, dict[str, Any]]


def answered(name: str, *statuses: int) -> Responses:
    """Return what a route says of its answer: of these statuses, of 200 if none is given."""
    of, shape = ANSWERS[name]
    place = {"$ref": _PLACE.format(model=shape.__name__)}
    return {
        status: {"description": f"{of[0].upper()}{of[1:]}.", "content": {"application/json": {"schema": place}}}
        for status in statuses or (200,)
    }


def components() -> dict[str, Any]:
    """Return the schemas that answers refer to, by name."""
    shapes = [(name, "serialization", TypeAdapter(shape)) for name, (_, shape) in ANSWERS.items()]
    _, found = TypeAdapter.json_schemas(shapes, ref_template=_PLACE)  # type: ignore[arg-type]  # a literal in a tuple
    return dict(found["$defs"])
