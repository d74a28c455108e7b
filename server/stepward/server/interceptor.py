"""The shell around every call: parses, refuses, counts, and lets nothing that escapes a handler out unexplained.

It wraps each handler once, when services are registered. gRPC's own interceptors run anew for every call and cannot
see a message that does not parse.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from stepward.server import observe
from stepward.server.api import errors
from stepward.server.core.rejections import Reason, Refused, Rejection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
    from google.protobuf.message import Message

    from stepward.server.admission import Admission
    from stepward.server.config import NodeConfig
    from stepward.server.observe import Counters

    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]

M = TypeVar("M", bound="Message")

# A capital letter inside a name.
_CAPITALS: Final = re.compile(r"(?<!^)([A-Z])")

# How a call ended, beside the reasons of refusals: it was answered, or its caller had gone away.
OK: Final = "OK"
GONE: Final = "GONE"

_INTERNAL: Final = Rejection(Reason.INTERNAL, "this call failed inside. This is a bug: see the node's log")

_log = observe.logger("calls")


def parse(type_: type[M], raw: bytes) -> M:
    """A message from the wire.

    Raises:
        Refused: INVALID_ARGUMENT, when it is not one, or a string in it is not UTF-8.
    """
    try:
        return type_.FromString(raw)
    except DecodeError as error:
        text = f"the request is not a {type_.DESCRIPTOR.full_name}: {error}"
        raise Refused(Rejection(Reason.INVALID_ARGUMENT, text)) from None


async def abort(context: Context, rejection: Rejection) -> NoReturn:
    """End a call with a refusal and its details."""
    code, message, details = errors.status(rejection)
    await context.abort(code, message, ((errors.DETAILS_KEY, details),))


class Room:
    """How many calls of some kinds may be in progress at once. Each is until its answer has gone out."""

    __slots__ = ("_count", "_field", "_most")

    def __init__(self, config: NodeConfig, field: str) -> None:
        self._most: int = getattr(config, field)
        self._field = field
        self._count = 0

    def enter(self, context: Context) -> str:
        """Take one place; or why there is none."""
        if self._count >= self._most:
            return f"{self._count} such calls are in progress here, which is the most ({self._field}); come back"
        self._count += 1
        # Not when the handler has returned: an answer that nobody reads is still in memory.
        context.add_done_callback(self._leave)  # type: ignore[arg-type]  # its stubs ask for a class of their own
        return ""

    def _leave(self, _context: Context) -> None:
        self._count -= 1


class Rooms:
    """Which call takes its place where, so that one kind cannot crowd out another."""

    def __init__(self, config: NodeConfig) -> None:
        self._reserved = Room(config, "calls_reserved_max")
        self._reads = Room(config, "reads_max")
        self._others = Room(config, "calls_max")

    def of(self, service: str, method: MethodDescriptor) -> Room | None:
        """The room of a method; None for streams of requests, which are counted where they are served."""
        if method.client_streaming:
            return None
        if service in _RESERVED_SERVICES or method.name in _RESERVED_METHODS:
            return self._reserved
        return self._reads if method.name.startswith(_READS) else self._others


# What belongs to work that exists must get in however many others call; so must whoever looks what is wrong.
_RESERVED_SERVICES: Final = frozenset({"AgentService", "OperatorService", "SupervisionService", "PeerService"})
_RESERVED_METHODS: Final = frozenset({"CancelJob", "GetStatus"})
# Streams of other nodes, and what they ask.
_OF_NODES: Final = "stepward.internal."
# Their answers may be large.
_READS: Final = ("Get", "List", "Count", "Validate")


class CallShell:
    """Wraps handlers. One for each node."""

    def __init__(self, counters: Counters, rooms: Rooms, admission: Admission, *, stalled_ms_max: int) -> None:
        """`stalled_ms_max`: how long a caller of a stream of responses may leave one unread."""
        self._counters = counters
        self._rooms = rooms
        self._admission = admission
        self._stalled_ms_max = stalled_ms_max
        # Calls that have not returned; other nodes' streams, which never do, are not among them.
        self._open = 0
        self._quiet: asyncio.Future[None] | None = None
        # Asked once: one line a call costs a tenth of a small call.
        self._logs = logging.getLogger("stepward.calls").isEnabledFor(logging.DEBUG)

    async def quiet(self) -> None:
        """Wait until no call is in progress but streams of other nodes."""
        if self._open:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    def _left(self, counts: int) -> None:
        self._open -= counts
        if not self._open and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def serve(self, service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
        """The handlers of a service, each in the shell: methods of `servicer`, `SubmitJob` being `submit_job`.

        A handler of a stream of requests reads and parses for itself; one that gives many responses is an async
        iterator of them.
        """
        return grpc.method_handlers_generic_handler(
            service.full_name, {method.name: self._handler(service, method, servicer) for method in service.methods}
        )

    def _handler(self, service: ServiceDescriptor, method: MethodDescriptor, servicer: object) -> Handler:
        name, room = f"{service.full_name}/{method.name}", self._rooms.of(service.name, method)
        inner = getattr(servicer, _CAPITALS.sub(r"_\1", method.name).lower())
        request_type, serialize = GetMessageClass(method.input_type), _serialize
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(self._shell(name, room, inner), response_serializer=serialize)
        if method.server_streaming:
            inner = _streaming(request_type, inner, self._stalled_ms_max)
            return grpc.unary_stream_rpc_method_handler(self._shell(name, room, inner), response_serializer=serialize)
        inner = _parsing(request_type, inner)
        return grpc.unary_unary_rpc_method_handler(self._shell(name, room, inner), response_serializer=serialize)

    def _shell(self, method: str, room: Room | None, handler: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        counters, logs, admission = self._counters, self._logs, self._admission
        counts = 0 if method.startswith(_OF_NODES) else 1
        by_code = counters.calls_by_code.setdefault(method, {})

        def ended(code: str) -> None:
            by_code[code] = by_code.get(code, 0) + 1

        async def call(request: Any, context: Context) -> Any:
            started = time.perf_counter() if logs else 0.0
            counters.calls += 1
            self._open += counts
            try:
                if room is not None and (full := room.enter(context)):
                    raise admission.overloaded(full)
                response = await handler(request, context)
            except Refused as refused:
                counters.refusals += 1
                rejection = refused.rejection
            except (asyncio.CancelledError, grpc.aio.AbortError, grpc.aio.InternalError):
                # The caller has gone away; the last of these is how gRPC tells it to one who writes.
                ended(GONE)
                raise
            except Exception:  # noqa: BLE001 - what escapes a handler must not leave the caller without a reason
                counters.call_failures += 1
                _log.exception("call_failed", method=method)
                rejection = _INTERNAL
            else:
                ended(OK)
                if logs:
                    _log.debug("call", method=method, code=OK, ms=_since(started))
                return response
            finally:
                self._left(counts)
            ended(rejection.reason.value)
            if logs:
                _log.debug("call", method=method, code=rejection.reason.value, ms=_since(started))
            return await abort(context, rejection)

        return call


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _since(started: float) -> float:
    return round((time.perf_counter() - started) * 1_000, 3)


def _parsing(type_: type[Message], handler: Any) -> Callable[[bytes, Context], Awaitable[Any]]:
    async def parsed(raw: bytes, context: Context) -> Any:
        return await handler(parse(type_, raw), context)

    return parsed


def _streaming(type_: type[Message], handler: Any, stalled_ms_max: int) -> Callable[[bytes, Context], Awaitable[None]]:
    """A handler that gives an iterator of responses, as one that writes them.

    One response is written at a time, and the next is made when it has left: so a caller who does not read costs the
    memory of one, and for a bounded time.
    """

    async def streamed(raw: bytes, context: Context) -> None:
        request = parse(type_, raw)
        # Apart from the first response: a status cannot follow a write that stalls when these travel together.
        await context.send_initial_metadata(())
        async with contextlib.aclosing(handler(request, context)) as responses:
            async for response in responses:
                await _write(context, response, stalled_ms_max)

    return streamed


async def _write(context: Context, response: Message, stalled_ms_max: int) -> None:
    """Write a response.

    Raises:
        Refused: WATCH_TOO_SLOW, when the caller does not read.
    """
    try:
        async with asyncio.timeout(stalled_ms_max / 1_000):
            await context.write(response)
    except TimeoutError:
        text = f"nothing was read from this stream for {stalled_ms_max} ms; resume behind the last revision seen"
        raise Refused(Rejection(Reason.WATCH_TOO_SLOW, text)) from None
