"""What surrounds every page: the document, the header, the banner for a collector that does not answer."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from hashlib import sha256

from dash import Dash, dcc, html

from gradcanary_dashboard.components import elements, incident_dialog
from gradcanary_dashboard.web import assets

# The theme and hidden columns are set before the first paint, or a dark page would flash white. Without a choice the
# style sheet follows the system. Pages with figures do not wait until there is one (``assets/js/figures.js``).
INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
{%metas%}
<meta name="viewport" content="width=device-width, initial-scale=1, interactive-widget=resizes-content">
<meta name="color-scheme" content="light dark">
<title>{%title%}</title>
<link rel="icon" type="image/svg+xml" href="/assets/icon.svg">
<script>
try {
  if (window.top !== window) document.documentElement.dataset.framed = "";
  const theme = localStorage.getItem("gradcanary-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  document.documentElement.dataset.hides = localStorage.getItem("gradcanary-columns") || "";
} catch (error) { /* forbidden */ }
</script>
<script>
FIRST</script>
<script>
(function () {
  var plotly = "/assets/PLOTLY";
  document.documentElement.dataset.plotly = plotly;
  var hasFigures = /^\\/(runs\\/|compare|incidents\\/)/.test(location.pathname);
  var early = document.createElement(hasFigures ? "script" : "link");
  if (hasFigures) Object.assign(early, { id: "plotly", src: plotly, onerror: function () { early.remove(); } });
  else Object.assign(early, { rel: "prefetch", href: plotly });
  document.head.appendChild(early);
})();
</script>
{%css%}
<link rel="stylesheet" href="SHEETS">
</head>
<body>
{%app_entry%}
<footer>{%config%}<script src="SCRIPTS"></script>{%scripts%}{%renderer%}</footer>
</body>
</html>"""
INDEX = (
    INDEX.replace("SHEETS", assets.SHEETS.path)
    .replace("SCRIPTS", assets.SCRIPTS.path)
    .replace("PLOTLY", assets.PLOTLY)
    .replace("FIRST", assets.FIRST_SCRIPT)
)

WAYS = (("Runs", "/"), ("Incidents", "/incidents"), ("Compare", "/compare"), ("Settings", "/settings"))
"""What the header leads to."""

KEYS = (
    ("/", "To the filter"),
    ("Esc", "Empty the filter; once more, out of it"),
    ("\u2190 \u2192", "On a figure: the crosshair from point to point, read out; with Shift ten"),
    ("\u2191 \u2193", "On the heatmap: the parameter above, below"),
    ("Space Enter", "On the heatmap: the parameter's trend, its page"),
    ("[ ]", "On an incident: the one before, the one after"),
    ("?", "This list"),
)
"""The keys of the pages, and what each does: ``assets/js/keys.js``, ``crosshair.js``, ``heatmap.js``."""

_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def policy(app: Dash, framed_by: Sequence[str] = ()) -> str:
    """Return what the document may load, as a Content-Security-Policy: scripts of ours and the inline ones by hash.

    ``framed_by`` are the origins of pages that may show it in a frame, where it changes nothing.
    """
    # Plotly writes the style of each of its elements as an attribute, and makes a picture of a figure by way of a blob.
    own = [base64.b64encode(sha256(each.encode()).digest()).decode() for each in _SCRIPT.findall(INDEX)]
    scripts = " ".join(["'self'", *app.csp_hashes(), *(f"'sha256-{each}'" for each in own)])
    frames = " ".join(framed_by) or "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; "
        f"frame-ancestors {frames}"
    )


def layout(collector_url: str, *, signs_in: bool = False) -> html.Div:
    """Return the frame of all pages; with the way out where people sign in."""
    gone = "The dashboard does not answer. This page goes on by itself when it is back."
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            html.A("Skip to the content", href="#main", className="skip"),
            _header(signs_in=signs_in),
            html.Div(id="outage", role="alert"),
            html.Div([elements.icon("warning"), gone], id="offline", role="alert", hidden=True),
            html.Main(id="main", tabIndex=-1),
            incident_dialog.dialog(),
            _key_help(),
            html.Div(id="announced", className="unseen", role="status"),
            dcc.Store(id="title"),
            dcc.Store(id="collector", data=collector_url),
        ],
        id="shell",
    )


def _key_help() -> html.Dialog:
    listed = [
        part for keys, words in KEYS for part in (html.Dt([html.Kbd(key) for key in keys.split()]), html.Dd(words))
    ]
    close = html.Form(html.Button("Close", type="submit", className="do"), method="dialog")
    inside = [html.H2("Keyboard", id="key-help-title"), html.Dl(listed), close]
    return html.Dialog(inside, id="key-help", **elements.attributes(aria_labelledby="key-help-title"))


def _header(*, signs_in: bool) -> html.Header:
    link = html.Span([html.Span(className="dot"), html.Span("connected", className="word")], id="link")
    words = elements.attributes(aria_label="Switch between light and dark")
    theme = html.Button(elements.icon("theme"), id="theme", type="button", **words)
    logo = html.Img(src="/assets/icon.svg", alt="", width=24, height=24)
    brand = dcc.Link([logo, html.Span("gradcanary", className="word")], href="/", className="brand")
    ways = html.Nav(
        [dcc.Link(words, href=href) for words, href in WAYS], id="ways", **elements.attributes(aria_label="Pages")
    )
    out = html.Form(html.Button("Sign out", type="submit"), action="/sign-out", method="post", className="sign-out")
    pressed = elements.attributes(aria_label="Keyboard shortcuts", aria_haspopup="dialog", aria_keyshortcuts="?")
    keys = html.Button("?", id="keys", type="button", title="Keyboard shortcuts", **pressed)
    tools = [link, keys, theme, *([out] if signs_in else [])]
    return html.Header([brand, ways, html.Div(tools, className="tools")], className="top")
