"""How the outside worlds of the examples are served: calls over HTTP, none answered before it is on record.

A world is a set of rules without I/O: a function from calls to answers. `POST /SERVICE/VERB` with a JSON body is a
call; everything that came in, and how it was answered, stands in the record (`ledger`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from stepward.agents.examples.ledger import Ledger

# A call is a few short fields, and so is a request's head; what is larger is no call.
HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024

# How long a connection may say nothing between two calls.
IDLE_S_MAX = 60.0

CallT = TypeVar("CallT", bound=Struct)
AnswerT = TypeVar("AnswerT", bound="Timed")


class Timed(Protocol):
    """What every answer says, whatever else it does. It is a msgspec struct."""

    @property
    def status(self) -> int: ...

    @property
    def delay_ms(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Request:
    """The few things of an HTTP request that matter here."""

    method: str
    path: str
    body: bytes
    keep_open: bool


class Refusal(Struct, frozen=True, kw_only=True):
    """The answer to what is no call, and to a look at the service."""

    status: int
    kind: str = ""
    message: str = ""
    delay_ms: int = 0


class BadRequestError(Exception):
    """The bytes are not a request that this service takes."""


class HttpService(Generic[CallT, AnswerT]):
    """Answers calls by the rules of a world, and no call before it is on record.

    Args:
        name: For people, such as "the travel service".
        world: The rules: answers a call and remembers its effect.
        kind: The struct of a call. Its fields `service` and `verb` come from the path.
        record: Where every call is written.
        entry: Makes the record's line: from the wall clock in ms, the call and its answer.
        slow_ms: How much later every call is answered.
        hold_ms: How long a call is still on its way before the world sees it; asked when it comes in.
    """

    def __init__(
        self,
        name: str,
        *,
        world: Callable[[CallT], AnswerT],
        kind: type[CallT],
        record: Ledger,
        entry: Callable[[int, CallT, AnswerT], Struct],
        slow_ms: int = 0,
        hold_ms: Callable[[CallT], int] = lambda call: 0,
    ) -> None:
        self._name = name
        self._world = world
        self._kind = kind
        self._record = record
        self._entry = entry
        self._slow_ms = slow_ms
        self._hold_ms = hold_ms
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other, until it is closed."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The other side has gone away, or this service is stopping; what was recorded stays recorded.
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def stop(self) -> None:
        """Close all connections."""
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        answer: Timed
        try:
            async with asyncio.timeout(IDLE_S_MAX):
                request = await _read_request(reader)
            answer = await self._answer(request)
            keep_open = request.keep_open
        except BadRequestError as error:
            answer = Refusal(status=400, kind="BadRequest", message=str(error))
            keep_open = False
        writer.write(_response(answer, keep_open=keep_open))
        await writer.drain()
        return keep_open

    async def _answer(self, request: Request) -> Timed:
        if request.method == "GET" and request.path == "/":
            return Refusal(status=200, message=f"this is {self._name}")
        call = self._call(request)
        if hold_ms := self._hold_ms(call):
            await asyncio.sleep(hold_ms / 1000)
        answer = self._world(call)
        await self._record.append(self._entry(time.time_ns() // 1_000_000, call, answer))
        delay_ms = self._slow_ms + answer.delay_ms
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        return answer

    def _call(self, request: Request) -> CallT:
        """The call that a request makes: service and verb from its path, the rest from its body."""
        parts = request.path.strip("/").split("/")
        if request.method != "POST" or len(parts) != 2:
            raise BadRequestError(f"{request.method} {request.path}: calls are POST /SERVICE/VERB")
        try:
            fields = msgspec.json.decode(request.body, type=dict[str, object])
            return msgspec.convert(fields | {"service": parts[0], "verb": parts[1]}, self._kind)
        except msgspec.MsgspecError as error:
            raise BadRequestError(str(error)) from None


async def _read_request(reader: asyncio.StreamReader) -> Request:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError:
        raise BadRequestError(f"a head of more than {HEAD_BYTES_MAX} bytes") from None
    first, *fields = head.removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise BadRequestError(f"not a request line: {first[:100]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > BODY_BYTES_MAX:
        raise BadRequestError(f"content-length is {length[:20]!r}; it must be a number up to {BODY_BYTES_MAX}")
    return Request(
        method=words[0],
        path=words[1],
        body=await reader.readexactly(int(length)),
        keep_open=headers.get("connection", "").lower() != "close",
    )


def _response(answer: Timed, *, keep_open: bool) -> bytes:
    body = msgspec.json.encode(answer)
    head = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: {'keep-alive' if keep_open else 'close'}\r\n\r\n"
    )
    return head.encode() + body


def main(options: argparse.ArgumentParser, make: Callable[[argparse.Namespace, Ledger], HttpService[Any, Any]]) -> None:
    """Entry of a service's command line.

    `make` gives the service from what was asked for; its world knows what the record knows.
    """
    arguments = options.parse_args()

    async def serve() -> None:
        record = Ledger(arguments.ledger)
        await run(make(arguments, record), record, arguments)

    try:
        asyncio.run(serve())
    except OSError as error:
        sys.exit(f"{options.prog} cannot run on port {arguments.port} with {arguments.ledger}: {error}")


async def run(service: HttpService[Any, Any], record: Ledger, arguments: argparse.Namespace) -> None:
    """Serve until a SIGTERM or SIGINT; say on stdout, in one JSON line, where.

    Raises:
        OSError: The port cannot be had.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    server = await asyncio.start_server(service.serve, "127.0.0.1", arguments.port, limit=HEAD_BYTES_MAX, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    ready = {"event": "ready", "address": f"127.0.0.1:{port}", "pid": os.getpid(), "ledger": str(arguments.ledger)}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    if arguments.end_with_input:
        _follow_input(stopping)
    await stopping.wait()
    server.close()
    await service.stop()
    record.close()


def _follow_input(stopping: asyncio.Event) -> None:
    """End when standard input does: whoever started this process and held the other end is gone."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            stopping.set()

    loop.add_reader(sys.stdin.fileno(), look)


def parser(module: str, description: str | None, *, port: int, ledger: str) -> argparse.ArgumentParser:
    """The options that all services of the examples have."""
    default = Path(tempfile.gettempdir()) / ledger
    options = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    options.add_argument("--port", type=int, default=port, help="0: any free one (default: %(default)s)")
    options.add_argument("--ledger", type=Path, default=default, help="where every call is recorded (%(default)s)")
    options.add_argument("--slow-ms", type=int, default=0, help="answer every call this much later")
    options.add_argument("--end-with-input", action="store_true", help="end when standard input does")
    return options
