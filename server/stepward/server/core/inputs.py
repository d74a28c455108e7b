"""What a handler is given, and what a job gives: payloads put together from others, whose bytes stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stepward.server.core import json_text, keys, mapping, ordinals, rows
from stepward.server.core.mapping import MappingError
from stepward.server.core.rows import Failure, Payload
from stepward.server.core.template import compile_template

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import DefinitionBody, Job
    from stepward.server.core.template import Source

_NULL = Payload(b"null")


class Rows(Protocol):
    """The part of a reader, or of a draft, that looks rows up."""

    def get(self, key: bytes) -> rows.Row | None:
        """The row under `key`, decoded."""
        ...


def step_input(reader: Rows, job_id: str, job: Job, body: DefinitionBody, ordinal: int, limits: Limits) -> Payload:
    """The input of a step's action.

    Raises:
        MappingError: A reference leads nowhere.
    """
    template = body.steps[ordinal].input
    if not template:
        return job.input
    return mapping.render(compile_template(template), _lookup(reader, job_id, job, body), limits)


def undo_input(reader: Rows, job_id: str, job: Job, body: DefinitionBody, ordinal: int, limits: Limits) -> Payload:
    """The input of a step's undo: what the step got, what it gave (or null), whether that is known, and its keys."""
    given = step_input(reader, job_id, job, body, ordinal, limits)
    row = reader.get(keys.output(job_id, ordinal))
    assert row is None or isinstance(row, rows.Output), row
    output = None if row is None or row.stand_in else row.payload
    outcome = b'"unknown"' if output is None else b'"succeeded"'
    step = reader.get(keys.step(job_id, ordinal))
    assert isinstance(step, rows.Step), (job_id, ordinal)
    used = [idempotency_key(job_id, body, ordinal, each) for each in range(1, step.generation + 1)]
    parts = (
        *(b'{"input":', _as_json(given)),
        *(b',"output":', _as_json(output or _NULL)),
        *(b',"outcome":', outcome),
        *(b',"idempotency_keys":[', b",".join(map(json_text.encode_string, used)), b"]}"),
    )
    return Payload(b"".join(parts))


def verify_input(reader: Rows, job_id: str, job: Job, body: DefinitionBody, ordinal: int, limits: Limits) -> Payload:
    """The input of the question what became of a step: what the step got, and under which key."""
    given = step_input(reader, job_id, job, body, ordinal, limits)
    step = reader.get(keys.step(job_id, ordinal))
    assert isinstance(step, rows.Step), (job_id, ordinal)
    key = json_text.encode_string(idempotency_key(job_id, body, ordinal, step.generation))
    return Payload(b"".join((b'{"input":', _as_json(given), b',"idempotency_key":', key, b"}")))


def idempotency_key(job_id: str, body: DefinitionBody, ordinal: int, generation: int) -> str:
    """The key of a step's action, the same for all attempts of a generation."""
    return f"{job_id}/{body.steps[ordinal].id}/{generation}"


def _as_json(payload: Payload) -> bytes:
    """A payload as a member of a JSON object. One that is not JSON cannot be one; its place says so."""
    if payload.encoding not in json_text.ENCODINGS:
        return json_text.encode_string(f"{len(payload.data)} bytes of {payload.encoding}")
    return payload.data or b"null"


def job_output(
    reader: Rows, job_id: str, job: Job, body: DefinitionBody, limits: Limits
) -> tuple[Payload | None, Failure | None]:
    """What a completed job gives, or why that cannot be put together."""
    try:
        return mapping.render_output(body, _lookup(reader, job_id, job, body), limits), None
    except MappingError as error:
        return None, Failure(error.kind, error.message, retryable=False)


def _lookup(reader: Rows, job_id: str, job: Job, body: DefinitionBody) -> Callable[[Source], Payload]:
    def find(source: Source) -> Payload:
        if not source.step_id:
            return job.input
        ordinal = ordinals.places(job.definition_hash, body).by_id.get(source.step_id)
        return _NULL if ordinal is None else _output(reader, job_id, ordinal) or _NULL

    return find


def _output(reader: Rows, job_id: str, ordinal: int) -> Payload | None:
    row = reader.get(keys.output(job_id, ordinal))
    assert row is None or isinstance(row, rows.Output), row
    return None if row is None else row.payload
