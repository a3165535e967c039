"""Why an attach or a detach did not come about."""

from __future__ import annotations


class AttachError(Exception):
    """It cannot be done, or was not; the message says why, and what to do. The process is as it was."""


class AlreadyAttachedError(AttachError):
    """Somebody has attached to it before; ``launch`` is that of its watch, None as long as it waits for a step."""

    def __init__(self, message: str, launch: str | None) -> None:
        super().__init__(message)
        self.launch = launch
