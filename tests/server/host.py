"""A shard on a store in memory, with rules of a test's own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from stepward.server.admission import Admission
from stepward.server.clock import Clock, SystemClock
from stepward.server.config import NodeConfig
from stepward.server.gateway import Gateway
from stepward.server.job_ids import JobIds
from stepward.server.logbook.identity import found_cluster, open_identity
from stepward.server.logbook.outbox import Decider, Instant
from stepward.server.logbook.replica import Replica
from stepward.server.observe import Counters
from stepward.server.shard import Shard
from stepward.server.store.memory import MemoryStore

S = 10.0
CLOCK = SystemClock()


def admission(
    config: NodeConfig,
    *,
    counters: Counters | None = None,
    clock: Clock = CLOCK,
    free_bytes: Callable[[], int] = lambda: 1 << 40,
) -> Admission:
    """Admission whose chance is always the same."""
    return Admission(
        config=config, clock=clock, counters=counters or Counters(), rng=random.Random(1), free_bytes=free_bytes
    )


class Host:
    """A shard with rules of a test's own."""

    def __init__(self, decider: Decider, *, clock: Clock = CLOCK, **config: object) -> None:
        store = MemoryStore()
        found_cluster(store, "n1", wall_ms=CLOCK.wall_ms())
        self.identity = open_identity(store)
        self.counters = Counters()
        self.fatal: list[str] = []
        self.free_bytes = 1 << 40
        self.config = NodeConfig(data=Path("data"), **config)  # type: ignore[arg-type]  # whatever the test wants
        replica = Replica(
            store=store,
            identity=self.identity,
            decider=decider,
            boot_id="boot",
            now=Instant(clock.steady_ms(), clock.wall_ms()),
            rng=random.Random(1),
            on_failure=lambda command, error: None,
        )
        self.shard = Shard(replica, clock=clock, config=self.config, counters=self.counters, on_fatal=self.fatal.append)

    async def lead(self) -> Shard:
        """Start, and wait until the epoch is open."""
        leading = asyncio.Event()
        self.shard.on_standing(lambda standing: leading.set() if standing.leads else None)
        self.shard.start()
        async with asyncio.timeout(S):
            await leading.wait()
        return self.shard

    def gateway(self) -> Gateway:
        return Gateway(
            self.shard,
            job_ids=JobIds(0, random.Random(1)),
            clock=CLOCK,
            config=self.config,
            admission=admission(self.config, counters=self.counters, free_bytes=lambda: self.free_bytes),
        )
