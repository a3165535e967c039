"""Matchers: untrusted regular expressions and globs, in time proportional to the text.

Python's own ``re`` backtracks: ``(a+)+$`` on forty letters stops a process for hours. RE2 does not; it has no
references and no look-around in exchange (https://github.com/google/re2/wiki/Syntax).
"""

import re2

MAX_EXPRESSION = 200
"""Characters of an expression."""

MAX_MEMORY = 1 << 20
"""Bytes that an expression may take once compiled: ``((a{999}){999}){999}`` is refused."""


_WILDCARDS = {"*": ".*", "?": "."}


class MatcherError(ValueError):
    """An expression that cannot be matched; the message says why."""


class Matcher:
    """A compiled expression; raises MatcherError for what RE2 does not support."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_EXPRESSION:
            raise MatcherError(f"an expression has at most {MAX_EXPRESSION} characters")
        options = re2.Options()
        options.max_mem = MAX_MEMORY
        options.log_errors = False
        try:
            self._compiled = re2.compile(text, options=options)
        except re2.error as error:
            reason = error.args[0] if error.args else "not understood"
            raise MatcherError(reason.decode() if isinstance(reason, bytes) else str(reason)) from error

    def found_in(self, text: str) -> bool:
        """Return True if it matches anywhere in the text, as ``re.search`` would."""
        return self._compiled.search(text) is not None


class Glob:
    """A name, or one in which ``*`` stands for any text and ``?`` for any character."""

    def __init__(self, text: str) -> None:
        parts = (_WILDCARDS.get(character) or re2.escape(character) for character in text)
        self._compiled = re2.compile("".join(parts))

    def covers(self, text: str) -> bool:
        return self._compiled.fullmatch(text) is not None
