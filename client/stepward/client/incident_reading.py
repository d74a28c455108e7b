"""Reads what the contract says of incidents and of the ledger into values, and says which of them are wanted."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from stepward.client import reading
from stepward.client.incident_values import (
    Incident,
    IncidentPreview,
    IncidentState,
    LedgerEntry,
    Remedy,
    RemedyBy,
    ResolvedIncidents,
    ResolveRefusal,
    Trouble,
)
from stepward.client.job_filter import aware
from stepward.v1 import supervision_service_pb2

if TYPE_CHECKING:
    from stepward.client.incident_values import WantedEntries, WantedIncidents

E = TypeVar("E", bound=StrEnum)


def _member(enum: type[E], wire: Any, prefix: str, number: int) -> E:
    """The member of a number, UNSPECIFIED for one that is newer than this client."""
    name = wire.Name(number).removeprefix(prefix) if number in wire.values() else "UNSPECIFIED"
    return enum(name if name in enum.__members__ else "UNSPECIFIED")


def trouble(number: int) -> Trouble:
    """What went wrong."""
    return _member(Trouble, supervision_service_pb2.Trouble, "TROUBLE_", number)


def remedy(number: int) -> Remedy:
    """What was decided about it."""
    return _member(Remedy, supervision_service_pb2.Remedy, "REMEDY_", number)


def remedy_by(number: int) -> RemedyBy:
    """What led to it."""
    return _member(RemedyBy, supervision_service_pb2.RemedyBy, "REMEDY_BY_", number)


def incident(message: supervision_service_pb2.Incident) -> Incident:
    """An incident."""
    return Incident(
        incident_id=message.incident_id,
        state=_member(IncidentState, supervision_service_pb2.IncidentState, "INCIDENT_STATE_", message.state),
        opened_at=reading.instant(message, "opened_at"),
        definition_name=message.definition_name,
        definition_version=message.definition_version,
        job_id=message.job_id,
        step_id=message.step_id,
        trouble=trouble(message.trouble),
        proposed=remedy(message.proposed),
        failure=reading.failure(message),
        how=remedy(message.how),
        by=remedy_by(message.by),
        actor=message.actor,
        reason=message.reason,
        resolved_at=reading.instant(message, "resolved_at"),
        message=message,
    )


def preview(message: supervision_service_pb2.ResolveIncidentsResponse) -> IncidentPreview:
    """What a filter means."""
    return IncidentPreview(matched=message.matched, as_of=message.as_of, first=tuple(map(incident, message.first)))


def resolved(message: supervision_service_pb2.ResolveIncidentsResponse) -> ResolvedIncidents:
    """What became of incidents."""
    return ResolvedIncidents(
        resolved=message.resolved,
        already=message.already,
        refused=message.refused,
        refusals=tuple(
            ResolveRefusal(incident_id=one.incident_id, reason=one.reason, message=one.message)
            for one in message.refusals
        ),
        left=message.left,
        message=message,
    )


def entry(message: supervision_service_pb2.LedgerEntry) -> LedgerEntry:
    """An entry of the ledger."""
    return LedgerEntry(
        serial=message.serial,
        at=reading.instant(message, "at"),
        epoch=message.epoch,
        job_id=message.job_id,
        step_id=message.step_id,
        part=message.part,
        trouble=trouble(message.trouble),
        remedy=remedy(message.remedy),
        rule=message.rule,
        proposed=message.proposed,
        by=remedy_by(message.by),
        actor=message.actor,
        reason=message.reason,
        definition_name=message.definition_name,
        definition_version=message.definition_version,
        attempts=message.attempts,
        lease_losses=message.lease_losses,
        token=message.token,
        session_id=message.session_id,
        failure=message.failure,
        overdue=reading.span(message, "overdue"),
        silent=reading.span(message, "silent"),
        step_before=reading.step_state(message.step_before),
        step_after=reading.step_state(message.step_after),
        job_before=reading.job_state(message.job_before),
        job_after=reading.job_state(message.job_after),
        message=message,
    )


def incident_filter(
    wanted: WantedIncidents, *, state: IncidentState | str = IncidentState.UNSPECIFIED
) -> supervision_service_pb2.IncidentFilter:
    """As the contract says it.

    Raises:
        ValueError: No such state or trouble, or a time without a zone.
    """
    found = supervision_service_pb2.IncidentFilter(
        state=supervision_service_pb2.IncidentState.Value(f"INCIDENT_STATE_{IncidentState(str(state).upper())}"),
        definition_name=wanted.get("definition", ""),
        step_id=wanted.get("step", ""),
        job_id=wanted.get("job", ""),
        trouble=_trouble_number(wanted.get("trouble", "")),
        labels=dict(wanted.get("labels", {})),
        proposed_only=wanted.get("proposed", False),
    )
    since, until = wanted.get("since"), wanted.get("until")
    if since is not None:
        found.opened_from.FromDatetime(aware("since", since))
    if until is not None:
        found.opened_before.FromDatetime(aware("until", until))
    return found


def ledger_filter(wanted: WantedEntries) -> supervision_service_pb2.LedgerFilter:
    """As the contract says it.

    Raises:
        ValueError: No such trouble, remedy or cause, or a time without a zone.
    """
    said_remedy, said_by = wanted.get("remedy", ""), wanted.get("by", "")
    found = supervision_service_pb2.LedgerFilter(
        job_id=wanted.get("job", ""),
        epoch=wanted.get("epoch", 0),
        trouble=_trouble_number(wanted.get("trouble", "")),
        remedy=supervision_service_pb2.Remedy.Value(f"REMEDY_{Remedy(said_remedy or 'UNSPECIFIED')}"),
        by=supervision_service_pb2.RemedyBy.Value(f"REMEDY_BY_{RemedyBy(said_by or 'UNSPECIFIED')}"),
        definition_name=wanted.get("definition", ""),
    )
    since, until = wanted.get("since"), wanted.get("until")
    if since is not None:
        # A word of Python, so no attribute that could be written out.
        getattr(found, "from").FromDatetime(aware("since", since))
    if until is not None:
        found.before.FromDatetime(aware("until", until))
    return found


def _trouble_number(said: Trouble | str) -> supervision_service_pb2.Trouble.ValueType:
    return supervision_service_pb2.Trouble.Value(f"TROUBLE_{Trouble(said or 'UNSPECIFIED')}")
