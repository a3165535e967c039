"""What the documents point at is there."""

import re
import subprocess
from pathlib import Path

from support import server_tree

ROOT = Path(__file__).parents[2]


def anchors(document: Path) -> set[str]:
    """Return the anchors that a forge gives the headings of a document."""
    text = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_relative_links_lead_somewhere() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    documents = [ROOT / name for name in listed.split()]
    assert len(documents) > 5
    for document in documents:
        text = document.read_text("utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
            link, _, anchor = "".join(target).partition("#")
            if "://" in link:
                continue
            aim = document.parent / link if link else document
            assert aim.exists(), f"{document.name} points at {link}"
            if anchor:
                assert anchor in anchors(aim), f"{document.name} points at {link}#{anchor}"


def test_the_tree_of_the_server_is_true() -> None:
    text = server_tree.DOCUMENT.read_text("utf-8")
    assert server_tree.with_tree(text) == text, "run: python tests/support/server_tree.py --write"
