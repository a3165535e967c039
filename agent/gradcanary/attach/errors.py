"""Why an attach or a detach did not come about."""

from __future__ import annotations


class AttachError(Exception):
    """It cannot be done, or was not; the message says why, and what to do. The process is as it was."""
