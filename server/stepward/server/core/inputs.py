"""What a handler is given, and what a job gives: payloads put together from others, whose bytes stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stepward.server.core import definition, keys, mapping, rows
from stepward.server.core.rows import Failure, Payload, StepState

if TYPE_CHECKING:
    from stepward.server.core.rows import DefinitionBody, Job


class Rows(Protocol):
    """The part of a reader, or of a draft, that looks rows up."""

    def get(self, key: bytes) -> rows.Row | None:
        """The row under `key`, decoded."""
        ...


def _output(reader: Rows, job_id: str, ordinal: int) -> Payload | None:
    row = reader.get(keys.output(job_id, ordinal))
    assert row is None or isinstance(row, rows.Output), row
    return None if row is None else row.payload
