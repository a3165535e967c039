"""Copies the documents to where mkdocs builds the site, and looks at what it built: ``site.py copy`` and ``check``.

Forges and mkdocs read lists differently: here they get the indentation and the blank lines that mkdocs needs. A link
to what is no document becomes its words.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
PATTERNS = (
    "*.md",
    "docs/*.png",
    "docs/*.webp",
    "docs/*.svg",
    "docs/*.yml",
    "docs/*.yaml",
    "docs/*.json",
    "docs/*.service",
)

_ITEM = re.compile(r"( *)([-*]|\d+\.) +")
_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|link)[^>]*?(?:src|href|srcset)=\"?(?:https?:)?//[^\">\s]+|url\([\"']?(?:https?:)?//"
)


def copy() -> None:
    """Copy the tracked documents, and what they show, into a folder of their own."""
    listed = subprocess.run(["git", "ls-files", *PATTERNS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = set(listed.split())
    shutil.rmtree(SOURCE, ignore_errors=True)
    for name in names:
        aim = SOURCE / name
        aim.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            aim.write_text(prepare(name, (ROOT / name).read_text("utf-8"), names), "utf-8")
        else:
            shutil.copyfile(ROOT / name, aim)


def prepare(name: str, text: str, names: set[str]) -> str:
    """Return a document for mkdocs; ``names`` are all that are copied."""

    def link(match: re.Match[str]) -> str:
        words, target, _ = match.groups()
        if "://" in target:
            return match[0]
        path = (ROOT / name).parent.joinpath(target).resolve()
        if path.is_dir() and f"{path.relative_to(ROOT)}/README.md" in names:
            return match[0].replace(f"({target}", f"({target.rstrip('/')}/README.md")
        return match[0] if str(path.relative_to(ROOT)) in names else words

    return _LINK.sub(link, indent_lists(text))


def indent_lists(text: str) -> str:
    """Return Markdown whose lists are indented by four and begin after a blank line."""
    lines: list[str] = []
    offsets: list[int] = []  # where the content of each open list item begins
    fence = ""
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() and not fence:
            while offsets and indent < offsets[-1]:
                offsets.pop()
        shift = sum(4 for _ in offsets) - (offsets[-1] if offsets else 0)
        marker = re.match(r" *(`{3,})", line)
        if marker:
            fence = "" if fence else marker[1]
        item = None if fence or marker else _ITEM.match(line)
        if item and indent - (offsets[-1] if offsets else 0) < 4:
            if (
                lines
                and lines[-1].strip()
                and not offsets
                and not _ITEM.match(lines[-1])
                and not lines[-1].startswith(" ")
            ):
                lines.append("")
            lines.append(" " * (4 * len(offsets)) + f"{item[2]} " + line[item.end() :])
            offsets.append(item.end())
        else:
            lines.append((" " * shift + line) if line.strip() else line)
    return "\n".join(lines) + "\n"


def foreign_assets() -> list[str]:
    """Return what pages and style sheets of the built site would load from another host."""
    pages = [path for path in SITE.rglob("*") if path.suffix in (".html", ".css")]
    return [
        f"{path.relative_to(SITE)}: {found[0][:120]}"
        for path in pages
        for found in _LOADED.finditer(path.read_text("utf-8"))
        if 'rel="canonical"' not in found[0]
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["copy"]:
        copy()
    elif sys.argv[1:] == ["check"]:
        assets = foreign_assets()
        sys.exit("\n".join(["The site asks other hosts:", *assets]) if assets else 0)
    else:
        sys.exit("site.py copy | check")
