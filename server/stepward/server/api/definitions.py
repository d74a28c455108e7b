"""DefinitionService: for the people who write definitions, and for agents that bring their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepward.server.api import convert, pages, validate
from stepward.server.core import canonical, definition, definition_order, keys, latencies, rows, system
from stepward.server.core.commands import ApplyDefinition
from stepward.server.core.definition_source import (
    DefinitionSource,
    RetrySource,
    StepSource,
    TimeoutsSource,
    UndoSource,
    VerifySource,
)
from stepward.server.core.rejections import Reason, Refused, refuse
from stepward.v1 import definition_pb2, definition_service_pb2

if TYPE_CHECKING:
    from stepward.server.core.latencies import Detection
    from stepward.server.core.limits import Limits
    from stepward.server.core.rejections import Violation
    from stepward.server.core.rows import DefinitionBody
    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading


class DefinitionService:
    """See `stepward.v1.DefinitionService`."""

    def __init__(self, gateway: Gateway, limits: Limits) -> None:
        self._gateway = gateway
        self._limits = limits

    async def apply_definition(
        self, request: definition_service_pb2.ApplyDefinitionRequest, context: Any
    ) -> definition_service_pb2.ApplyDefinitionResponse:
        """See the contract."""
        body = self._compile(request.namespace, request.definition)
        if isinstance(body, tuple):
            raise Refused(validate.refusal(body, Reason.INVALID_DEFINITION))
        namespace = request.namespace or convert.DEFAULT_NAMESPACE
        reserved = system.refusal_of_definition(namespace, body.name)
        if reserved:
            raise refuse(Reason.NOT_ALLOWED, reserved)
        hash_ = canonical.definition_hash(body)
        answer = await self._gateway.apply_definition(ApplyDefinition(namespace, hash_, body))
        version = _version(
            namespace, request.definition, number=answer.version, hash_=hash_, created_wall_ms=answer.created_wall_ms
        )
        return definition_service_pb2.ApplyDefinitionResponse(version=version, created=answer.created)

    async def validate_definition(
        self, request: definition_service_pb2.ValidateDefinitionRequest, context: Any
    ) -> definition_service_pb2.ValidateDefinitionResponse:
        """See the contract."""
        body = self._compile(request.namespace, request.definition)
        if isinstance(body, tuple):
            return definition_service_pb2.ValidateDefinitionResponse(violations=_violations(body))
        warnings = definition_order.warnings(source(request.definition), self._limits)
        detections = latencies.detections(body, self._limits)
        return definition_service_pb2.ValidateDefinitionResponse(
            warnings=_violations(warnings), detections=[_detection(one) for one in detections]
        )

    async def get_definition(
        self, request: definition_service_pb2.GetDefinitionRequest, context: Any
    ) -> definition_service_pb2.GetDefinitionResponse:
        """See the contract."""
        found = [*validate.name("namespace", request.namespace, self._limits, may_be_empty=True)]
        found += validate.name("name", request.name, self._limits)
        validate.require(found)
        namespace = request.namespace or convert.DEFAULT_NAMESPACE
        async with self._gateway.reading() as reader:
            version = _read(reader, namespace, request.name, request.version)
        if version is None:
            number = f"version {request.version} of " if request.version else ""
            text = f"there is no {number}definition {validate.shown(request.name)} in namespace {namespace!r}"
            raise refuse(Reason.DEFINITION_NOT_FOUND, text, definition_name=request.name, namespace=namespace)
        return definition_service_pb2.GetDefinitionResponse(version=version)

    async def list_definitions(
        self, request: definition_service_pb2.ListDefinitionsRequest, context: Any
    ) -> definition_service_pb2.ListDefinitionsResponse:
        """See the contract."""
        validate.require(validate.name("namespace", request.namespace, self._limits, may_be_empty=True))
        count_max = pages.page_size(request.page_size, self._limits)
        namespace = request.namespace or convert.DEFAULT_NAMESPACE
        filters = ("definitions", namespace)
        behind = pages.position(filters, request.page_token)
        async with self._gateway.reading() as reader:
            prefix = keys.definition_head(namespace)
            versions: list[definition_pb2.DefinitionVersion] = []
            last, size_bytes = "", 0
            for key in reader.scan(prefix, after=prefix + behind.encode() if behind else b""):
                version = _read(reader, namespace, key[len(prefix) :].decode(), 0)
                assert version is not None, key
                size_bytes += version.ByteSize()
                if len(versions) == count_max or (versions and size_bytes > pages.PAGE_BYTES_MAX):
                    last = versions[-1].definition.name
                    break
                versions.append(version)
        return definition_service_pb2.ListDefinitionsResponse(
            versions=versions, next_page_token=pages.token(filters, last)
        )

    def _compile(self, namespace: str, message: definition_pb2.Definition) -> DefinitionBody | tuple[Violation, ...]:
        """What a job of this definition runs, or everything that is wrong with the request."""
        found = validate.name("namespace", namespace, self._limits, may_be_empty=True)
        body = definition.compile_definition(
            source(message), self._limits, message.SerializeToString(deterministic=True)
        )
        if isinstance(body, tuple):
            return (*found, *body)
        return found or body


def _violations(found: tuple[Violation, ...]) -> list[definition_service_pb2.Violation]:
    return [definition_service_pb2.Violation(field=one.field, description=one.description) for one in found]


def _detection(one: Detection) -> definition_service_pb2.DetectionLatency:
    return definition_service_pb2.DetectionLatency(
        step_id=one.step_id,
        part="" if one.part is None else one.part.name.lower(),
        trouble=one.trouble.name,
        within=convert.duration(one.within_ms),
        text=one.text,
    )


def _read(reader: Reading, namespace: str, name: str, number: int) -> definition_pb2.DefinitionVersion | None:
    """A stored version; 0 is the newest."""
    if not number:
        head = reader.get(keys.definition_head(namespace, name))
        if head is None:
            return None
        assert isinstance(head, rows.DefinitionHead)
        number = head.version
    record = reader.get(keys.definition(namespace, name, number))
    if record is None:
        return None
    assert isinstance(record, rows.DefinitionRecord)
    body = reader.get(keys.definition_body(record.hash))
    assert isinstance(body, rows.DefinitionBody)
    message = definition_pb2.Definition.FromString(body.source)
    return _version(namespace, message, number=number, hash_=record.hash, created_wall_ms=record.created_wall_ms)


def _version(
    namespace: str, message: definition_pb2.Definition, *, number: int, hash_: bytes, created_wall_ms: int
) -> definition_pb2.DefinitionVersion:
    return definition_pb2.DefinitionVersion(
        namespace=namespace,
        definition=message,
        version=number,
        hash=hash_.hex(),
        created_at=convert.timestamp(created_wall_ms),
    )


def source(message: definition_pb2.Definition) -> DefinitionSource:
    """A definition, inwards. Everything is taken as it comes; the rules tell what is wrong with it."""
    return DefinitionSource(
        name=message.name,
        steps=tuple(_step(step) for step in message.steps),
        output=message.output,
        description=message.description,
        deadline_ms=convert.duration_ms(message.deadline) if message.HasField("deadline") else None,
        on_deadline=int(message.on_deadline),
    )


def _step(step: definition_pb2.Step) -> StepSource:
    return StepSource(
        id=step.id,
        action=step.action,
        queue=step.queue,
        needs=tuple(step.needs),
        input=step.input,
        retry=_retry(step.retry),
        timeouts=_timeouts(step.timeouts),
        effect=int(step.effect),
        start=int(step.start),
        undo=_undo(step.undo) if step.HasField("undo") else None,
        on_unknown=int(step.on_unknown),
        verify=_verify(step.verify) if step.HasField("verify") else None,
        on_exhausted=int(step.on_exhausted),
        reassign=int(step.reassign),
        approval=int(step.approval),
    )


def _undo(undo: definition_pb2.Undo) -> UndoSource:
    return UndoSource(
        action=undo.action,
        retry=_retry(undo.retry),
        timeouts=_timeouts(undo.timeouts),
        queue=undo.queue,
        effect=int(undo.effect),
    )


def _verify(verify: definition_pb2.Verify) -> VerifySource:
    return VerifySource(
        action=verify.action, retry=_retry(verify.retry), timeouts=_timeouts(verify.timeouts), queue=verify.queue
    )


def _retry(retry: definition_pb2.RetryPolicy) -> RetrySource:
    return RetrySource(
        attempts_max=retry.attempts_max,
        initial_ms=convert.duration_ms(retry.initial) if retry.HasField("initial") else None,
        factor=retry.factor,
        cap_ms=convert.duration_ms(retry.cap) if retry.HasField("cap") else None,
        non_retryable_kinds=tuple(retry.non_retryable_kinds),
        time_ms_max=convert.duration_ms(retry.time_max) if retry.HasField("time_max") else None,
    )


def _timeouts(timeouts: definition_pb2.Timeouts) -> TimeoutsSource:
    return TimeoutsSource(
        start_to_close_ms=convert.duration_ms(timeouts.start_to_close) if timeouts.HasField("start_to_close") else None,
        queue_ms=convert.duration_ms(timeouts.queue) if timeouts.HasField("queue") else None,
        heartbeat_ms=convert.duration_ms(timeouts.heartbeat) if timeouts.HasField("heartbeat") else None,
        schedule_to_close_ms=(
            convert.duration_ms(timeouts.schedule_to_close) if timeouts.HasField("schedule_to_close") else None
        ),
    )
