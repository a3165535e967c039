"""An address of each page of the dashboard, those to come included: they join by being in ``pages.registry.PAGES``."""

import re
from collections.abc import Mapping
from urllib.parse import quote

from gradcanary_dashboard.pages import registry


def of_each(arguments: Mapping[str, str], queries: Mapping[str, str]) -> dict[str, str]:
    """Return an address of each page by its name, with these arguments in its path and this query behind it."""
    return {page.name: _path(page, arguments) + queries.get(page.name, "") for page in registry.PAGES}


def _path(page: registry.Page, arguments: Mapping[str, str]) -> str:
    """Return what the expression of a page's path matches."""
    always = re.sub(r"\(\?:[^)]*\)\?", "", page.path)
    path = re.sub(r"\(\?P<(\w+)>[^)]*\)", lambda group: quote(arguments[group[1]], safe=""), always)
    assert registry.find(path)[0] is page, f"{path} is no address of the page {page.name}"
    return path
