"""The demo over HTTP: whether it can be started here, how it goes, and its start."""

from __future__ import annotations

from ipaddress import ip_address

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gradcanary_server import demo
from gradcanary_server.answer_shapes import answered
from gradcanary_server.demo import Demo
from gradcanary_server.errors import RequestError

router = APIRouter(prefix="/api/v1")

NOT_HERE = (
    "The demo starts processes, which only a collector does that nobody else reaches: one on loopback, without tokens, "
    "TLS and a proxy. Start another one on a machine of yours: gradcanary demo"
)


# Response models would check what was just built: the answers are plain JSON values.
@router.get("/demo", response_model=None, responses=answered("demo"))
def show_demo(request: Request) -> JSONResponse:
    """Answer whether the demo can be started here, and how it goes."""
    return JSONResponse(_shown(request))


@router.post("/demo", response_model=None, status_code=202, responses=answered("demo", 202))
def start_demo(request: Request) -> JSONResponse:
    """Start the demo's two trainings on the collector's machine, and answer 202 with how it goes."""
    url = _own_url(request)
    if url is None:
        raise RequestError(403, "demo_not_here", NOT_HERE)
    running: Demo = request.app.state.demo
    running.start(url)
    return JSONResponse(_shown(request), 202)


def _own_url(request: Request) -> str | None:
    """Return where the trainings reach this collector, None where it does not start them."""
    host, port = request.scope.get("server") or ("", None)
    try:
        address = ip_address(host)
    except ValueError:
        return None  # the path of a socket
    if not address.is_loopback or not demo.is_offered(request.app.state.settings):
        return None
    return f"http://{f'[{host}]' if address.version == 6 else host}:{port}"


def _shown(request: Request) -> dict[str, object]:
    running: Demo = request.app.state.demo
    is_offered = _own_url(request) is not None
    return {"offered": is_offered, "state": running.state, "runs": running.runs, "why": running.why}
