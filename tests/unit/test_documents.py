"""What the documents point at is there, what is made from the code is as the code, and blocks of code parse."""

import json
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import yaml

from support import server_tree
from support.documents import cli_reference, settings_table

ROOT = Path(__file__).parents[2]
READERS = ("*.py", "*.yml", "*.yaml", "*.service", "Makefile", "Dockerfile", "*.toml", "*.js")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split()]


def anchors(document: Path) -> set[str]:
    """Return the anchors that a forge gives the headings of a document."""
    text = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_relative_links_lead_somewhere() -> None:
    documents = tracked("*.md")
    assert len(documents) > 50
    for document in documents:
        text = document.read_text("utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
            link, _, anchor = "".join(target).partition("#")
            if "://" in link:
                continue
            aim = document.parent / link if link else document
            assert aim.exists(), f"{document.relative_to(ROOT)} points at {link}"
            if anchor:
                assert anchor in anchors(aim), f"{document.relative_to(ROOT)} points at {link}#{anchor}"


def test_documents_that_code_names_are_there() -> None:
    for path in tracked(*READERS):
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text("utf-8")):
            assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}"


def test_each_document_is_on_the_map() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)", index.read_text("utf-8"))}
    lists = {"decisions", "knowledge"}  # each has a README.md that lists its pages
    missing = [page for page in tracked("docs/*.md") if page not in linked and page.parent.name not in lists]
    assert missing == [index]


def blocks() -> Iterator[tuple[Path, str, str]]:
    """Yield each block of code: its document, language and lines."""
    for document in tracked("*.md"):
        text = document.read_text("utf-8")
        for indent, language, code in re.findall(r"^( *)```(\w+)\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE):
            yield document, language, textwrap.dedent(code) if indent else code


def test_blocks_of_code_parse() -> None:
    found = list(blocks())
    assert {"python", "sh", "yaml", "json"} <= {language for _, language, _ in found}
    for document, language, code in found:
        where = f"{document.relative_to(ROOT)}: {code[:60]!r}"
        if language == "python":
            compile(code, where, "exec")
        elif language == "json":
            assert json.loads(code), where
        elif language in ("yaml", "yml"):
            assert list(yaml.safe_load_all(code)), where
        elif language in ("sh", "bash"):
            checked = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False)
            assert (checked.returncode, checked.stderr) == (0, ""), where


def test_the_tree_of_the_server_is_true() -> None:
    text = server_tree.DOCUMENT.read_text("utf-8")
    assert server_tree.with_tree(text) == text, "run: python tests/support/server_tree.py --write"


def test_the_table_of_settings_is_that_of_the_code() -> None:
    assert settings_table.named_in_code() <= settings_table.in_table()
    text = settings_table.DOCUMENT.read_text("utf-8")
    assert settings_table.page() == text, "run: python tests/support/documents/settings_table.py --write"


def test_the_reference_of_commands_is_that_of_the_parser() -> None:
    text = cli_reference.DOCUMENT.read_text("utf-8")
    assert cli_reference.page() == text, "run: python tests/support/documents/cli_reference.py --write"
