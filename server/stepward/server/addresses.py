"""Addresses as text: what is one, and what can be said of it without asking a resolver."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

HOST_RULE: Final = "it must be a name or an IP number, without a port"
ADDRESS_RULE: Final = "it must be HOST:PORT, a name or an IP number and a port between 1 and 65535"

# RFC 1123, and the underscore that names of containers have.
_NAME_CHARS_MAX: Final = 253
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_PORT: Final = re.compile(r"[0-9]{1,5}")


class Address(NamedTuple):
    """Where something is reached. An IPv6 number stands without its brackets."""

    host: str
    port: int


def parse_address(text: str) -> Address | None:
    """What stands in HOST:PORT, with an IPv6 number in brackets; None when it is no address."""
    host, _, port = text.rpartition(":")
    if _PORT.fullmatch(port) is None or not 1 <= int(port) <= 65_535:
        return None
    in_brackets = host.startswith("[") and host.endswith("]")
    if not is_host(host) or (":" in host and not in_brackets):
        return None
    return Address(host.strip("[]"), int(port))


def is_host(text: str) -> bool:
    """Whether it is a name or a number. IPv6 may stand in brackets."""
    if text.startswith("[") and text.endswith("]"):
        return ":" in text and _number(text[1:-1]) is not None
    # A name that ends in a number would be taken for an IPv4 address by some, and for a name by others.
    if ":" in text or text.rstrip(".").rpartition(".")[2].isdecimal():
        return _number(text) is not None
    labels = text.removesuffix(".").split(".")
    return len(text) <= _NAME_CHARS_MAX and all(_LABEL.fullmatch(label) for label in labels)


def place(host: str) -> str:
    """The same for two hosts that are written differently and mean one, as far as the text tells."""
    bare = host.strip("[]").lower().removesuffix(".")
    if bare == "localhost":
        return "127.0.0.1"
    number = _number(bare)
    return bare if number is None else str(number)


def is_loopback(host: str) -> bool:
    """Whether it means the machine itself, whichever that is. Of a name only `localhost` is known."""
    number = _number(place(host))
    return number is not None and number.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether it means all addresses of a machine, and so none that could be called."""
    number = _number(place(host))
    return number is not None and number.is_unspecified


def bracketed(host: str) -> str:
    """As it stands in front of a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _number(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
