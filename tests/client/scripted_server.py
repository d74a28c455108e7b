"""A real gRPC server that answers by a script, and remembers what it was asked.

It knows the contract by its descriptors and none of the client's tables, so that a wrong path or a wrong type in the
client meets a server that does not understand.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it ships no types

from stepward.v1 import (
    agent_service_pb2,
    cluster_service_pb2,
    definition_service_pb2,
    job_service_pb2,
    operator_service_pb2,
    supervision_service_pb2,
)

FILES = (
    agent_service_pb2,
    cluster_service_pb2,
    definition_service_pb2,
    job_service_pb2,
    operator_service_pb2,
    supervision_service_pb2,
)
METHODS: dict[str, Any] = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

# No test waits longer for anything.
WAIT_S_MAX = 10.0


@dataclass(frozen=True)
class Refused:
    """A refusal of ours, as the contract describes it."""

    code: grpc.StatusCode
    reason: str
    message: str = "refused"
    metadata: dict[str, str] = field(default_factory=dict)
    retry_delay_s: float = 0.0
    violations: tuple[tuple[str, str], ...] = ()

    def details(self) -> bytes:
        number: int = self.code.value[0]
        status = status_pb2.Status(code=number, message=self.message)
        status.details.append(
            packed(error_details_pb2.ErrorInfo(domain="stepward", reason=self.reason, metadata=self.metadata))
        )
        if self.retry_delay_s:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(round(self.retry_delay_s * 1000))
            status.details.append(packed(retry))
        if self.violations:
            request = error_details_pb2.BadRequest()
            for path, description in self.violations:
                request.field_violations.add(field=path, description=description)
            status.details.append(packed(request))
        data: bytes = status.SerializeToString()
        return data


@dataclass(frozen=True)
class Broken:
    """A failure that no code of ours wrote: what a client sees when a connection breaks."""

    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    details: str = "Socket closed"


class Silence:
    """No answer until the call ends, or somebody lets go."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._over = threading.Event()

    def end(self) -> None:
        self._over.set()

    def wait(self, context: grpc.ServicerContext) -> None:
        self._begun.set()
        # A call that has ended already takes no callback.
        if context.add_callback(self._over.set):
            self.wait_for_end()

    def wait_for_begin(self) -> None:
        assert self._begun.wait(WAIT_S_MAX), "nobody came this far"

    def wait_for_end(self) -> None:
        assert self._over.wait(WAIT_S_MAX), "nobody ended the call"


Answer = Message | Refused | Broken | Silence
Script = Answer | Callable[[Any], Answer]

COMMIT_UNKNOWN = Refused(grpc.StatusCode.UNAVAILABLE, "COMMIT_UNKNOWN")
NO_LEADER = Refused(grpc.StatusCode.UNAVAILABLE, "NO_LEADER")
WAIT_TIMED_OUT = Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "WAIT_TIMED_OUT", metadata={"job_id": "0-1"})


def packed(message: Message) -> AnyMessage:
    wrapped = AnyMessage()
    wrapped.Pack(message)
    return wrapped


class ScriptedServer(grpc.GenericRpcHandler):
    """Answers each method by its script, in order; a stream takes one list a call, or a function that gives one."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.asked: list[tuple[str, Any]] = []
        """Method and request of every call, in order."""
        self._scripts: dict[str, deque[Any]] = defaultdict(deque)
        self._always: dict[str, Any] = {}
        self._silences: list[Silence] = []
        self._server = grpc.server(ThreadPoolExecutor(max_workers=16), handlers=[self])
        place = "127.0.0.1:0"
        self.port = (
            self._server.add_secure_port(place, credentials) if credentials else self._server.add_insecure_port(place)
        )
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def on(self, method: str, *answers: Any) -> None:
        """Script the next answers of a method: each once."""
        self._scripts[method].extend(answers)

    def always(self, method: str, answer: Any) -> None:
        """What a method answers when its script is over."""
        self._always[method] = answer

    def requests(self, method: str) -> list[Any]:
        """What was asked of a method."""
        return [request for name, request in self.asked if name == method]

    def stop(self) -> None:
        for silence in self._silences:
            silence.end()
        self._server.stop(0).wait(WAIT_S_MAX)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # type: ignore[explicit-override]  # 3.11 has no override
        method = METHODS.get(handler_call_details.method)
        if method is None:
            return None
        kind = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        behaviour = self._stream if method.server_streaming else self._unary
        return kind(
            lambda request, context: behaviour(method.name, request, context),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )

    def _next(self, method: str, request: Any) -> Any:
        self.asked.append((method, request))
        script = self._scripts[method]
        if script:
            return script.popleft()
        return self._always.get(method, Refused(grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED", f"no script: {method}"))

    def _unary(self, method: str, request: Any, context: grpc.ServicerContext) -> Message:
        return self._give(self._next(method, request), request, context)

    def _stream(self, method: str, request: Any, context: grpc.ServicerContext) -> Iterator[Message]:
        answers = self._next(method, request)
        if callable(answers) and not isinstance(answers, Message):
            answers = answers(request)
        for answer in answers if isinstance(answers, list) else [answers]:
            yield self._give(answer, request, context)

    def _give(self, answer: Script, request: Any, context: grpc.ServicerContext) -> Message:
        if callable(answer) and not isinstance(answer, Message):
            answer = answer(request)
        if isinstance(answer, Silence):
            self._silences.append(answer)
            answer.wait(context)
            context.abort(grpc.StatusCode.UNAVAILABLE, "let go")
        if isinstance(answer, Refused):
            context.set_trailing_metadata((("grpc-status-details-bin", answer.details()),))
            context.abort(answer.code, answer.message)
        if isinstance(answer, Broken):
            context.abort(answer.code, answer.details)
        assert isinstance(answer, Message)
        return answer
