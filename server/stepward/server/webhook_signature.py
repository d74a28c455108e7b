"""How a request of the webhook shows that it is ours: a secret that both ends hold, and when it was made."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

HEADER: Final = "Stepward-Signature"
# A secret of fewer bytes is guessed sooner than it is stolen; more means that it is another file that was named.
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 4_096


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    """HMAC-SHA256 over the time, a dot, and the body; the time stands beside it, so that old ones can be refused."""
    digest = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def read_secret(path: Path) -> bytes:
    """The secret in a file, without a newline at its end.

    Raises:
        OSError: It cannot be read.
        ValueError: It is too short or too long to be one.
    """
    with path.open("rb") as file:
        secret = file.read(SECRET_BYTES_MAX + 2).rstrip(b"\r\n")
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        msg = f"it must hold a secret of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"
        raise ValueError(msg)
    return secret
