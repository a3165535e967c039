"""Files of the pages: few, packed, and packed once."""

import asyncio
import gzip
import re

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from gradcanary_dashboard.components import elements, figure_controls
from gradcanary_dashboard.web import assets

PACKS = {"accept-encoding": "gzip"}

PRIVATE = {
    "plotly_private": r"_fullLayout|_fullData|calcdata|\b_size\b|\b[lcrd]2p\b|\bp2[lcrd]\b",
    "dash_private": r"_dashprivate|main\.children",
}
"""Names that Plotly and Dash do not document, and the one script that may use them."""


def test_a_file_that_browsers_keep_is_made_once() -> None:
    asked: list[str] = []

    async def answer(request: Request) -> Response:
        await asyncio.sleep(0)
        asked.append(request.url.path)
        kept = {"cache-control": "public, max-age=31536000"} if "kept" in request.url.path else {}
        status = 404 if "missing" in request.url.path else 200
        return Response(b"x" * 5_000, status, media_type="text/javascript", headers=kept)

    served = Starlette(routes=[Route("/{name}", answer)])
    client = TestClient(assets.CompressedAssets(served))
    for path in ("/kept.js", "/other.js", "/missing-kept.js"):
        first, second = (client.get(path, headers=PACKS) for _ in range(2))
        assert first.content == second.content == b"x" * 5_000
        assert dict(first.headers) == dict(second.headers)
        assert ("content-encoding" in first.headers) == (path == "/kept.js")
    assert asked == ["/kept.js", *["/other.js"] * 2, *["/missing-kept.js"] * 2]
    plain = client.get("/kept.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["cache-control"] == assets.KEPT


def test_all_scripts_and_sheets_are_two_files() -> None:
    for bundle, last in ((assets.SCRIPTS, "js/sharing.js"), (assets.SHEETS, "css/access.css")):
        written = (assets.ASSETS / last).read_bytes()
        assert bundle.body.endswith(written)
        assert len(gzip.compress(bundle.body)) < 40_000


def test_the_written_order_names_every_script_and_sheet_once() -> None:
    for names, ending in ((assets.SCRIPTS_IN_ORDER, "js"), (assets.SHEETS_IN_ORDER, "css")):
        assert sorted(names) == sorted(path.stem for path in (assets.ASSETS / ending).iterdir())


def test_what_plotly_and_dash_do_not_document_is_in_one_script_each() -> None:
    for script, names in PRIVATE.items():
        using = {path.stem for path in (assets.ASSETS / "js").iterdir() if re.search(names, path.read_text("utf-8"))}
        assert using == {script}


def test_each_icon_is_a_shape_of_the_style_sheet() -> None:
    rules = assets.SHEETS.body.decode()
    named = {*elements.ICONS.values(), *elements.RUN_STATES.values(), *(icon for _, icon, _ in figure_controls.MOVES)}
    missing = [
        name for name in named | {"copy", "theme", "hush", "bell"} if f".icon-{name} {{ --shape: url('" not in rules
    ]
    assert missing == []
