"""The examples of the how-to pages and of the reference, which tests run as they stand."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def example(heading: str, number: int = 0) -> str:
    """Return an example in Python below a heading, the first one if no number is given; raises ValueError unless one
    page has the heading."""
    pages = [path.read_text("utf-8") for folder in ("how-to", "reference") for path in (DOCS / folder).glob("*.md")]
    (below,) = (part[1] for text in pages if len(part := re.split(f"(?m)^#+ {re.escape(heading)}$", text)) > 1)
    return re.findall(r"```python\n(.*?)```", below, re.DOTALL)[number]
