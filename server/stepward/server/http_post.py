"""One HTTP request to somewhere else: a body goes there, a status comes back, all of it within one bound of time.

Nothing is followed, kept open or read beyond the status, so whatever is at the other end cannot hold more than one
connection, for longer than the bound. On the event loop, since a thread would have to be waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from stepward.server.lookup import Lookups

if TYPE_CHECKING:
    from collections.abc import Mapping

# A line of an answer; nobody who means well needs more.
_LINE_BYTES_MAX: Final = 16 * 1024
# Lines of interim answers (1xx) before the one that counts.
_LINES_MAX: Final = 100
_PORTS: Final = {"http": 80, "https": 443}
# Of the process: what hangs stays behind, whoever asked.
_LOOKUPS: Final = Lookups()
_status = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |\r|\n)").match


class NoAnswer(Exception):  # noqa: N818 - it is what happened
    """Nobody answered in time, or not in HTTP."""


class Url(NamedTuple):
    """Where a request goes."""

    secure: bool
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The host as a request names it; the port is left out where it is the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == _PORTS["https" if self.secure else "http"]
        return host if usual else f"{host}:{self.port}"


def parse_url(text: str) -> Url:
    """An http or https address.

    Raises:
        ValueError: What is wrong with it, as the end of a sentence.
    """
    if not text.isascii() or any(character <= " " or character == "\x7f" for character in text):
        msg = "it must be ASCII without spaces; encode anything else with %"
        raise ValueError(msg)
    parts = urlsplit(text)
    if parts.scheme not in _PORTS:
        msg = "it must begin with http:// or https://"
        raise ValueError(msg)
    if parts.username is not None or parts.fragment:
        msg = "it must have neither a user nor a fragment"
        raise ValueError(msg)
    try:
        port = parts.port
    except ValueError:
        msg = "its port must be a number between 1 and 65535"
        raise ValueError(msg) from None
    if not parts.hostname or port == 0:
        msg = "it must name a host, and a port between 1 and 65535 if any"
        raise ValueError(msg)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Url(parts.scheme == "https", parts.hostname, port or _PORTS[parts.scheme], target)


async def authorities() -> ssl.SSLContext:
    """What the certificate of the other end is checked against: what this machine trusts now.

    To read all of it takes a tenth of a second, which the loop does not have: others would miss their leader.
    """
    return await asyncio.to_thread(ssl.create_default_context)


async def post(
    url: Url, body: bytes, headers: Mapping[str, str], *, within_s: float, trusts: ssl.SSLContext | None = None
) -> int:
    """Send a body; the status of the answer. `trusts` is for a secure address: see `authorities`.

    Raises:
        NoAnswer: There was none within so many seconds, or it was no HTTP.
    """
    try:
        async with asyncio.timeout(within_s):
            return await _post(url, body, headers, trusts)
    except TimeoutError:
        msg = f"no answer within {within_s:g} s"
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        # ValueError: a line beyond the limit, and what a name that cannot be encoded raises.
        msg = str(error) or type(error).__name__
    raise NoAnswer(msg)


async def _post(url: Url, body: bytes, headers: Mapping[str, str], trusts: ssl.SSLContext | None) -> int:
    assert url.secure is (trusts is not None), url.authority
    reader, writer = await _connection(url, trusts)
    try:
        lines = [f"POST {url.target} HTTP/1.1", f"Host: {url.authority}", "Connection: close"]
        lines += [f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        # Whoever answers before he has read everything is heard all the same: nothing waits for the write.
        return await _read_status(reader)
    finally:
        # In good order would be to wait for the other end, which may never come.
        writer.transport.abort()


async def _connection(url: Url, trusts: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """To the first address of the host that takes one; the last one's refusal is what is told."""
    *others, last = await _LOOKUPS.addresses(url.host)
    name = url.host if url.secure else None
    for address in others:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(
                address, url.port, ssl=trusts, server_hostname=name, limit=_LINE_BYTES_MAX
            )
    return await asyncio.open_connection(last, url.port, ssl=trusts, server_hostname=name, limit=_LINE_BYTES_MAX)


async def _read_status(reader: asyncio.StreamReader) -> int:
    for _ in range(_LINES_MAX):
        line = await reader.readuntil(b"\n")
        found = _status(line)
        if found is None:
            msg = f"the answer is no HTTP: it begins with {line[:40]!r}"
            raise ValueError(msg)
        status = int(found[1])
        if status >= 200:
            return status
        while (await reader.readuntil(b"\n")).strip():
            pass
    msg = f"more than {_LINES_MAX} interim answers"
    raise ValueError(msg)
