"""What the documents point at is there, what is made from the code is as the code, and blocks of code parse."""

import json
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import yaml

from gradcanary import wire
from gradcanary_server.rules.config import NAMES
from support.documents import generated, settings_table

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
    assert missing == [index], "link each of them in docs/index.md"


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


def test_each_rule_and_each_stat_is_in_the_documents_that_list_them() -> None:
    rules = ("README.md", "docs/explanation/how-rules-decide.md")
    stats = tuple(f"docs/reference/{name}.md" for name in ("measurements", "glossary", "python-client"))
    for pages, names in ((rules, NAMES), (stats, wire.STATS)):
        for page in pages:
            missing = {*names} - {*re.findall(r"\w+", (ROOT / page).read_text("utf-8"))}
            assert not missing, f"{page} does not name them"


def test_each_setting_of_the_environment_is_in_its_table() -> None:
    assert settings_table.named_in_code() <= settings_table.in_table()


def test_what_is_made_from_the_code_is_as_the_code() -> None:
    made = dict(generated.documents())
    old = [path.relative_to(ROOT).as_posix() for path, text in made.items() if path.read_text("utf-8") != text]
    assert len(made) > 20
    assert not old, "older than the code; run: make generated"
