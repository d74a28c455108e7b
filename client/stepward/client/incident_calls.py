"""The calls about incidents and the ledger; as `calls`, and beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepward.client import incident_reading, payloads
from stepward.client.calls import GET_INCIDENT, LIST_INCIDENTS, LIST_LEDGER, RESOLVE_INCIDENTS, Call, Page
from stepward.client.incident_values import IncidentState, Resolution
from stepward.v1 import common_pb2, supervision_service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepward.client.incident_values import (
        Incident,
        IncidentPreview,
        LedgerEntry,
        ResolvedIncidents,
        WantedEntries,
        WantedIncidents,
    )


def list_incidents(
    wanted: WantedIncidents, *, state: IncidentState | str, namespace: str, page_size: int, page_token: str
) -> Call[Page[Incident]]:
    """Read a page of incidents, the newest first."""
    request = supervision_service_pb2.ListIncidentsRequest(
        namespace=namespace,
        filter=incident_reading.incident_filter(wanted, state=state),
        page_size=page_size,
        page_token=page_token,
    )
    return Call(
        LIST_INCIDENTS,
        request,
        lambda answer: Page(tuple(map(incident_reading.incident, answer.incidents)), answer.next_page_token),
    )


def get_incident(incident_id: str) -> Call[Incident]:
    """Read one incident."""
    request = supervision_service_pb2.GetIncidentRequest(incident_id=incident_id)
    return Call(GET_INCIDENT, request, lambda answer: incident_reading.incident(answer.incident))


def preview_incidents(wanted: WantedIncidents, *, namespace: str) -> Call[IncidentPreview]:
    """Ask what a filter means, and do nothing."""
    request = supervision_service_pb2.ResolveIncidentsRequest(
        namespace=namespace, filter=incident_reading.incident_filter(wanted), preview=True
    )
    return Call(RESOLVE_INCIDENTS, request, incident_reading.preview)


def resolve_incidents(
    incident_ids: Iterable[str],
    resolution: Resolution | str,
    *,
    output: Any,
    undone: bool,
    reason: str,
    actor: str,
) -> Call[ResolvedIncidents]:
    """Resolve those that are named."""
    request = _resolving(resolution, output=output, undone=undone, reason=reason, actor=actor)
    request.incident_ids.extend(incident_ids)
    return Call(RESOLVE_INCIDENTS, request, incident_reading.resolved)


def resolve_matching(
    resolution: Resolution | str,
    wanted: WantedIncidents,
    *,
    expected: int,
    as_of: str,
    output: Any,
    undone: bool,
    reason: str,
    actor: str,
    namespace: str,
) -> Call[ResolvedIncidents]:
    """Resolve those that a filter means, some in each call."""
    request = _resolving(resolution, output=output, undone=undone, reason=reason, actor=actor)
    request.namespace = namespace
    request.filter.CopyFrom(incident_reading.incident_filter(wanted))
    request.expected_count = expected
    request.as_of = as_of
    return Call(RESOLVE_INCIDENTS, request, incident_reading.resolved)


def _resolving(
    resolution: Resolution | str, *, output: Any, undone: bool, reason: str, actor: str
) -> supervision_service_pb2.ResolveIncidentsRequest:
    encoded = payloads.encode(output)
    return supervision_service_pb2.ResolveIncidentsRequest(
        resolution=supervision_service_pb2.Resolution.Value(f"RESOLUTION_{Resolution(str(resolution).upper())}"),
        output=common_pb2.Payload(data=encoded.data, encoding=encoded.encoding) if encoded else None,
        undone=undone,
        reason=reason,
        actor=actor,
    )


def list_ledger(
    wanted: WantedEntries, *, oldest_first: bool, namespace: str, page_size: int, page_token: str
) -> Call[Page[LedgerEntry]]:
    """Read a page of the ledger."""
    request = supervision_service_pb2.ListLedgerRequest(
        namespace=namespace,
        filter=incident_reading.ledger_filter(wanted),
        oldest_first=oldest_first,
        page_size=page_size,
        page_token=page_token,
    )
    return Call(
        LIST_LEDGER,
        request,
        lambda answer: Page(tuple(map(incident_reading.entry, answer.entries)), answer.next_page_token),
    )
