"""Reports long sentences and odd words of documents: ``python tests/support/documents/prose.py [FILE ...]``.

It fails nothing. Without files it takes those that people read first: README, tutorials, how-to, runbooks.
"""

import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("tutorials", "how-to", "runbooks")
LONG = 28
"""Words of a sentence that is printed."""

ODD = re.compile(
    r"\b(anew|for ever|shall|whoever|somebody|nobody is|of which|told of|what is still|as a rule|in the place of|"
    r"beside it|so many|hears?|is no [a-z]+|on the mean|by then|likewise)\b",
    re.IGNORECASE,
)
BEGINS = re.compile(r"^(Who|Whom|What|Of|Where) (?!.*\?$)")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a document, without code, tables, headings and targets of links."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(#|\||    |<).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", text):
        yield from (each for each in re.split(r"(?<=[.!?:])\s+(?=[A-Z`])", " ".join(block.split())) if " " in each)


def report(path: Path) -> str:
    """Return the lines about one document."""
    found = list(sentences(path.read_text("utf-8")))
    lengths = sorted(len(each.split()) for each in found)
    if not lengths:
        return ""
    mean, tenth = statistics.mean(lengths), lengths[len(lengths) * 9 // 10]
    lines = [f"{path.relative_to(ROOT)}: {len(found)} sentences, mean {mean:.1f} words, nine of ten under {tenth + 1}"]
    for each in found:
        odd = [match[0] for match in ODD.finditer(each)] + [match[0].strip() for match in BEGINS.finditer(each)]
        count = len(each.split())
        if odd or count > LONG:
            lines.append(f"  {count} words{', ' + ', '.join(odd) if odd else ''}: {each[:160]}")
    return "\n".join(lines)


if __name__ == "__main__":
    chosen = [Path(name).resolve() for name in sys.argv[1:]]
    usual = [ROOT / "README.md", *(page for name in FOLDERS for page in sorted((ROOT / "docs" / name).glob("*.md")))]
    print("\n".join(filter(None, map(report, chosen or usual))))
