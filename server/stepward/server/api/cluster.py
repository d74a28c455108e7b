"""ClusterService: for operators and probes.

GetStatus also carries this process's counters, as JSON in its trailing metadata: for our own measurements, and not a
part of the contract.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepward.server.api import convert
from stepward.server.core import keys, rows
from stepward.server.core.rows import JobState
from stepward.v1 import cluster_service_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from stepward.server.logbook.identity import Identity
    from stepward.server.observe import Counters
    from stepward.server.shard import Shard

COUNTERS_KEY: Final = "stepward-counters-bin"
# Jobs that a status counts at most: it walks over their index. Beyond that the counts are of the first ones only.
COUNTED_MAX: Final = 100_000


class ClusterService:
    """See `stepward.v1.ClusterService`."""

    def __init__(
        self,
        shard: Shard,
        *,
        identity: Identity,
        version: str,
        started_wall_ms: int,
        counters: Counters,
        data_file: Path,
    ) -> None:
        self._shard = shard
        self._identity = identity
        self._version = version
        self._started_wall_ms = started_wall_ms
        self._counters = counters
        self._data_file = data_file

    async def get_status(
        self, request: cluster_service_pb2.GetStatusRequest, context: Any
    ) -> cluster_service_pb2.GetStatusResponse:
        """See the contract."""
        counted = msgspec.json.encode(msgspec.structs.asdict(self._counters))
        context.set_trailing_metadata(((COUNTERS_KEY, counted),))
        return cluster_service_pb2.GetStatusResponse(
            cluster_id=self._identity.cluster_id,
            node_id=self._identity.node_id,
            version=self._version,
            shards=[await self._shard_status()],
            started_at=convert.timestamp(self._started_wall_ms),
            pid=os.getpid(),
        )

    async def _shard_status(self) -> cluster_service_pb2.ShardStatus:
        standing = self._shard.standing
        # A walk over many keys; the loop has calls to answer meanwhile.
        counts = await asyncio.to_thread(self._job_counts)
        with self._shard.committed() as reader:
            head, beat = reader.head(), reader.get(keys.BEAT)
        message = cluster_service_pb2.ShardStatus(
            shard=0,
            leader=self._shard.leads,
            leader_id=self._identity.node_id if self._shard.leads else "",
            term=standing.term,
            epoch=head.epoch,
            sequence=head.sequence,
            hash=head.hash.hex(),
            led_time_ms=head.led_ms,
            log_time_ms=head.log_ms,
            jobs=counts,
            store_bytes=self._data_file.stat().st_size,
        )
        if isinstance(beat, rows.Beat):
            message.supervisor_beat_at.CopyFrom(convert.timestamp(beat.wall_ms))
            message.overdue = beat.overdue
        return message

    def _job_counts(self) -> list[cluster_service_pb2.JobCount]:
        """Jobs by state, over all namespaces, as the index has them."""
        counts = dict.fromkeys(JobState, 0)
        with self._shard.committed() as reader:
            for seen, key in enumerate(reader.scan(keys.JOB_INDEX)):
                if seen == COUNTED_MAX:
                    break
                counts[JobState(key[key.index(b"\0") + 1])] += 1
        return [
            cluster_service_pb2.JobCount(state=int(state), count=count)  # type: ignore[arg-type]  # the contract's numbers
            for state, count in counts.items()
            if count
        ]
