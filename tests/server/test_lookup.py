"""A resolver that hangs holds one thread for a name, however often the name is asked for, and nobody's end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stepward.server.http_post import NoAnswer, Url, post
from stepward.server.lookup import ADDRESSES_MAX, LOOKUPS_MAX, Lookups
from tests.server.nodes import eventually

S = 5.0


class Resolver:
    """Answers when it is let, and counts who asks."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked: list[str] = []
        self.answer: list[str] = ["127.0.0.1"]

    def getaddrinfo(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        assert self.let.wait(10 * S)
        if not self.answer:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in self.answer]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    yield resolver
    resolver.let.set()


def threads() -> int:
    return sum(thread.name == "lookup" for thread in threading.enumerate())


async def given_up(lookups: Lookups, host: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await lookups.addresses(host)


async def test_who_gives_up_leaves_one_thread_behind(resolver: Resolver) -> None:
    """Whoever asks for the same name later waits for the same answer, and gets it when it comes late."""
    lookups = Lookups()
    for _ in range(3):
        await given_up(lookups, "a.example.org")
    hanging = threads()
    waiting = asyncio.create_task(lookups.addresses("a.example.org"))
    await asyncio.sleep(0)
    resolver.let.set()
    async with asyncio.timeout(S):
        found = await waiting
        again = await lookups.addresses("a.example.org")

    assert hanging == 1
    assert found == again == ["127.0.0.1"]
    # What was found is not kept: a name may lead elsewhere by now.
    assert resolver.asked == ["a.example.org"] * 2


async def test_few_names_are_asked_for_at_once(resolver: Resolver) -> None:
    """The bound holds while they hang, and no longer."""
    lookups = Lookups()
    for number in range(LOOKUPS_MAX):
        await given_up(lookups, f"n{number}.example.org")
    with pytest.raises(OSError, match=f"while {LOOKUPS_MAX} other names are: the resolver hangs"):
        await lookups.addresses("one-more.example.org")
    resolver.let.set()

    await eventually(no_thread)
    assert await lookups.addresses("one-more.example.org") == ["127.0.0.1"]


async def test_a_name_that_leads_nowhere(resolver: Resolver) -> None:
    """Everybody who waits is told, and it is asked again the next time."""
    resolver.answer = []
    lookups = Lookups()
    both = [asyncio.create_task(lookups.addresses("no.example.org")) for _ in range(2)]
    await asyncio.sleep(0)
    resolver.let.set()
    async with asyncio.timeout(S):
        told = await asyncio.gather(*both, return_exceptions=True)
    resolver.answer = ["10.0.0.1"]

    assert [str(error) for error in told] == ["no.example.org is not found: [Errno -2] Name or service not known"] * 2
    assert await lookups.addresses("no.example.org") == ["10.0.0.1"]


async def test_name_that_cannot_be_encoded() -> None:
    """Python refuses it before anybody is asked."""
    with pytest.raises(OSError, match="is not found: "):
        await Lookups().addresses("x" * 64 + ".example.org")


@pytest.mark.parametrize("number", ["127.0.0.1", "::1"])
async def test_a_number_asks_nobody(resolver: Resolver, number: str) -> None:
    """It leads to itself, however the resolver is."""
    assert await Lookups().addresses(number) == [number]
    assert resolver.asked == []


async def test_of_many_addresses_some_are_taken(resolver: Resolver) -> None:
    """The first ones, which the resolver prefers."""
    resolver.let.set()
    resolver.answer = [f"10.0.0.{number}" for number in range(ADDRESSES_MAX + 1)]

    assert await Lookups().addresses("many.example.org") == resolver.answer[:ADDRESSES_MAX]


async def test_a_request_is_over_in_its_time(resolver: Resolver) -> None:
    """Again and again, with one thread behind it."""
    url = Url(False, "hook.example.org", 80, "/")
    for _ in range(3):
        with pytest.raises(NoAnswer, match=r"no answer within 0\.02 s"):
            await post(url, b"", {}, within_s=0.02)

    assert threads() == 1
    resolver.let.set()
    await eventually(no_thread)


async def no_thread() -> bool:
    return threads() == 0


async def test_the_next_address_is_tried(resolver: Resolver) -> None:
    """One of them is refused; of the last one the reason is told."""
    resolver.let.set()
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.2", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        resolver.answer = ["127.0.0.1", "127.0.0.2"]
        status = await post(Url(False, "hook.example.org", port, "/"), b"", {}, within_s=S)
        resolver.answer = ["127.0.0.1"]
        with pytest.raises(NoAnswer, match=r"127\.0\.0\.1"):
            await post(Url(False, "hook.example.org", port, "/"), b"", {}, within_s=S)

    assert status == 204
    assert f"Host: hook.example.org:{port}".encode() in heard[0]
