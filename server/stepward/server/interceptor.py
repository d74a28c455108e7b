"""The shell around every call: parses, refuses, counts, and lets nothing that escapes a handler out unexplained.

It wraps each handler once, when services are registered. gRPC's own interceptors run anew for every call and cannot
see a message that does not parse.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from stepward.server import observe
from stepward.server.api import errors
from stepward.server.core.rejections import Reason, Refused, Rejection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from google.protobuf.message import Message

    from stepward.server.observe import Counters

    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]

M = TypeVar("M", bound="Message")

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


class CallShell:
    """Wraps handlers. One for each node."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        # Asked once: one line a call costs a tenth of a small call.
        self._logs = logging.getLogger("stepward.calls").isEnabledFor(logging.DEBUG)

    def wrap(self, service: str, handlers: Mapping[str, Handler]) -> grpc.GenericRpcHandler[Any, Any]:
        """Handlers of a service, each in the shell. A stream's handler parses what it reads with `parse`."""
        wrapped = {name: self._wrap(f"{service}/{name}", handler) for name, handler in handlers.items()}
        return grpc.method_handlers_generic_handler(service, wrapped)

    def _wrap(self, method: str, handler: Handler) -> Handler:
        serializer = handler.response_serializer
        if handler.request_streaming:
            assert handler.response_streaming, method
            return grpc.stream_stream_rpc_method_handler(
                self._shell(method, handler.stream_stream), response_serializer=serializer
            )
        type_: type[Message] = handler.request_deserializer.__self__  # type: ignore[union-attr]  # X.FromString of a message
        if handler.response_streaming:
            inner = _streaming(type_, handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(self._shell(method, inner), response_serializer=serializer)
        inner = _parsing(type_, handler.unary_unary)
        return grpc.unary_unary_rpc_method_handler(self._shell(method, inner), response_serializer=serializer)

    def _shell(self, method: str, handler: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        counters, logs = self._counters, self._logs

        async def call(request: Any, context: Context) -> Any:
            started = time.perf_counter() if logs else 0.0
            counters.calls += 1
            try:
                response = await handler(request, context)
            except Refused as refused:
                counters.refusals += 1
                rejection = refused.rejection
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception:  # noqa: BLE001 - what escapes a handler must not leave the caller without a reason
                counters.call_failures += 1
                _log.exception("call_failed", method=method)
                rejection = _INTERNAL
            else:
                if logs:
                    _log.debug("call", method=method, code="OK", ms=_since(started))
                return response
            if logs:
                _log.debug("call", method=method, code=rejection.reason.value, ms=_since(started))
            return await abort(context, rejection)

        return call


def _since(started: float) -> float:
    return round((time.perf_counter() - started) * 1_000, 3)


def _parsing(type_: type[Message], handler: Any) -> Callable[[bytes, Context], Awaitable[Any]]:
    async def parsed(raw: bytes, context: Context) -> Any:
        return await handler(parse(type_, raw), context)

    return parsed


def _streaming(type_: type[Message], handler: Any) -> Callable[[bytes, Context], Awaitable[None]]:
    """A handler that gives an iterator of responses, as one that writes them."""

    async def streamed(raw: bytes, context: Context) -> None:
        async with contextlib.aclosing(handler(parse(type_, raw), context)) as responses:
            async for response in responses:
                await context.write(response)

    return streamed


class Registrar:
    """Stands in for a server when services are added, and takes their handlers as they come.

    The generated `add_XServicer_to_server` functions call these two methods.
    """

    def __init__(self) -> None:
        self.services: dict[str, Mapping[str, Handler]] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """The same handlers in a form that cannot be looked into."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Keep the handlers of a service."""
        self.services[service_name] = method_handlers
