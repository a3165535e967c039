"""Answers held to the OpenAPI document that the collector serves, beyond which nothing may be in them."""

import copy
import functools
import json
import pathlib
import re
import tempfile

import jsonschema

from gradcanary_server.app import create_app
from gradcanary_server.settings import Settings


@functools.cache
def document():
    """Return the document; tests/component/server/api/test_http_fuzz.py compares it with the one that is served."""
    with tempfile.TemporaryDirectory() as folder:
        return create_app(Settings.from_env({}, data=pathlib.Path(folder))).openapi()


@functools.cache
def strict():
    """Return the document without room for a key that it does not name."""
    found = copy.deepcopy(document())
    for shape in found["components"]["schemas"].values():
        if "properties" in shape:
            shape["additionalProperties"] = False
    return found


def validator(schema):
    """Return what validates a part of the document."""
    return _validator(json.dumps(schema))


@functools.cache
def _validator(schema):
    whole = {**json.loads(schema), "components": strict()["components"]}
    return jsonschema.Draft202012Validator(whole, format_checker=jsonschema.FormatChecker())


def sent(operation):
    """Return what validates the body of a request."""
    return validator(operation["requestBody"]["content"]["application/json"]["schema"])


def notification():
    """Return what validates a message to an endpoint."""
    return sent(document()["webhooks"]["notification"]["post"])


def hold(answer):
    """Return the body of an answer; an AssertionError says where it is not what the document says of its route."""
    return _held(answer, answer.json(), "application/json", "schema")


def hold_lines(answer):
    """Yield the lines of an answer as they come; an AssertionError says where one is not what the document says."""
    for line in answer.iter_lines():
        yield _held(answer, json.loads(line), "application/x-ndjson", "itemSchema")


def _held(answer, body, media_type, keyword):
    method, path = answer.request.method, answer.request.url.path
    # A path without a parameter comes first: /silences/preview is not the silence of that number.
    paths = sorted(document()["paths"], key=lambda each: each.count("{"))
    route = next(each for each in paths if re.fullmatch(re.sub(r"{\w+}", "[^/]+", each), path))
    described = document()["paths"][route][method.lower()]["responses"][str(answer.status_code)]
    errors = validator(described["content"][media_type][keyword]).iter_errors(body)
    wrong = [f"{error.json_path}: {error.message[:200]}" for error in errors]
    assert not wrong, (method, path, wrong)
    return body
