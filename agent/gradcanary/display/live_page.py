"""The live page of a run inside a notebook; elsewhere its address.

IPython is used where the script runs in it, and never imported otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape

HEIGHT_PX = 720


def show(url: str, height: int = HEIGHT_PX) -> None:
    """Show a page in the cell of a notebook, with a link below it; in a terminal print its address.

    A terminal of IPython prints the address, too: it takes the plain text of the two.
    """
    if not _is_in_ipython():
        print(url, flush=True)  # noqa: T201 -- what the caller asks for
        return
    from IPython import display

    publish: Callable[..., object] = display.display
    publish({"text/plain": url, "text/html": frame(url, height)}, raw=True)


def frame(url: str, height: int) -> str:
    """Return the HTML of a page in a frame, and its link: a browser that may not frame it shows an empty box."""
    address = escape(url)
    style = f"width:100%;height:{int(height)}px;border:1px solid rgba(134,142,150,.5);border-radius:6px"
    page = f'<iframe src="{address}" title="gradcanary" allow="clipboard-write" style="{style}"></iframe>'
    return f'{page}<div><a href="{address}" target="_blank" rel="noopener">{address}</a></div>'


def _is_in_ipython() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
