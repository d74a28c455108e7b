"""Many incidents resolved in one call: found in slices, decided in slices, and bounded.

A filter means what it meant when somebody looked: he says up to which incident, and how many that were. So nobody
resolves what he has not seen, however many are opened meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from stepward.server.api import slices, supervision_messages, validate
from stepward.server.core import incident_lists, incidents
from stepward.server.core.commands import IncidentResolved, ResolveIncident
from stepward.server.core.rejections import Reason, Refused, Rejection, refuse
from stepward.v1 import common_pb2, supervision_service_pb2

if TYPE_CHECKING:
    from stepward.server.core.incident_lists import IncidentFilter
    from stepward.server.core.ledger_rows import Incident
    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading

# Incidents that one call resolves: a second's work, and a caller goes on with the rest.
RESOLVED_MAX: Final = 1_000
# Incidents that a filter may mean: a second's work to look at.
MATCHED_MAX: Final = 100_000
# Commands of one call that wait for a batch together, and the bytes of outputs in them.
_AT_ONCE_MAX: Final = 100
_BYTES_AT_ONCE_MAX: Final = 4 << 20
# Incidents, or refusals, that an answer shows.
SHOWN_MAX: Final = 20

# Nobody could decide at the moment, so nobody will about the next ones of this call either.
_NOT_NOW: Final = frozenset(
    {
        Reason.NO_LEADER,
        Reason.NOT_LEADER,
        Reason.COMMIT_UNKNOWN,
        Reason.NODE_DRAINING,
        Reason.OVERLOADED,
        Reason.DISK_FULL,
    }
)


class Matching:
    """Finds everything that a filter means. `found` has the newest first."""

    def __init__(self, wanted: IncidentFilter) -> None:
        self.found: list[int] = []
        self.first: list[supervision_service_pb2.Incident] = []
        self.newest_id = ""
        self._wanted = wanted
        self._last = 0

    def look_on(self, reader: Reading) -> bool:
        """Look at some more incidents; True when all are found, or as many as one filter may mean and one more."""
        slice_ = slices.Slice()
        for met in incident_lists.walk(reader, self._wanted, before=self._last):
            self._last = met.number
            if met.incident is not None:
                self._meet(met.number, met.incident)
                if len(self.found) > MATCHED_MAX:
                    return True
            if slice_.is_over:
                return False
        return True

    def _meet(self, number: int, incident: Incident) -> None:
        self.found.append(number)
        self.newest_id = self.newest_id or incidents.id_of(number, incident.job_id)
        if len(self.first) < SHOWN_MAX:
            self.first.append(supervision_messages.incident(number, incident))


async def match(gateway: Gateway, wanted: IncidentFilter) -> Matching:
    """Everything that a filter means.

    Raises:
        Refused: INVALID_ARGUMENT, when that is too much for one filter; NO_LEADER.
    """
    matching = Matching(wanted)
    await slices.look(gateway, common_pb2.CONSISTENCY_LINEARIZABLE, matching.look_on)
    if len(matching.found) > MATCHED_MAX:
        text = f"filter means more than {MATCHED_MAX} incidents; narrow it, by the definition or the time for example"
        raise Refused(Rejection(Reason.INVALID_ARGUMENT, text))
    return matching


def require_count(matched: int, expected: int) -> None:
    """Refuse to do to others what was meant for some.

    Raises:
        Refused: INCIDENT_COUNT.
    """
    if matched != expected:
        text = f"the filter means {matched} open incidents, and {expected} were expected; nothing was done: look again"
        raise refuse(Reason.INCIDENT_COUNT, text, matched=str(matched), expected=str(expected))


class Resolving:
    """What becomes of incidents that are resolved with one verb. `reached`: so many were tried."""

    def __init__(self, gateway: Gateway) -> None:
        self.resolved = 0
        self.already = 0
        self.refused = 0
        self.reached = 0
        self.refusals: list[supervision_service_pb2.ResolveRefusal] = []
        self._gateway = gateway

    async def resolve(self, wanted: list[tuple[str, ResolveIncident]]) -> None:
        """Resolve some, each granted or refused on its own, in order; ends early when nobody can decide."""
        size_bytes = max((len(command.output.data) for _, command in wanted), default=0)
        at_once = max(1, min(_AT_ONCE_MAX, _BYTES_AT_ONCE_MAX // max(1, size_bytes)))
        for begin in range(0, len(wanted), at_once):
            some = wanted[begin : begin + at_once]
            answers = await asyncio.gather(*(self._decide(command) for _, command in some))
            for (incident_id, _), answer in zip(some, answers, strict=True):
                self._note(incident_id, answer)
            if any(isinstance(answer, Rejection) and answer.reason in _NOT_NOW for answer in answers):
                return

    async def _decide(self, command: ResolveIncident) -> IncidentResolved | Rejection:
        try:
            return await self._gateway.call(command, IncidentResolved)
        except Refused as refused:
            return refused.rejection

    def _note(self, incident_id: str, answer: IncidentResolved | Rejection) -> None:
        self.reached += 1
        if isinstance(answer, Rejection):
            self.refuse(incident_id, answer)
        elif answer.already:
            self.already += 1
        else:
            self.resolved += 1

    def refuse(self, incident_id: str, why: Rejection) -> None:
        """Count one that stays as it is."""
        self.refused += 1
        if len(self.refusals) < SHOWN_MAX:
            self.refusals.append(
                supervision_service_pb2.ResolveRefusal(
                    incident_id=incident_id, reason=why.reason.value, message=why.message
                )
            )


def not_found(incident_id: str) -> Refused:
    """There is no such incident."""
    text = f"there is no incident {validate.shown(incident_id)}, or it was removed with its job"
    return refuse(Reason.INCIDENT_NOT_FOUND, text, incident_id=incident_id)
