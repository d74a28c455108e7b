"""Page tokens: where a list goes on, bound to what was listed.

Opaque to callers, and no secret; but one of another list, other filters or another version is refused instead of giving
a wrong page.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from stepward.server.api import validate
from stepward.server.core.rejections import Reason, Refused, Rejection

if TYPE_CHECKING:
    from stepward.server.core.limits import Limits

_DIGEST_BYTES: Final = 12
# A place becomes part of a key, which has a bound.
_PLACE_BYTES_MAX: Final = 256
# What a page of a list says together, near enough: with one entry more it is below what a client takes, 4 MiB.
PAGE_BYTES_MAX: Final = 2 << 20
# Longer ones were not made here; nobody needs to decode them.
_TOKEN_CHARS_MAX: Final = 1_024


def page_size(asked: int, limits: Limits, *, default: int = 0) -> int:
    """How many entries a page has. 0 asks for the default.

    Raises:
        Refused: INVALID_ARGUMENT, when more were asked for than a page may have.
    """
    validate.require(validate.between("page_size", asked, 0, limits.page_size_max))
    return asked or default or limits.page_size_default


def token(filters: object, position: str) -> str:
    """A token for the page behind `position` of the list with these filters; empty when there is none."""
    if not position:
        return ""
    place = position.encode()
    return base64.urlsafe_b64encode(_digest(filters, place) + place).decode().rstrip("=")


def position(filters: object, given: str) -> str:
    """Where the page begins; empty for the first one.

    Raises:
        Refused: PAGE_TOKEN_INVALID, when the token was not made for this list with these filters.
    """
    if not given:
        return ""
    raw = _decoded(given)
    digest, place = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if not place or len(place) > _PLACE_BYTES_MAX or digest != _digest(filters, place):
        raise not_of_this_list()
    try:
        return place.decode()
    except UnicodeDecodeError:
        raise not_of_this_list() from None


def not_of_this_list() -> Refused:
    """The refusal of a token that means nothing here."""
    text = "page_token was not made by this list with these filters; begin again without one"
    return Refused(Rejection(Reason.PAGE_TOKEN_INVALID, text))


def _decoded(given: str) -> bytes:
    if len(given) > _TOKEN_CHARS_MAX:
        return b""
    try:
        return base64.b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _digest(filters: object, place: bytes) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(("page", 1, filters)) + place).digest()[:_DIGEST_BYTES]
