"""How each outage is made: three nodes and a watchdog as real processes, and one step that falls due meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from stepward.client import AsyncClient, Definition
from stepward.client.definition_options import Timeouts
from stepward.v1 import cluster_service_pb2 as pb
from stepward.v1 import cluster_service_pb2_grpc
from tests.cluster.nodes import NODE_IDS, Nodes
from tests.cluster.outages import DUE_S, MUST, PING_S, PINGS_MISSED, Outage, Seen, Told
from tests.cluster.watch import Watch, watching
from tests.faults.network import Network

PORT: Final = 7_654
LOOK_EVERY_S: Final = 0.1
ANSWER_S_MAX: Final = 0.5
WELL_S_MAX: Final = 40.0
SETTLED_S_MAX: Final = 60.0
# After an outage that nobody ends it is looked on for so long.
LASTING_S: Final = 10.0
LASTING_EVERYWHERE_S: Final = 20.0

SUPERVISOR_FAULTS: Final = "tests.cluster.supervisor_faults"
FAULTS: Final = {
    Outage.SUPERVISOR_RAISES_ONCE: "raises-once",
    Outage.SUPERVISOR_RAISES_ALWAYS: "raises-always",
    Outage.SUPERVISOR_HANGS: "hangs",
    Outage.SUPERVISORS_HANG: "hangs",
}


@dataclass
class Observer:
    """Looks for beats by itself: when which node showed a new one."""

    nodes: Nodes
    seen_s: list[float] = field(default_factory=list)
    _newest: int = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for address in self.nodes.addresses.values():
                tasks.create_task(self._watch(address))

    async def _watch(self, address: str) -> None:
        async with grpc.aio.insecure_channel(address, [("grpc.max_reconnect_backoff_ms", 200)]) as channel:
            stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
            while True:
                try:
                    answer = await stub.GetStatus(pb.GetStatusRequest(), timeout=ANSWER_S_MAX)
                except grpc.aio.AioRpcError:
                    answer = pb.GetStatusResponse()
                for shard in answer.shards:
                    beat = shard.supervisor_beat_at.ToNanoseconds()
                    if beat > self._newest:
                        self._newest = beat
                        self.seen_s.append(time.monotonic())
                await asyncio.sleep(LOOK_EVERY_S)

    def still_s(self, since_s: float) -> float:
        """The longest time without a new one, since a moment."""
        times = [max((at_s for at_s in self.seen_s if at_s <= since_s), default=since_s)]
        times += [at_s for at_s in self.seen_s if at_s > since_s]
        times.append(time.monotonic())
        return max(after - before for before, after in pairwise(times))


@dataclass(frozen=True)
class Stage:
    """A cluster that is well, the watchdog that says so, and whoever looks on."""

    nodes: Nodes
    watch: Watch
    observer: Observer
    client: AsyncClient
    network: Network | None

    def fault_file(self, name: str) -> Path:
        return fault_file(self.nodes.folder, name)


def fault_file(folder: Path, name: str) -> Path:
    """While it is there the supervisor of a node has its fault."""
    return folder / f"fault-{name}"


@asynccontextmanager
async def opened(folder: Path, outage: Outage) -> AsyncIterator[Stage]:
    """Three nodes, on hosts of their own where their wires are to be cut."""
    fault = FAULTS.get(outage)
    modules = dict.fromkeys(NODE_IDS, (SUPERVISOR_FAULTS, fault)) if fault else {}
    prefixes = {name: ["env", f"STEPWARD_FAULT_FILE={fault_file(folder, name)}"] for name in NODE_IDS}
    async with AsyncExitStack() as stack:
        network: Network | None = None
        addresses: dict[str, str] | None = None
        options: tuple[str, ...] = ()
        if outage is Outage.LEADER_CUT_OFF:
            network = stack.enter_context(Network(NODE_IDS))
            addresses = {name: f"{network.addresses[name]}:{PORT}" for name in NODE_IDS}
            prefixes = {name: [*network.inside(name), *prefixes[name]] for name in NODE_IDS}
            configuration = folder / "network.toml"
            configuration.write_text("[node]\ntrusted_network = true\n")
            options = ("--config", str(configuration))
        nodes = Nodes(folder, modules=modules, addresses=addresses, prefixes=prefixes, options=options)
        stack.enter_context(nodes)
        await asyncio.to_thread(nodes.start_nodes)
        await nodes.leader()
        watch = stack.enter_context(watching(folder, nodes.address, "--canary-interval", "1s"))
        observer = Observer(nodes)
        looking = asyncio.create_task(observer.run())
        stack.callback(looking.cancel)
        client = await stack.enter_async_context(nodes.client())
        await asyncio.to_thread(watch.until_level, "WELL", seconds_max=WELL_S_MAX)
        yield Stage(nodes, watch, observer, client, network)


async def play(folder: Path, outage: Outage) -> Seen:
    """Make one outage on a cluster of its own, and write down what was seen."""
    async with opened(folder, outage) as stage:
        definition = Definition("due")
        definition.step("due", queue="nobody", timeouts=Timeouts(queue=DUE_S))
        await stage.client.apply_definition(definition)
        await asyncio.to_thread(
            stage.watch.until, lambda: bool(stage.watch.hearer.pings), seconds_max=10, what="a ping"
        )
        submitted = await stage.client.submit("due")
        leader = await stage.nodes.leader()
        canaries = await asyncio.to_thread(stage.watch.canaries_back)
        began_s = time.monotonic()
        deciding = asyncio.create_task(_decided(stage, submitted.job_id, outage))
        heal = await _begin(stage, outage, leader)
        healed_s, pinged_s = None, None
        if MUST[outage].says:
            await asyncio.to_thread(
                stage.watch.until_level, MUST[outage].says, seconds_max=MUST[outage].within_s + 20, since_s=began_s
            )
        if heal is not None:
            pinged_s = stage.watch.hearer.pings[-1]
            healed_s = time.monotonic()
            await heal()
            await asyncio.to_thread(stage.watch.until_level, "WELL", seconds_max=WELL_S_MAX, since_s=began_s)
        elif outage is Outage.WATCHDOG_KILLED:
            await asyncio.sleep(PING_S * (PINGS_MISSED + 1))
        else:
            lasting_s = LASTING_EVERYWHERE_S if outage is Outage.SUPERVISORS_HANG else LASTING_S
            await asyncio.sleep(max(0.0, began_s + lasting_s - time.monotonic()))
        decided_s = await deciding
        pinged_s = pinged_s or stage.watch.hearer.pings[-1]
        alive = outage is not Outage.WATCHDOG_KILLED
        canaries = await asyncio.to_thread(stage.watch.canaries_back) - canaries if alive else 0
        return Seen(
            told=tuple(told_since(stage.watch, began_s)),
            still_s=stage.observer.still_s(began_s),
            decided_s=None if decided_s is None else decided_s - began_s,
            healed_s=None if healed_s is None else healed_s - began_s,
            pinged_s=max(0.0, pinged_s - began_s),
            canaries=canaries,
            ended_s=time.monotonic() - began_s,
        )


async def _begin(stage: Stage, outage: Outage, leader: str) -> Callable[[], Awaitable[None]] | None:
    """Begin an outage; returns how it is ended, if it is."""
    nodes = stage.nodes
    others = nodes.others(leader)
    match outage:
        case Outage.FOLLOWER_KILLED:
            return await _kill(nodes, others[0])
        case Outage.LEADER_KILLED:
            return await _kill(nodes, leader)
        case Outage.NO_QUORUM:
            return await _kill(nodes, leader, others[0])
        case Outage.LEADER_PAUSED:
            nodes.nodes[leader].pause()

            async def resume() -> None:
                nodes.nodes[leader].resume()

            return resume
        case Outage.LEADER_CUT_OFF:
            network = stage.network
            assert network is not None, "it was opened with one"
            network.part([leader], others)

            async def whole() -> None:
                network.heal()

            return whole
        case Outage.WATCHDOG_KILLED:
            stage.watch.child.kill()
        case Outage.SUPERVISORS_HANG:
            for name in NODE_IDS:
                stage.fault_file(name).touch()
        case _:
            stage.fault_file(leader).touch()
    return None


async def _kill(nodes: Nodes, *names: str) -> Callable[[], Awaitable[None]]:
    for name in names:
        nodes.nodes[name].kill()

    async def start() -> None:
        await asyncio.to_thread(nodes.start_nodes, *names)

    return start


async def _decided(stage: Stage, job_id: str, outage: Outage) -> float | None:
    """When the job of the step that falls due had ended; None: it had not, where that is right."""
    wait_max_s = LASTING_EVERYWHERE_S if outage is Outage.SUPERVISORS_HANG else SETTLED_S_MAX
    ends_at_s = time.monotonic() + wait_max_s
    while time.monotonic() < ends_at_s:
        job = await stage.client.get(job_id)
        if job.state.final:
            return time.monotonic()
        await asyncio.sleep(LOOK_EVERY_S)
    return None


def told_since(watch: Watch, since_s: float) -> list[Told]:
    """Each change that was told since a moment."""
    return [
        Told(
            after_s=at_s - since_s,
            level=str(body["level"]),
            kinds=tuple(dict.fromkeys(str(reason["kind"]) for reason in body["reasons"])),
            text=str(body["reasons"][0]["text"]) if body["reasons"] else "supervision is well",
        )
        for at_s, body in watch.hearer.told
        if at_s >= since_s
    ]
