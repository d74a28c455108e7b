"""One request to somewhere else: a status comes back, or why there is none, within its time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepward.server.http_post import NoAnswer, Url, authorities, parse_url, post
from tests.certificates import Authority

S = 5.0


@pytest.mark.parametrize(
    ("text", "url", "authority"),
    [
        ("http://example.org", Url(False, "example.org", 80, "/"), "example.org"),
        ("https://example.org/a/b?c=d", Url(True, "example.org", 443, "/a/b?c=d"), "example.org"),
        ("http://example.org:443/", Url(False, "example.org", 443, "/"), "example.org:443"),
        ("https://[::1]:8443/x", Url(True, "::1", 8443, "/x"), "[::1]:8443"),
        ("http://[::1]/x", Url(False, "::1", 80, "/x"), "[::1]"),
    ],
)
def test_an_address(text: str, url: Url, authority: str) -> None:
    """Its parts, with what is usual where nothing is said."""
    assert parse_url(text) == url
    assert url.authority == authority


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "begin with http"),
        ("example.org/x", "begin with http"),
        ("ftp://example.org", "begin with http"),
        ("http://", "name a host"),
        ("http://example.org:0/", "between 1 and 65535"),
        ("http://example.org:65536/", "between 1 and 65535"),
        ("http://example.org:x/", "between 1 and 65535"),
        ("http://ann:secret@example.org/", "neither a user"),
        ("http://example.org/#part", "nor a fragment"),
        ("http://example.org/a b", "without spaces"),
        ("http://example.org/a\r\nHost: other", "without spaces"),
        ("http://exämple.org/", "must be ASCII"),
    ],
)
def test_what_is_no_address(text: str, rule: str) -> None:
    """And what to do about it; nothing of it can become a line of a request."""
    with pytest.raises(ValueError, match=rule):
        parse_url(text)


@contextlib.asynccontextmanager
async def server(
    answer: bytes, *, ends: bool = True, reads: bool = True, shows: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Url, list[bytes]]]:
    """Somebody who says these bytes to whoever comes, whatever he says."""
    heard: list[bytes] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reads:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            heard.append(head + await reader.readexactly(length))
        writer.write(answer)
        if not ends:
            await over.wait()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=shows)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield Url(shows is not None, "127.0.0.1", port, "/hook?x=1"), heard
        over.set()


async def test_a_request() -> None:
    """Everything that a server needs, and nothing that it would have to wait for."""
    async with server(b"HTTP/1.1 204 No Content\r\n\r\n") as (url, heard):
        assert await post(url, b"body", {"X-One": "1"}, within_s=S) == 204
        assert heard == [
            b"POST /hook?x=1 HTTP/1.1\r\n"
            + f"Host: 127.0.0.1:{url.port}\r\n".encode()
            + b"Connection: close\r\nContent-Length: 4\r\nX-One: 1\r\n\r\nbody"
        ]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", 200),
        (b"HTTP/1.0 503\r\n\r\n", 503),
        (b"HTTP/1.1 302 Found\r\nLocation: /other\r\n\r\n", 302),
        (b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 201 Created\r\n\r\n", 201),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 99 + b"HTTP/1.1 200 OK\r\n\r\n", 200),
    ],
)
async def test_a_status(answer: bytes, status: int) -> None:
    """The one that counts; nothing is followed, and the rest is not read."""
    async with server(answer) as (url, _):
        assert await post(url, b"", {}, within_s=S) == status


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "0 bytes read"),
        (b"HTTP/1.1 20", "11 bytes read"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is no HTTP"),
        (b"HTTP/1.1 999 Odd\r\n", "the answer is no HTTP"),
        (b"HTTP/1.1 200 " + b"x" * 20_000 + b"\r\n", "limit"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 101, "more than 100 interim answers"),
    ],
)
async def test_what_is_no_answer(answer: bytes, why: str) -> None:
    """It is told what came instead."""
    async with server(answer) as (url, _):
        with pytest.raises(NoAnswer, match=why):
            await post(url, b"", {}, within_s=S)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 ", b"HTTP/1.1 100 Continue\r\n"])
async def test_time_is_bounded_however_the_answer_drips(answer: bytes) -> None:
    """Whoever says nothing more is not waited for, nor whoever does not read."""
    for reads in (True, False):
        async with server(answer, ends=False, reads=reads) as (url, _):
            with pytest.raises(NoAnswer, match=r"no answer within 0\.1 s"):
                await post(url, b"x" * 1_000_000, {}, within_s=0.1)


async def _refused_port() -> int:
    async with server(b"") as (url, _):
        return url.port


@pytest.mark.parametrize("secure", [False, True])
async def test_nobody_is_there(secure: bool) -> None:
    """A port that nobody listens on, and a host that speaks no TLS."""
    port = await _refused_port()
    trusts = await authorities()
    with pytest.raises(NoAnswer):
        await post(Url(secure, "127.0.0.1", port, "/"), b"", {}, within_s=S, trusts=trusts if secure else None)
    async with server(b"HTTP/1.1 200 OK\r\n\r\n", reads=False) as (url, _):
        with pytest.raises(NoAnswer):
            await post(url._replace(secure=True), b"", {}, within_s=S, trusts=trusts)


async def test_a_secure_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said to anybody but the one whom the address names, by the word of somebody who is trusted."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    right = authority.files("right", uri="test:right")
    wrong = authority.files("wrong", uri="test:wrong", hosts=("example.org",))
    stranger = Authority(tmp_path, "other").files("stranger", uri="test:stranger")
    for files in (right, wrong, stranger):
        shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shows.load_cert_chain(files.certificate, files.key)
        async with server(b"HTTP/1.1 200 OK\r\n\r\n", shows=shows) as (url, heard):
            trusts = await authorities()
            if files is right:
                assert await post(url, b"body", {}, within_s=S, trusts=trusts) == 200
                continue
            with pytest.raises(NoAnswer, match="CERTIFICATE_VERIFY_FAILED"):
                await post(url, b"body", {}, within_s=S, trusts=trusts)
            assert heard == []


async def test_the_loop_does_not_wait_for_what_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a tenth of a second to read, in which no sign of life of a leader would go out."""
    made_on = []
    make = ssl.create_default_context

    def making() -> ssl.SSLContext:
        made_on.append(threading.get_ident())
        return make()

    monkeypatch.setattr(ssl, "create_default_context", making)
    await authorities()

    assert made_on != []
    assert threading.get_ident() not in made_on
