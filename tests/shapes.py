"""Answers held to the schemas that are published for them, beyond which nothing may be in them."""

import functools

import jsonschema

from gradcanary_server import json_schemas


@functools.cache
def validator(name):
    schema = json_schemas.schema(name)
    for shape in [schema, *schema.get("$defs", {}).values()]:
        if "properties" in shape:
            shape["additionalProperties"] = False
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())


def hold(name, answer):
    """Return the body of an answer; an AssertionError says where it is not what its schema says."""
    body = answer.json()
    wrong = [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(body)]
    assert not wrong, (name, wrong)
    return body
