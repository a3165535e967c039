"""What patterns of layers say, read as their documentation does."""

import re


def covers(pattern, name):
    """Read a pattern: segments of text, numbers such as 1,7-9, and ``*`` for any text."""
    parts = []
    for segment in pattern.split("."):
        if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", segment):
            numbers = set()
            for run in segment.split(","):
                low, _, high = run.partition("-")
                numbers |= set(range(int(low), int(high or low) + 1))
            parts.append("(?:" + "|".join(map(str, numbers)) + ")")
        else:
            parts.append(".*".join(map(re.escape, segment.split("*"))))
    return re.fullmatch(r"\.".join(parts), name, re.DOTALL) is not None
