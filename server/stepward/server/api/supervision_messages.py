"""Incidents and entries of the ledger as the contract says them, and the filters that it asks for them with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stepward.server.api import convert, validate
from stepward.server.api.job_lists import bound_ms
from stepward.server.core import incidents, keys
from stepward.server.core.incident_lists import IncidentFilter, LedgerFilter
from stepward.server.core.parts import By, Part, Remedy, Trouble
from stepward.server.core.rejections import Violation
from stepward.server.core.rows import Clock
from stepward.server.job_ids import is_job_id
from stepward.v1 import supervision_service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.duration_pb2 import Duration

    from stepward.server.core.ledger_rows import Incident, LedgerEntry
    from stepward.server.core.limits import Limits

_OPEN: Final = supervision_service_pb2.INCIDENT_STATE_OPEN
_RESOLVED: Final = supervision_service_pb2.INCIDENT_STATE_RESOLVED
_STATES: Final = {
    supervision_service_pb2.INCIDENT_STATE_UNSPECIFIED: True,
    _OPEN: True,
    _RESOLVED: False,
    supervision_service_pb2.INCIDENT_STATE_ALL: None,
}
_parse_id = re.compile(r"i[0-9]{1,5}-([1-9][0-9]{0,18})\Z").match


def incident_number(incident_id: str) -> int:
    """The number in the name of an incident; 0 for what cannot be one."""
    found = _parse_id(incident_id)
    return 0 if found is None else int(found[1])


def incident(number: int, row: Incident) -> supervision_service_pb2.Incident:
    """An incident, outwards."""
    message = supervision_service_pb2.Incident(
        incident_id=incidents.id_of(number, row.job_id),
        state=_RESOLVED if row.resolved_wall_ms else _OPEN,
        opened_at=convert.timestamp(row.opened_wall_ms),
        namespace=row.namespace,
        definition_name=row.definition_name,
        definition_version=row.definition_version,
        job_id=row.job_id,
        step_id=row.step_id,
        trouble=int(row.trouble),  # type: ignore[arg-type]  # the contract's numbers, held to it by a test
        proposed=int(row.proposed),  # type: ignore[arg-type]  # as above
        failure=None if row.failure is None else convert.failure(row.failure),
    )
    if row.resolved_wall_ms:
        message.how = int(row.how)  # type: ignore[assignment]  # as above
        message.by = int(row.by or 0)  # type: ignore[assignment]  # as above
        message.actor = row.actor
        message.reason = row.reason
        message.resolved_at.CopyFrom(convert.timestamp(row.resolved_wall_ms))
    return message


def entry(key: bytes, row: LedgerEntry) -> supervision_service_pb2.LedgerEntry:
    """An entry of the ledger, outwards."""
    known = row.evidence
    return supervision_service_pb2.LedgerEntry(
        serial=row.serial,
        at=convert.timestamp(row.wall_ms),
        epoch=row.epoch,
        revision=keys.parse_ledger(key)[0],
        namespace=row.namespace,
        definition_name=row.definition_name,
        definition_version=row.definition_version,
        job_id=row.job_id,
        step_id=row.step_id,
        part="" if row.part is None else Part(row.part).name.lower(),
        trouble=int(row.trouble),  # type: ignore[arg-type]  # the contract's numbers, held to it by a test
        remedy=int(row.remedy),  # type: ignore[arg-type]  # as above
        rule=row.rule,
        proposed=row.proposed,
        by=int(row.by),  # type: ignore[arg-type]  # as above
        actor=row.actor,
        reason=row.reason,
        attempts=known.attempts,
        lease_losses=known.lease_losses,
        token=known.token,
        session_id=known.session_id,
        failure=known.failure,
        overdue=_since(row, known.due_clock, known.due_at_ms),
        silent=_since(row, known.heard_clock, known.heard_at_ms),
        step_before=int(row.step_before or 0),  # type: ignore[arg-type]  # as above
        step_after=int(row.step_after or 0),  # type: ignore[arg-type]  # as above
        job_before=int(row.job_before),  # type: ignore[arg-type]  # as above
        job_after=int(row.job_after),  # type: ignore[arg-type]  # as above
    )


def _since(row: LedgerEntry, clock: Clock, at_ms: int) -> Duration | None:
    """How long an instant had passed when a remedy was decided; None when it had not, or there is none."""
    now_ms = row.led_ms if clock is Clock.LED else row.log_ms
    return None if clock is Clock.NONE or at_ms > now_ms else convert.duration(now_ms - at_ms)


def incident_violations(
    field: str, asked: supervision_service_pb2.IncidentFilter, limits: Limits
) -> Iterator[Violation]:
    """What is wrong with a filter of incidents."""
    yield from validate.between(f"{field}.state", asked.state, min(_STATES), max(_STATES))
    yield from validate.name(f"{field}.definition_name", asked.definition_name, limits, may_be_empty=True)
    yield from validate.name(f"{field}.step_id", asked.step_id, limits, may_be_empty=True)
    yield from _job_id(f"{field}.job_id", asked.job_id)
    yield from validate.between(f"{field}.trouble", asked.trouble, 0, max(Trouble))
    yield from validate.labels(f"{field}.labels", asked.labels, limits)
    if asked.HasField("opened_from"):
        yield from validate.timestamp(f"{field}.opened_from", asked.opened_from)
    if asked.HasField("opened_before"):
        yield from validate.timestamp(f"{field}.opened_before", asked.opened_before)


def incident_filter(
    namespace: str, asked: supervision_service_pb2.IncidentFilter, *, number_max: int | None = None
) -> IncidentFilter:
    """Which incidents are asked for, by a filter that is known to be sound."""
    return IncidentFilter(
        namespace=namespace or convert.DEFAULT_NAMESPACE,
        is_open=_STATES[asked.state],
        definition_name=asked.definition_name,
        step_id=asked.step_id,
        job_id=asked.job_id,
        trouble=Trouble(asked.trouble) if asked.trouble else None,
        opened_from_wall_ms=bound_ms(asked.opened_from) if asked.HasField("opened_from") else None,
        opened_before_wall_ms=bound_ms(asked.opened_before) if asked.HasField("opened_before") else None,
        labels=tuple(sorted(asked.labels.items())),
        proposed_only=asked.proposed_only,
        number_max=number_max,
    )


def ledger_violations(asked: supervision_service_pb2.LedgerFilter, limits: Limits) -> Iterator[Violation]:
    """What is wrong with a filter of the ledger."""
    yield from _job_id("filter.job_id", asked.job_id)
    yield from validate.between("filter.trouble", asked.trouble, 0, max(Trouble))
    yield from validate.between("filter.remedy", asked.remedy, 0, max(Remedy))
    yield from validate.between("filter.by", asked.by, 0, max(By))
    yield from validate.name("filter.definition_name", asked.definition_name, limits, may_be_empty=True)
    if asked.HasField("from"):
        yield from validate.timestamp("filter.from", getattr(asked, "from"))
    if asked.HasField("before"):
        yield from validate.timestamp("filter.before", asked.before)


def ledger_filter(namespace: str, asked: supervision_service_pb2.LedgerFilter) -> LedgerFilter:
    """Which entries are asked for, by a filter that is known to be sound."""
    return LedgerFilter(
        namespace=namespace or convert.DEFAULT_NAMESPACE,
        job_id=asked.job_id,
        epoch=asked.epoch,
        trouble=Trouble(asked.trouble) if asked.trouble else None,
        remedy=Remedy(asked.remedy) if asked.remedy else None,
        by=By(asked.by) if asked.by else None,
        definition_name=asked.definition_name,
        from_wall_ms=bound_ms(getattr(asked, "from")) if asked.HasField("from") else None,
        before_wall_ms=bound_ms(asked.before) if asked.HasField("before") else None,
    )


def _job_id(field: str, job_id: str) -> tuple[Violation, ...]:
    if not job_id or is_job_id(job_id):
        return ()
    return (Violation(field, f"is {validate.shown(job_id)}, which cannot be the id of a job"),)
