"""Parts of the documents that are made from the code; ``make generated`` writes all of them."""


def between(text: str, begin: str, end: str, made: str) -> str:
    """Return a document with ``made`` between its two marks; raises ValueError without them."""
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
        raise ValueError(f"{before.partition(chr(10))[0]!r} needs the lines {begin.strip()} and {end.strip()}")
    return f"{before}{begin}{made}{end}{after}"
