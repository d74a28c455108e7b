"""What both clients do about incidents, here for asyncio. `AsyncClient` has these methods, too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from stepward.client import calls, incident_calls
from stepward.client.incident_values import IncidentState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from stepward.client.calls import Call, Page
    from stepward.client.incident_values import (
        Incident,
        IncidentPreview,
        LedgerEntry,
        Resolution,
        ResolvedIncidents,
        WantedEntries,
        WantedIncidents,
    )

V = TypeVar("V")


class AsyncIncidents(ABC):
    """Lists incidents, resolves them, and reads the ledger."""

    namespace: str

    @abstractmethod
    async def _perform(self, call: Call[V]) -> V:
        """Carry out a call."""

    def incidents(
        self,
        *,
        state: IncidentState | str = IncidentState.OPEN,
        limit: int | None = None,
        page_size: int = 0,
        namespace: str | None = None,
        **wanted: Unpack[WantedIncidents],
    ) -> AsyncIterator[Incident]:
        """Read incidents, the newest first, page by page as they are taken.

        Args:
            state: "OPEN", "RESOLVED" or "ALL".
            limit: How many at most. None: all.
            page_size: How many a call reads. 0: the server's default.
            namespace: Where their jobs live.
            **wanted: Which ones; all that is said must hold.
        """

        async def page(token: str, size: int) -> Page[Incident]:
            return await self._perform(
                incident_calls.list_incidents(
                    wanted, state=state, namespace=namespace or self.namespace, page_size=size, page_token=token
                )
            )

        return calls.async_pages(page, limit=limit, page_size=page_size)

    async def incident(self, incident_id: str) -> Incident:
        """Read one incident.

        Raises:
            IncidentNotFound: There is none, or it was removed with its job.
        """
        return await self._perform(incident_calls.get_incident(incident_id))

    async def preview_incidents(
        self, *, namespace: str | None = None, **wanted: Unpack[WantedIncidents]
    ) -> IncidentPreview:
        """Ask how many open incidents a filter means, and which the newest of them are; nothing is done."""
        return await self._perform(incident_calls.preview_incidents(wanted, namespace=namespace or self.namespace))

    async def resolve_incidents(
        self,
        incident_ids: Iterable[str],
        resolution: Resolution | str,
        *,
        reason: str,
        output: Any = None,
        undone: bool = False,
        actor: str = "",
    ) -> ResolvedIncidents:
        """Resolve the incidents that are named, at most 1,000, each granted or refused on its own.

        Args:
            incident_ids: Which ones. What was resolved before stays as it is.
            resolution: "RETRY", "SKIP", "COMPENSATE", "FAIL" or "APPROVE".
            reason: Why, for the history and the ledger.
            output: For SKIP: what stands in place of the step's output. None: null.
            undone: For SKIP of an undo: whether the step was undone by other means.
            actor: Who acts, for both.
        """
        call = incident_calls.resolve_incidents(
            incident_ids, resolution, output=output, undone=undone, reason=reason, actor=actor
        )
        return await self._perform(call)

    async def resolve_matching(
        self,
        resolution: Resolution | str,
        *,
        expected: int,
        reason: str,
        as_of: str = "",
        output: Any = None,
        undone: bool = False,
        actor: str = "",
        namespace: str | None = None,
        **wanted: Unpack[WantedIncidents],
    ) -> ResolvedIncidents:
        """Resolve the open incidents that a filter means, at most 1,000 in one call.

        What it means is to be looked at first (`preview_incidents`). `left` of the answer says how many were not
        reached: call again and expect so many, until it is 0.

        Args:
            resolution: As in `resolve_incidents`.
            expected: How many it means; another number refuses everything.
            reason: As above.
            as_of: The newest incident that may be meant, as the preview says.
            output: As above.
            undone: As above.
            actor: As above.
            namespace: Where their jobs live.
            **wanted: Which ones; all that is said must hold.

        Raises:
            IncidentCountRefused: It means another number than is expected; nothing was done.
        """
        call = incident_calls.resolve_matching(
            resolution,
            wanted,
            expected=expected,
            as_of=as_of,
            output=output,
            undone=undone,
            reason=reason,
            actor=actor,
            namespace=namespace or self.namespace,
        )
        return await self._perform(call)

    def ledger(
        self,
        *,
        oldest_first: bool = False,
        limit: int | None = None,
        page_size: int = 0,
        namespace: str | None = None,
        **wanted: Unpack[WantedEntries],
    ) -> AsyncIterator[LedgerEntry]:
        """Read the ledger of remedies, the newest first, page by page as they are taken.

        Args:
            oldest_first: The other way round.
            limit: How many at most. None: all.
            page_size: How many a call reads. 0: the server's default.
            namespace: Where their jobs live.
            **wanted: Which ones; all that is said must hold.
        """

        async def page(token: str, size: int) -> Page[LedgerEntry]:
            return await self._perform(
                incident_calls.list_ledger(
                    wanted,
                    oldest_first=oldest_first,
                    namespace=namespace or self.namespace,
                    page_size=size,
                    page_token=token,
                )
            )

        return calls.async_pages(page, limit=limit, page_size=page_size)
