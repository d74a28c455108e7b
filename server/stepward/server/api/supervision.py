"""SupervisionService: what waits for people, and what was done without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.api import lookup, pages, resolving, slices, validate
from stepward.server.api import supervision_messages as messages
from stepward.server.api.incident_lists import IncidentPage, LedgerPage, parse_number, parse_place, place_text
from stepward.server.core import incidents
from stepward.server.core.commands import ResolveIncident
from stepward.server.core.parts import Resolution
from stepward.server.core.rejections import Reason, Refused, Violation
from stepward.server.core.rows import NO_OUTPUT, Payload
from stepward.v1 import common_pb2, supervision_service_pb2

if TYPE_CHECKING:
    from typing import Any

    from stepward.server.core.limits import Limits
    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading


class SupervisionService:
    """See `stepward.v1.SupervisionService`."""

    def __init__(self, gateway: Gateway, limits: Limits) -> None:
        self._gateway = gateway
        self._limits = limits

    async def list_incidents(
        self, request: supervision_service_pb2.ListIncidentsRequest, context: Any
    ) -> supervision_service_pb2.ListIncidentsResponse:
        """See the contract."""
        validate.require(
            [
                *validate.name("namespace", request.namespace, self._limits, may_be_empty=True),
                *messages.incident_violations("filter", request.filter, self._limits),
            ]
        )
        wanted = messages.incident_filter(request.namespace, request.filter)
        count_max = pages.page_size(request.page_size, self._limits)
        page = IncidentPage(wanted, count_max, before=parse_number(pages.position(wanted, request.page_token)))
        _, staleness = await slices.look(self._gateway, request.consistency, page.look_on)
        return supervision_service_pb2.ListIncidentsResponse(
            incidents=page.incidents,
            next_page_token=pages.token(wanted, "" if page.ended else str(page.last)),
            open=page.open,
            staleness=staleness,
        )

    async def get_incident(
        self, request: supervision_service_pb2.GetIncidentRequest, context: Any
    ) -> supervision_service_pb2.GetIncidentResponse:
        """See the contract."""

        def look(reader: Reading) -> supervision_service_pb2.Incident:
            number = messages.incident_number(request.incident_id)
            found = incidents.find(reader, number)
            if found is None or incidents.id_of(number, found.job_id) != request.incident_id:
                raise resolving.not_found(request.incident_id)
            return messages.incident(number, found)

        incident, staleness = await lookup.read(self._gateway, request.consistency, look)
        return supervision_service_pb2.GetIncidentResponse(incident=incident, staleness=staleness)

    async def resolve_incidents(
        self, request: supervision_service_pb2.ResolveIncidentsRequest, context: Any
    ) -> supervision_service_pb2.ResolveIncidentsResponse:
        """See the contract."""
        self._require_sound(request)
        if not request.HasField("filter"):
            return await self._resolve_named(request)
        as_of = messages.incident_number(request.as_of) if request.as_of else None
        wanted = messages.incident_filter(request.namespace, request.filter, number_max=as_of)
        matching = await resolving.match(self._gateway, wanted)
        matched = len(matching.found)
        if request.preview:
            return supervision_service_pb2.ResolveIncidentsResponse(
                matched=matched, as_of=matching.newest_id, first=matching.first
            )
        resolving.require_count(matched, request.expected_count)
        # The oldest first: they have waited longest.
        chosen = matching.found[::-1][: resolving.RESOLVED_MAX]
        shard = matching.newest_id.partition("-")[0]
        done = resolving.Resolving(self._gateway)
        await done.resolve([(f"{shard}-{number}", self._command(number, request)) for number in chosen])
        return _answer(done, matched=matched, left=matched - done.reached)

    async def _resolve_named(
        self, request: supervision_service_pb2.ResolveIncidentsRequest
    ) -> supervision_service_pb2.ResolveIncidentsResponse:
        done = resolving.Resolving(self._gateway)
        ids = list(dict.fromkeys(request.incident_ids))

        def look(reader: Reading) -> set[str]:
            known = {}
            for incident_id in ids:
                number = messages.incident_number(incident_id)
                known[incident_id] = (number, incidents.find(reader, number))
            return {
                incident_id
                for incident_id, (number, row) in known.items()
                if row is not None and incidents.id_of(number, row.job_id) == incident_id
            }

        found, _ = await lookup.read(self._gateway, common_pb2.CONSISTENCY_LINEARIZABLE, look)
        for incident_id in ids:
            if incident_id not in found:
                done.refuse(incident_id, resolving.not_found(incident_id).rejection)
        wanted = [
            (incident_id, self._command(messages.incident_number(incident_id), request))
            for incident_id in ids
            if incident_id in found
        ]
        await done.resolve(wanted)
        return _answer(done, matched=0, left=len(wanted) - done.reached)

    def _command(self, number: int, request: supervision_service_pb2.ResolveIncidentsRequest) -> ResolveIncident:
        output = Payload(request.output.data, request.output.encoding) if request.HasField("output") else NO_OUTPUT
        return ResolveIncident(
            number, Resolution(request.resolution), output, request.undone, request.reason, request.actor
        )

    def _require_sound(self, request: supervision_service_pb2.ResolveIncidentsRequest) -> None:
        """Refuse what can never be granted, all of it at once."""
        found = [*self._scope_violations(request), *validate.verb(request.reason, request.actor, self._limits)]
        too_large = validate.payload_size("output", request.output, self._limits)
        found += too_large or validate.payload("output", request.output, self._limits)
        if not request.preview:
            found += validate.between("resolution", request.resolution, min(Resolution), max(Resolution))
            if not request.reason:
                found.append(Violation("reason", "is empty; say why, for the history and the ledger"))
        if request.resolution != supervision_service_pb2.RESOLUTION_SKIP:
            text = "is only for SKIP; leave it out"
            found += [Violation("output", text)] if request.HasField("output") else []
            found += [Violation("undone", text)] if request.undone else []
        if found:
            raise Refused(validate.refusal(found, Reason.PAYLOAD_TOO_LARGE if too_large else Reason.INVALID_ARGUMENT))

    def _scope_violations(self, request: supervision_service_pb2.ResolveIncidentsRequest) -> list[Violation]:
        """What is wrong with which incidents are meant."""
        named, filtered = bool(request.incident_ids), request.HasField("filter")
        found = [*validate.between("incident_ids", len(request.incident_ids), 0, resolving.RESOLVED_MAX, "entries")]
        found += validate.name("namespace", request.namespace, self._limits, may_be_empty=True)
        found += messages.incident_violations("filter", request.filter, self._limits)
        if named is filtered:
            found.append(Violation("incident_ids", "and filter: exactly one of them says which are meant"))
        if request.filter.state not in (
            supervision_service_pb2.INCIDENT_STATE_UNSPECIFIED,
            supervision_service_pb2.INCIDENT_STATE_OPEN,
        ):
            found.append(Violation("filter.state", "must be OPEN or unspecified; what is resolved stays as it is"))
        if not filtered:
            text = "is only for a filter; leave it out"
            given = {"preview": request.preview, "expected_count": request.expected_count, "as_of": request.as_of}
            found += [Violation(field, text) for field, value in given.items() if value]
        elif request.as_of and not messages.incident_number(request.as_of):
            found.append(Violation("as_of", f"is {validate.shown(request.as_of)}, which names no incident"))
        return found

    async def list_ledger(
        self, request: supervision_service_pb2.ListLedgerRequest, context: Any
    ) -> supervision_service_pb2.ListLedgerResponse:
        """See the contract."""
        validate.require(
            [
                *validate.name("namespace", request.namespace, self._limits, may_be_empty=True),
                *messages.ledger_violations(request.filter, self._limits),
            ]
        )
        wanted = messages.ledger_filter(request.namespace, request.filter)
        listed = (wanted, request.oldest_first)
        count_max = pages.page_size(request.page_size, self._limits)
        behind = parse_place(pages.position(listed, request.page_token))
        page = LedgerPage(wanted, count_max, behind=behind, oldest_first=request.oldest_first)
        _, staleness = await slices.look(self._gateway, request.consistency, page.look_on)
        return supervision_service_pb2.ListLedgerResponse(
            entries=page.entries,
            next_page_token=pages.token(listed, "" if page.ended else place_text(page.last)),
            recorded=page.recorded,
            staleness=staleness,
        )


def _answer(done: resolving.Resolving, *, matched: int, left: int) -> supervision_service_pb2.ResolveIncidentsResponse:
    return supervision_service_pb2.ResolveIncidentsResponse(
        matched=matched,
        resolved=done.resolved,
        already=done.already,
        refused=done.refused,
        refusals=done.refusals,
        left=left,
    )
