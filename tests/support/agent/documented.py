"""The examples of docs/agent.md, which tests run as they stand."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "agent.md"


def example(heading: str, number: int = 0) -> str:
    """Return an example in Python below a heading, the first one if no number is given."""
    below = DOCUMENT.read_text("utf-8").partition(f"\n{heading}\n")[2]
    return re.findall(r"```python\n(.*?)```", below, re.DOTALL)[number]
