"""The OpenAPI document of the collector: what FastAPI knows of the routes, and what they read for themselves.

Bodies are read strictly and bounded (:mod:`gradcanary_server.bodies`), of which FastAPI is told nothing; batches go by
a route that it does not even see. Both are named here, by the same shapes that ``GET /schemas`` publishes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from gradcanary_server.answer_shapes import components
from gradcanary_server.answers import Refusal
from gradcanary_server.json_schemas import KINDS
from gradcanary_server.requests import MAX_STEP

PREFIX = "/api/v1"
SESSION = f"{PREFIX}/runs/{{run}}/sessions/{{session}}"
BATCHES = f"{SESSION}/batches/{{seq}}"

SEQ = {
    "name": "seq",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 0, "maximum": MAX_STEP, "title": "Seq"},
}

JSON = "application/json"
REFUSAL = {"$ref": f"#/components/schemas/{Refusal.__name__}"}

Document = dict[str, Any]


def document(app: FastAPI) -> Document:
    """Return the document of an app: its routes, what they take, and the shapes of their answers."""
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    made["paths"][BATCHES] = {"post": _batches(made["paths"][f"{SESSION}/end"]["post"])}
    operations = {_key(method, path): each for path, of in made["paths"].items() for method, each in of.items()}
    references, bodies = _bodies()
    for key, reference in references:
        operations[key]["requestBody"] = {"required": True, "content": {JSON: {"schema": reference}}}
    for operation in operations.values():
        _refuse_in_json(operation["responses"])
    made["components"]["schemas"] |= components() | bodies
    return made


def _refuse_in_json(responses: Document) -> None:
    """Let what says why be JSON, whatever the answer itself is; only people with a browser may be told by a page."""
    for response in responses.values():
        content = response.get("content", {})
        for media_type in [each for each in content if each != JSON and content[each].get("schema") == REFUSAL]:
            content[JSON] = content.pop(media_type)
            if media_type == "text/html":
                content[media_type] = {"schema": {"type": "string"}}


def _batches(sibling: Document) -> Document:
    """Return what batches are told and answered: what the other requests of a session are, and the number of each."""
    described = {"summary": "Batch", "description": "Take a Batch.", "operationId": "batch"}
    answers = {status: answer for status, answer in sibling["responses"].items() if status != "4XX"}
    return {**sibling, **described, "parameters": [*sibling["parameters"], SEQ], "responses": answers}


def _bodies() -> tuple[list[tuple[tuple[str, str], Document]], Document]:
    """Return which operation takes which schema, and the schemas that these refer to, by name."""
    shapes = [(name, "validation", TypeAdapter(shape)) for name, (_, shape) in KINDS.items()]
    place = "#/components/schemas/Sent{model}"
    # What is sent has names of its own: of a shape that is answered, too, more may be promised there.
    references, found = TypeAdapter.json_schemas(shapes, ref_template=place)  # type: ignore[arg-type]  # as in components
    taken = [(key, references[name, "validation"]) for name, key in _requests()]
    return taken, {f"Sent{name}": schema for name, schema in found["$defs"].items()}


def _requests() -> Iterator[tuple[Any, tuple[str, str]]]:
    """Yield the kinds that are the body of a request, and of which."""
    for name, (of, _) in KINDS.items():
        for each in of.split(", "):
            method, _, path = each.partition(" ")
            if path.startswith("/"):
                yield name, _key(method, PREFIX + path)


def _key(method: str, path: str) -> tuple[str, str]:
    """Return by what an operation is known, whatever its parameters are called."""
    return method.lower(), re.sub(r"{\w+}", "{}", path)
