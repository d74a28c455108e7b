"""A node that has lost everything, in a cluster with many rows that goes on working: `make wiped ROWS=1000000`.

Trips are made all the time. A follower is killed, its directory removed, and it is started again: it has to fetch all
rows, and must not vote before it holds what it may have acknowledged. To make that matter, leadership is handed over
while it is in quarantine: the vote request of a transfer is one that nobody may ignore for hearing a leader.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc.aio
import lmdb
import msgspec

from stepward.client import AsyncClient
from stepward.server.store import facts
from stepward.v1 import cluster_service_pb2 as pb
from stepward.v1 import cluster_service_pb2_grpc
from tests.cluster.many_rows import multiply
from tests.cluster.nodes import ENTRIES_BEHIND_MAX, NODE_IDS, Nodes
from tests.cluster.rig import LOOK_EVERY_S, until
from tests.cluster.traffic import agents_connect, expected, trip_input

ROWS: Final = 1_000_000
SECONDS_MAX: Final = 60.0
MEMORY_MIB_MAX: Final = 300
# Trips that are on their way at any moment.
TRIPS: Final = 16
SLOW_MS: Final = 20
# Trips whose rows are multiplied; each way in which one can end is among them.
SAMPLES: Final = 35
# The log of a node that has decided so many batches begins behind its first one.
BATCHES_MIN: Final = 200
# How long the work before and after is watched.
WATCHED_S: Final = 5.0
TRANSFER_S_MAX: Final = 5.0


@dataclass
class Load:
    """Trips on their way through one client, each of which must end as its input says."""

    client: AsyncClient
    ended_at_s: list[float] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def run(self, over: asyncio.Event, *, trips: int = TRIPS) -> None:
        """Keep so many on their way until an event is set, and see all of them end."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(trips):
                tasks.create_task(self._one_after_the_other(over))

    async def make(self, count: int) -> None:
        """Let so many be made, together."""
        await asyncio.gather(*(self._make(next(self._numbers)) for _ in range(count)))

    async def _one_after_the_other(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self._make(next(self._numbers))

    async def _make(self, number: int) -> None:
        submitted = await self.client.submit("trip", trip_input(number), idempotency_key=f"trip-{number}")
        ended = await self.client.wait(submitted.job_id, wait_max_s=60, check=False)
        self.ended_at_s.append(time.monotonic())
        self.states[submitted.job_id] = str(ended.state)
        if ended.state is not expected(number):
            self.wrong[submitted.job_id] = f"{ended.state}, not {expected(number)}: {ended.job.failure}"

    def per_s(self, since_s: float, until_s: float) -> float:
        """How many ended in a second, between two moments."""
        return sum(since_s <= at_s < until_s for at_s in self.ended_at_s) / (until_s - since_s)


@dataclass(frozen=True)
class Found:
    """What was seen."""

    rows: int
    serving_s: float
    """From its start until it took part again and lacked next to nothing."""
    memory_mib: dict[str, int]
    jobs_per_s: tuple[float, float, float]
    """Before, meanwhile, and after."""
    promises: Sequence[tuple[int, str | None]]
    """Terms that the node was in while it was in quarantine, and for whom it voted in each."""

    def told(self) -> str:
        """As a table."""
        before, during, after = self.jobs_per_s
        memory = ", ".join(f"{name} {mib}" for name, mib in self.memory_mib.items())
        return (
            f"rows                        {self.rows}\n"
            f"takes part and is in sync   {self.serving_s:.1f} s after its start\n"
            f"most memory (MiB)           {memory}\n"
            f"trips in a second           {before:.0f} before, {during:.0f} meanwhile, {after:.0f} after\n"
            f"term and vote in quarantine {', '.join(f'{term}: {vote}' for term, vote in self.promises)}"
        )

    def breaches(self, *, seconds_max: float = SECONDS_MAX) -> list[str]:
        """What is over its bound, in words."""
        found = [
            f"{name} had {mib} MiB at the most; at most {MEMORY_MIB_MAX} will do"
            for name, mib in self.memory_mib.items()
            if mib > MEMORY_MIB_MAX
        ]
        if self.serving_s > seconds_max:
            found.append(f"it took part after {self.serving_s:.1f} s; at most {seconds_max:.0f} s will do")
        found += [f"it voted for {vote} in term {term}" for term, vote in self.promises if vote is not None]
        if len(self.promises) < 2:
            found.append("nobody stood for election while it was in quarantine, so not to vote was no merit")
        if not self.jobs_per_s[1]:
            found.append("no trip ended meanwhile")
        return found


class Ballot:
    """The term and vote of a node in quarantine, as they stand on its disk, in one transaction with the quarantine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.seen: list[tuple[int, str | None]] = []

    async def watch(self) -> None:
        """Look again and again, until the quarantine is over."""
        while True:
            if not await asyncio.to_thread(self._look):
                return
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self) -> bool:
        """Look once; whether to look again. Opened anew each time, since the files change places with those fetched."""
        if not (self._directory / "data.mdb").exists():
            return True
        environment = lmdb.open(str(self._directory), readonly=True, max_dbs=3)
        try:
            with environment.begin() as transaction:
                try:
                    space = environment.open_db(b"facts", txn=transaction, create=False)
                except lmdb.NotFoundError:
                    # It is being made.
                    return True
                quarantine = transaction.get(facts.QUARANTINE, db=space)
                promised = transaction.get(facts.TERM, db=space)
        finally:
            environment.close()
        if not quarantine or promised is None:
            return quarantine is None
        seen = msgspec.msgpack.decode(promised, type=tuple[int, str | None])
        if seen not in self.seen:
            self.seen.append(seen)
        return True


def most_memory_mib(pid: int) -> int:
    """The most that a process ever had, with the files that it has mapped."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))


async def prepare(nodes: Nodes, load: Load, rows_min: int) -> int:
    """Let some trips be made, and multiply what they left, in all nodes; they run again behind it."""
    await agents_connect(load.client, 2)
    while (await _log_end(nodes)) < BATCHES_MIN:
        await load.make(SAMPLES)
    assert load.wrong == {}
    await nodes.level()
    for name in NODE_IDS:
        nodes.nodes[name].terminate()
    for name in NODE_IDS:
        assert await asyncio.to_thread(nodes.nodes[name].wait, 20), f"{name} does not end"
    counts = [await asyncio.to_thread(multiply, nodes.directories[name], rows_min) for name in NODE_IDS]
    assert len(set(counts)) == 1, counts
    await asyncio.to_thread(nodes.start_nodes)
    await nodes.whole()
    await agents_connect(load.client, 2)
    return counts[0]


async def _log_end(nodes: Nodes) -> int:
    status = await nodes.status(await nodes.leader())
    return 0 if status is None else status.log_last_index


async def hand_over(nodes: Nodes, leader: str, target: str) -> None:
    async with grpc.aio.insecure_channel(nodes.addresses[leader]) as channel:
        stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
        await stub.TransferLeader(pb.TransferLeaderRequest(node_id=target), timeout=TRANSFER_S_MAX)


async def in_quarantine(nodes: Nodes, name: str) -> None:
    """Wait until a node that was wiped has joined."""
    while True:
        answer = await nodes.answer(name)
        if answer is not None and answer.state == pb.NODE_STATE_QUARANTINED:
            return
        assert answer is None or answer.state == pb.NODE_STATE_EMPTY, answer
        await asyncio.sleep(LOOK_EVERY_S)


async def in_sync(nodes: Nodes, name: str) -> None:
    """Wait until it takes part, and lacks next to nothing."""
    while True:
        answer, leader = await nodes.answer(name), await nodes.status(await nodes.leader())
        if answer is not None and answer.state == pb.NODE_STATE_SERVING and leader is not None:
            behind = [leader.log_last_index - one.match_index for one in leader.followers if one.node_id == name]
            if behind and behind[0] <= ENTRIES_BEHIND_MAX:
                return
        await asyncio.sleep(LOOK_EVERY_S)


async def measure(folder: Path, rows_min: int, *, seconds_max: float = SECONDS_MAX) -> Found:
    """Wipe a follower under load, and see it come back.

    Raises:
        AssertionError: A trip was lost or done wrongly, or replicas differ.
        TimeoutError: The node did not come back within twice the time.
    """
    with Nodes(folder) as nodes:
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            nodes.start_agent(name)
        async with nodes.client(timeout_s=60) as client:
            load, over = Load(client), asyncio.Event()
            rows = await prepare(nodes, load, rows_min)
            made = len(load.states)
            loading = asyncio.create_task(load.run(over))
            await until(lambda: len(load.states) > made, seconds_max=60, what="a trip")
            began_s = time.monotonic()
            await asyncio.sleep(WATCHED_S)
            leader = await nodes.leader()
            gone, target = nodes.others(leader)
            nodes.nodes[gone].kill()
            nodes.wipe(gone)
            started_s = time.monotonic()
            ballot = Ballot(nodes.directories[gone])
            nodes.launch_node(gone)
            watching = asyncio.create_task(ballot.watch())
            async with asyncio.timeout(2 * seconds_max):
                await in_quarantine(nodes, gone)
                await hand_over(nodes, leader, target)
                await in_sync(nodes, gone)
            serving_s = time.monotonic() - started_s
            await watching
            await asyncio.sleep(WATCHED_S)
            done_s = time.monotonic()
            over.set()
            await loading
        await nodes.level()
        report = nodes.judge(load.states)
        memory = {name: most_memory_mib(nodes.nodes[name].pid) for name in NODE_IDS}
        assert "rows_installed" in (nodes.folder / f"{gone}.log").read_text(), f"{gone} has fetched no rows"

    assert load.wrong == {}
    assert report.breaches == []
    back_s = started_s + serving_s
    per_s = load.per_s(began_s, started_s), load.per_s(started_s, back_s), load.per_s(back_s, done_s)
    return Found(rows, serving_s, memory, per_s, ballot.seen)


def main() -> None:
    """Measure, and fail when something is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stepward-wiped-"))
    print(folder)
    found = asyncio.run(measure(folder, given.rows))
    print(found.told())
    if breaches := found.breaches():
        raise SystemExit("\n".join(breaches))
    # Kept only when something was wrong.
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
