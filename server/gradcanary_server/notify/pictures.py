"""The pictures of incidents that are attached to messages, drawn when a message is sent.

A picture never keeps a message from its receiver: without one after 3 s, or after any error, it is sent as text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from gradcanary_server.background import run_in_daemon_thread

DRAW_S = 3.0
"""Time for a picture. With that of the attempt itself it is less than the lease of a message."""

logger = logging.getLogger(__name__)


@dataclass
class Pictures:
    """Draws the picture of an incident by its number, in a thread; a failure is logged once."""

    draw: Callable[[int], bytes]
    has_failed: bool = field(default=False, init=False)

    async def draw_in_time(self, incident: int) -> bytes | None:
        """Return a picture, None if it is not there within 3 s or cannot be drawn."""
        try:
            drawing = run_in_daemon_thread(lambda: self.draw(incident), "gradcanary-picture")
            return await asyncio.wait_for(drawing, DRAW_S)
        except asyncio.TimeoutError:
            self._log_once(incident, f"it takes over {DRAW_S:g} s")
        except Exception as error:  # noqa: BLE001 -- the message goes without it
            self._log_once(incident, f"{type(error).__name__}: {error}")
        return None

    def _log_once(self, incident: int, reason: str) -> None:
        if not self.has_failed:
            logger.warning("no picture of incident %d in a message, later ones are not logged: %s", incident, reason)
        self.has_failed = True
