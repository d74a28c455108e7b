"""Passes one call on to another node, and brings its answer or its refusal back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # ships no types
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # ships no types

from stepward.server.api.errors import DETAILS_KEY
from stepward.server.core.rejections import Reason, Refused, Rejection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")


class Unreached(Exception):  # noqa: N818 - a state of the network, named as such
    """Another node did not answer. Whether it did what it was asked is not known."""

    def __init__(self, error: grpc.aio.AioRpcError, timeout_s: float) -> None:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            super().__init__(f"no answer within {timeout_s:g} s")
        else:
            super().__init__(f"{error.code().name}: {error.details() or 'no details'}")


async def pass_on(call: Callable[..., Awaitable[M]], request: Message, *, timeout_s: float) -> M:
    """The answer of another node, waiting for its connection within the time, too.

    Raises:
        Refused: As the other node refused it.
        Unreached: It did not answer.
    """
    try:
        return await call(request, timeout=timeout_s, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        rejection = rejection_of(error)
        if rejection is not None:
            raise Refused(rejection) from None
        raise Unreached(error, timeout_s) from None


def rejection_of(error: grpc.aio.AioRpcError) -> Rejection | None:
    """What another node said of a call that it refused; None when it said nothing that we understand."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            return _rejection(value)
    return None


def _rejection(details: Any) -> Rejection | None:
    try:
        status = Status.FromString(details)
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        for detail in status.details:
            detail.Unpack(info)
            detail.Unpack(retry)
        reason = Reason(info.reason)
    except (DecodeError, ValueError):
        # A newer node may have reasons that this one has not.
        return None
    return Rejection(
        reason, status.message, dict(info.metadata), retry_after_ms=int(retry.retry_delay.ToMilliseconds())
    )
