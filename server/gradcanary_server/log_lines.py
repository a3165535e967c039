"""What the collector's process writes to stderr: lines for people, or a JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

KINDS = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """Formats a record as an object of time (RFC 3339, UTC), level, logger, message, and the error with its trace."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, whatever the message holds."""
        said = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said)


def begin(kind: str) -> None:
    """Let every logger of this process write so; of text, only what is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else logging.Formatter(TEXT, "%Y-%m-%d %H:%M:%S"))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("gradcanary_server").setLevel(logging.INFO if kind == "json" else logging.WARNING)
