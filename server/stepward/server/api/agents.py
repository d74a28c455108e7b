"""AgentService: for agents, the remote processes that do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepward.server.api import convert, pages, validate
from stepward.server.core import views
from stepward.server.core.rejections import Reason, Refused, refuse
from stepward.v1 import agent_service_pb2

if TYPE_CHECKING:
    from stepward.server.core.limits import Limits
    from stepward.server.gateway import Gateway
    from stepward.server.sessions import Sessions


class AgentService:
    """See `stepward.v1.AgentService`."""

    def __init__(self, gateway: Gateway, sessions: Sessions, limits: Limits) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._limits = limits

    async def work(self, request_iterator: Any, context: Any) -> None:
        """See the contract."""
        await self._sessions.serve(context)

    async def lease_work(
        self, request: agent_service_pb2.LeaseWorkRequest, context: Any
    ) -> agent_service_pb2.LeaseWorkResponse:
        """Not served yet."""
        raise _not_served("LeaseWork")

    async def renew_session(
        self, request: agent_service_pb2.RenewSessionRequest, context: Any
    ) -> agent_service_pb2.RenewSessionResponse:
        """Not served yet."""
        raise _not_served("RenewSession")

    async def report_attempts(
        self, request: agent_service_pb2.ReportAttemptsRequest, context: Any
    ) -> agent_service_pb2.ReportAttemptsResponse:
        """Not served yet."""
        raise _not_served("ReportAttempts")

    async def list_agents(
        self, request: agent_service_pb2.ListAgentsRequest, context: Any
    ) -> agent_service_pb2.ListAgentsResponse:
        """See the contract."""
        validate.require(validate.name("namespace", request.namespace, self._limits, may_be_empty=True))
        count_max = pages.page_size(request.page_size, self._limits)
        namespace = request.namespace or convert.DEFAULT_NAMESPACE
        filters = ("agents", namespace)
        after = pages.position(filters, request.page_token)
        with self._gateway.read() as reader:
            found = views.agents(
                reader, namespace=namespace, after_session_id=after, count_max=count_max + 1, limits=self._limits
            )
            head = reader.head()
        page = found[:count_max]
        last = page[-1].session_id if len(found) > count_max else ""
        return agent_service_pb2.ListAgentsResponse(
            agents=[convert.agent(view, head) for view in page], next_page_token=pages.token(filters, last)
        )


def _not_served(method: str) -> Refused:
    return refuse(Reason.UNIMPLEMENTED, f"{method} is not served yet; use the Work stream")
