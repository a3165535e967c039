"""The tools as a server of the MCP SDK: schemas from their signatures, answers as compact JSON, errors as text."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson
from anyio import CapacityLimiter, to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver.tools import Tool
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ToolShape
from pydantic import ValidationError
from starlette.requests import Request

from gradcanary import __version__
from gradcanary_server.mcp import tools
from gradcanary_server.mcp.own_api import ApiError, OwnApi

MAX_CALLS = 4
"""Tools that work at once, each in a thread of its own: those of the app are for the requests that a tool sends."""

HINTS = {
    "forbidden": "Tell the user: 'gradcanary token create --scope admin' makes one, where the collector runs.",
    "by": "Ask the user for a name, and give it as `by`.",
}
"""What to do after a refusal, by its code or its field."""

logger = logging.getLogger(__name__)


class Tools:
    """The tools, and the threads they work in."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(MAX_CALLS)
        self._tools = {each.name: each for each in map(_tool, tools.TOOLS)}
        self._listed = ListToolsResult(tools=[_shape(each) for each in self._tools.values()])

    async def list(self, _context: ServerRequestContext, _params: PaginatedRequestParams | None) -> ListToolsResult:
        """Return all tools."""
        return self._listed

    async def call(self, context: ServerRequestContext[Any, Request], params: CallToolRequestParams) -> CallToolResult:
        """Return the answer of a tool; an error is one for the assistant, with what to do."""
        try:
            tool = self._tools.get(params.name)
            if tool is None or context.request is None:
                raise tools.ToolError(f"There is no such tool. There are: {', '.join(self._tools)}.")  # noqa: TRY301 -- one answer for all errors
            arguments = _checked(tool, params.arguments or {})
            work = partial(tool.fn, OwnApi(context.request), **arguments)
            answer = await to_thread.run_sync(work, limiter=self._limiter)
        except tools.ToolError as error:
            return _refusal(str(error))
        except ApiError as error:
            hint = HINTS.get(error.code) or HINTS.get(error.field)
            return _refusal(f"{error} {hint}" if hint else str(error))
        except Exception:
            logger.exception("the tool %.50r failed", params.name)
            return _refusal("The collector failed at this; its log says where.")
        text = TextContent(type="text", text=orjson.dumps(answer).decode())
        return CallToolResult(content=[text], structured_content=answer)


def create_server() -> Server[Any]:
    """Return the server; it keeps nothing of a request."""
    served = Tools()
    return Server(
        "gradcanary",
        version=__version__,
        instructions=tools.INSTRUCTIONS,
        on_list_tools=served.list,
        on_call_tool=served.call,
    )


def _tool(spec: tools.ToolSpec) -> Tool:
    effect = ToolAnnotations(
        read_only_hint=not spec.is_change,
        destructive_hint=False,
        idempotent_hint=not spec.is_change,
        open_world_hint=False,
    )
    description = " ".join((spec.function.__doc__ or "").split())
    return Tool.from_function(
        spec.function, title=spec.title, description=description, context_kwarg="api", annotations=effect
    )


def _shape(tool: Tool) -> ToolShape:
    return ToolShape(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=_untitled(tool.parameters),
        output_schema=_untitled(tool.output_schema),
        annotations=tool.annotations,
    )


def _untitled(schema: Any) -> Any:  # noqa: ANN401 -- JSON
    """Return a schema without the titles that pydantic makes of names: an assistant reads all of it."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(each) for key, each in schema.items() if key != "title" or not isinstance(each, str)}


def _checked(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call; raises ToolError that names the wrong one."""
    known = tool.parameters["properties"]
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise tools.ToolError(f"{tool.name} has no argument {unknown[0][:50]!r}. It has: {', '.join(known)}.")
    try:
        return tool.fn_metadata.validate_arguments(dict(arguments))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise tools.ToolError(f"{where}: {first['msg']}. {tool.name} describes its arguments.") from error


def _refusal(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
