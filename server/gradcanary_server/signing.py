"""The secrets with which messages are signed, in the form of Standard Webhooks."""

from __future__ import annotations

import base64
import binascii
import secrets

PREFIX = "whsec_"
_BYTES = 32
_RANGE = range(16, 129)


class SecretError(ValueError):
    """A secret that nothing can be signed with; the message says what one is."""


def new_secret() -> str:
    """Return a secret that nobody knows."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def check(secret: str) -> None:
    """Raise SecretError unless messages can be signed with it."""
    try:
        size = len(base64.b64decode(secret.removeprefix(PREFIX), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if not secret.startswith(PREFIX) or size not in _RANGE:
        raise SecretError(
            f"must be '{PREFIX}' followed by base64 of {_RANGE[0]} to {_RANGE[-1]} random bytes, {_BYTES} for example"
        )
