"""AgentService: for agents, the remote processes that do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepward.server.api import convert, pages, validate
from stepward.server.api.waits import seconds_left
from stepward.server.core import views
from stepward.server.core.rejections import Refused
from stepward.v1 import agent_service_pb2

if TYPE_CHECKING:
    from stepward.server.agent_calls import AgentCalls
    from stepward.server.core.limits import Limits
    from stepward.server.gateway import Gateway
    from stepward.server.sessions import Sessions


class AgentService:
    """See `stepward.v1.AgentService`."""

    def __init__(self, gateway: Gateway, sessions: Sessions, calls: AgentCalls, limits: Limits) -> None:
        """`sessions` serves the agents with a stream, `calls` those without."""
        self._gateway = gateway
        self._sessions = sessions
        self._calls = calls
        self._limits = limits

    async def work(self, request_iterator: Any, context: Any) -> None:
        """See the contract."""
        await self._sessions.serve(context)

    async def lease_work(
        self, request: agent_service_pb2.LeaseWorkRequest, context: Any
    ) -> agent_service_pb2.LeaseWorkResponse:
        """See the contract."""
        refused = validate.hello(request.hello, self._limits)
        if refused is not None:
            raise Refused(refused)
        found = [*validate.held("cancelled", request.cancelled, self._limits)]
        found += validate.duration("wait_max", request.wait_max, self._limits)
        validate.require(found)
        wait_ms = convert.duration_ms(request.wait_max)
        left_s = seconds_left(context.time_remaining())
        if left_s is not None:
            wait_ms = min(wait_ms, int(left_s * 1_000))
        return await self._calls.lease_work(request, wait_ms_max=wait_ms)

    async def renew_session(
        self, request: agent_service_pb2.RenewSessionRequest, context: Any
    ) -> agent_service_pb2.RenewSessionResponse:
        """See the contract."""
        found = [*validate.session_id("session_id", request.session_id)]
        found += validate.held("heartbeat.held", request.heartbeat.held, self._limits)
        validate.require(found)
        return await self._calls.renew_session(request)

    async def report_attempts(
        self, request: agent_service_pb2.ReportAttemptsRequest, context: Any
    ) -> agent_service_pb2.ReportAttemptsResponse:
        """See the contract."""
        validate.require(validate.session_id("session_id", request.session_id))
        return await self._calls.report_attempts(request)

    async def list_agents(
        self, request: agent_service_pb2.ListAgentsRequest, context: Any
    ) -> agent_service_pb2.ListAgentsResponse:
        """See the contract."""
        validate.require(validate.name("namespace", request.namespace, self._limits, may_be_empty=True))
        count_max = pages.page_size(request.page_size, self._limits)
        namespace = request.namespace or convert.DEFAULT_NAMESPACE
        filters = ("agents", namespace)
        after = pages.position(filters, request.page_token)
        listed: list[agent_service_pb2.Agent] = []
        last, size_bytes = "", 0
        async with self._gateway.reading() as reader:
            head = reader.head()
            for view in views.agents(reader, namespace=namespace, after_session_id=after, limits=self._limits):
                agent = convert.agent(view, head)
                size_bytes += agent.ByteSize()
                if listed and (len(listed) == count_max or size_bytes > pages.PAGE_BYTES_MAX):
                    last = listed[-1].session_id
                    break
                listed.append(agent)
        return agent_service_pb2.ListAgentsResponse(agents=listed, next_page_token=pages.token(filters, last))
