"""ClusterService: for operators and probes.

GetStatus also carries this process's counters, as JSON in its trailing metadata: for our own measurements, and not a
part of the contract.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepward.server.api import convert
from stepward.server.core import counts, keys, rows
from stepward.server.core.rejections import Reason, refuse
from stepward.server.operating import PASSED_ON
from stepward.server.peers.founding import cluster_exists
from stepward.v1 import cluster_service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepward.server.core.breakers import Standing
    from stepward.server.logbook.identity import Identity
    from stepward.server.logbook.outbox import Follower
    from stepward.server.operating import Operating
    from stepward.server.oversight import Oversight
    from stepward.server.peers.refusals import Refusal
    from stepward.server.shard import Shard
    from stepward.server.supervision_health import Findings
    from stepward.server.vitals import Vitals

COUNTERS_KEY: Final = "stepward-counters-bin"


class ClusterService:
    """See `stepward.v1.ClusterService`."""

    def __init__(
        self,
        shard: Shard,
        *,
        identity: Identity,
        vitals: Vitals,
        oversight: Oversight,
        started_wall_ms: int,
        addresses: Callable[[], Mapping[str, str]],
        refusals: Callable[[], Sequence[Refusal]],
        operating: Operating,
    ) -> None:
        """`addresses`: where each node of the cluster is reached, by id. `refusals`: by this node, and of it."""
        self._shard = shard
        self._identity = identity
        self._vitals = vitals
        self._oversight = oversight
        self._started_wall_ms = started_wall_ms
        self._addresses = addresses
        self._refusals = refusals
        self._operating = operating

    async def get_status(
        self, request: cluster_service_pb2.GetStatusRequest, context: Any
    ) -> cluster_service_pb2.GetStatusResponse:
        """See the contract."""
        counted = msgspec.json.encode(self._vitals.counters.numbers())
        context.set_trailing_metadata(((COUNTERS_KEY, counted),))
        return cluster_service_pb2.GetStatusResponse(
            cluster_id=self._identity.cluster_id,
            node_id=self._identity.node_id,
            version=self._vitals.version,
            shards=[self._shard_status()],
            started_at=convert.timestamp(self._started_wall_ms),
            pid=os.getpid(),
            members=[
                cluster_service_pb2.Member(node_id=node_id, address=address)
                for node_id, address in sorted(self._addresses().items())
            ],
            incarnation=self._identity.node_incarnation,
            state=self._state(),
            state_reason=self._vitals.unready(),
            refusals=[cluster_service_pb2.Refusal(**refusal._asdict()) for refusal in self._refusals()],
        )

    async def create_cluster(
        self, request: cluster_service_pb2.CreateClusterRequest, context: Any
    ) -> cluster_service_pb2.CreateClusterResponse:
        """See the contract."""
        raise cluster_exists(self._identity.node_id, self._identity.cluster_id)

    async def transfer_leader(
        self, request: cluster_service_pb2.TransferLeaderRequest, context: Any
    ) -> cluster_service_pb2.TransferLeaderResponse:
        """See the contract."""
        if request.shard:
            raise refuse(Reason.INVALID_ARGUMENT, f"shard is {request.shard}; this cluster has shard 0 only")
        passed_on = any(key == PASSED_ON for key, _ in context.invocation_metadata() or ())
        outcome = await self._operating.transfer(request.node_id, passed_on=passed_on)
        return cluster_service_pb2.TransferLeaderResponse(node_id=outcome.leader_id, term=outcome.term)

    async def recover_node(
        self, request: cluster_service_pb2.RecoverNodeRequest, context: Any
    ) -> cluster_service_pb2.RecoverNodeResponse:
        """See the contract."""
        warning = await self._operating.recover(request.gone_node_ids, reason=request.reason, actor=request.actor)
        return cluster_service_pb2.RecoverNodeResponse(warning=warning)

    def _shard_status(self) -> cluster_service_pb2.ShardStatus:
        standing, condition = self._shard.standing, self._shard.condition()
        with self._shard.committed() as reader:
            head, beat, jobs = reader.head(), reader.get(keys.BEAT), counts.of_all(reader)
        message = cluster_service_pb2.ShardStatus(
            shard=0,
            leader=self._shard.leads and self._oversight.supervises,
            leader_id=self._identity.node_id if self._shard.leads else standing.leader_id,
            term=standing.term,
            epoch=head.epoch,
            sequence=head.sequence,
            hash=head.hash.hex(),
            led_time_ms=head.led_ms,
            log_time_ms=head.log_ms,
            jobs=[
                cluster_service_pb2.JobCount(state=int(state), count=count)  # type: ignore[arg-type]  # the contract's numbers
                for state, count in sorted(jobs.items())
            ],
            store_bytes=self._vitals.data_file.stat().st_size,
            followers=[self._follower(one) for one in condition.followers],
            log_first_index=condition.log_first_index,
            log_last_index=condition.log_last_index,
            free_bytes=self._vitals.free_bytes or 0,
            fetching_rows=bool(self._vitals.fetching_from),
            elections=condition.elections,
            supervision=self._supervision(beat),
        )
        age_ms = self._vitals.contact_age_ms
        if age_ms is not None and not standing.leads:
            message.leader_contact_age.FromMilliseconds(age_ms)
        if isinstance(beat, rows.Beat):
            message.supervisor_beat_at.CopyFrom(convert.timestamp(beat.wall_ms))
            message.overdue = beat.overdue
        return message

    def _supervision(self, beat: object) -> cluster_service_pb2.Supervision:
        """How supervision is as this node sees it."""
        findings = self._vitals.find()
        verdict = self._vitals.supervision(findings)
        state = self._oversight.state
        message = cluster_service_pb2.Supervision(
            health=int(verdict.health),  # type: ignore[arg-type]  # the contract's numbers
            reason=verdict.reason,
            due=findings.due.due,
            overdue=findings.due.overdue,
            overdue_by_kind=[
                cluster_service_pb2.KindCount(kind=kind, count=count)
                for kind, count in sorted(findings.due.by_kind.items())
            ],
            remediations=findings.remediations,
            incidents_open=findings.incidents_open,
            epochs_lost=findings.epochs_lost,
            stays=findings.stays,
            supervisor_state=state.value if state is not None else "",
        )
        if self._vitals.beat_age_ms is not None:
            message.beat_age.FromMilliseconds(self._vitals.beat_age_ms)
        message.brake.CopyFrom(self._brake(findings))
        message.breakers.extend(map(_breaker, findings.breakers))
        if findings.due.overdue:
            message.oldest_overdue.FromMilliseconds(findings.due.oldest_ms)
        if isinstance(beat, rows.Beat):
            message.beat_epoch, message.beats = beat.epoch, beat.beats
            message.detection_latency_max.FromMilliseconds(beat.late_ms_max)
        return message

    def _brake(self, findings: Findings) -> cluster_service_pb2.BrakeStatus:
        """What the supervisor holds back."""
        used, hold = findings.brake.used, findings.brake.on
        message = cluster_service_pb2.BrakeStatus(
            on=hold is not None, used=used, per_minute=self._vitals.limits.remediations_per_minute_max
        )
        if hold is not None:
            message.reason, message.held = hold.reason, findings.held
            message.ends_in.FromMilliseconds(hold.ends_in_ms)
        return message

    def _follower(self, follower: Follower) -> cluster_service_pb2.FollowerStatus:
        message = cluster_service_pb2.FollowerStatus(
            node_id=follower.node_id,
            connected=follower.connected,
            match_index=follower.match_index,
            free_bytes=follower.free_bytes,
        )
        age_ms = self._vitals.answer_age_ms(follower.answered_at_ms)
        if age_ms is not None:
            message.answer_age.FromMilliseconds(age_ms)
        return message

    def _state(self) -> cluster_service_pb2.NodeState.ValueType:
        if self._shard.standing.quarantined:
            return cluster_service_pb2.NODE_STATE_QUARANTINED
        return cluster_service_pb2.NODE_STATE_SERVING


def _breaker(standing: Standing) -> cluster_service_pb2.BreakerStatus:
    """A breaker that is not closed."""
    message = cluster_service_pb2.BreakerStatus(
        namespace=standing.namespace,
        queue=standing.queue,
        action=standing.action,
        state=cluster_service_pb2.BREAKER_STATE_HALF_OPEN,
        reason=standing.reason,
    )
    if standing.probes_in_ms:
        message.state = cluster_service_pb2.BREAKER_STATE_OPEN
        message.probes_in.FromMilliseconds(standing.probes_in_ms)
    return message
