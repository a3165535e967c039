"""What the pages of docs/knowledge say that their scripts print."""

import re
import subprocess
import sys

import pytest

from gradcanary.knowledge import Page, pages

PAGES = {page.name: page for page in pages()}
MOST_LINES = 24


def block(page: Page, language: str) -> str:
    """Return the one block of a language."""
    (found,) = re.findall(f"^```{language}\n(.*?)^```$", page.text, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("name", PAGES)
def test_a_script_prints_what_its_page_says(name: str) -> None:
    page = PAGES[name]
    script = block(page, "python")
    assert len(script.splitlines()) <= MOST_LINES
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "".join(f"{line.rstrip()}\n" for line in ran.stdout.splitlines()) == block(page, "text")
