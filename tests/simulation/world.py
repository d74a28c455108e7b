"""The simulated world: three nodes, agents, clients and a travel service, one seed, one thread.

First a storm in which everything goes wrong, then everything is healed, and all jobs must end. Every moment of it
follows from the seed; nothing else is random.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from msgspec.structs import replace

from stepward.server.core import keys, rows
from stepward.server.core.commands import ApplyDefinition
from stepward.server.core.limits import Limits
from stepward.server.core.rows import JOB_STATES_FINAL, JobState
from stepward.server.logbook import sending
from stepward.server.logbook.identity import Identity, found_cluster, join_cluster
from stepward.server.logbook.outbox import Recovered, ReplicaLimits
from stepward.server.store import facts
from tests.simulation.agenda import MS, SECOND, Agenda
from tests.simulation.agents import Agent
from tests.simulation.beliefs import Beliefs
from tests.simulation.clients import Client, Known
from tests.simulation.clocks import WALL_MS
from tests.simulation.disk import PageStore
from tests.simulation.faults import Faults
from tests.simulation.jobs import ACTIONS, DEFINITIONS
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.oracle import Leased, Oracle, short, step_row
from tests.simulation.remote import Remote

if TYPE_CHECKING:
    from stepward.agents.attempts import AttemptKey
    from tests.simulation.process import Process

CLUSTER_ID: Final = "5eed5eed-0000-4000-8000-000000000000"
_START_US: Final = 5 * SECOND
# From when all is healed until everything has ended.
_CALM_US_MAX: Final = 40 * SECOND
# Nobody is elected for so long, and leadership is handed over in so long.
_QUIET_US: Final = 1 * SECOND
_TRANSFER_US_MAX: Final = 1 * SECOND
# How often one node stays broken while the others go on.
_LEFT_BROKEN: Final = 0.3
# How often two nodes are lost at the end. A leader alone knows within a second that it leads no more.
_RECOVERED: Final = 0.2
_LEADERLESS_US: Final = 3 * SECOND
_LOOK_US: Final = 100 * MS
_TRACE_MAX: Final = 400


class World:
    """One run."""

    def __init__(self, seed: int, *, node_ids: tuple[str, ...] = ("n1", "n2", "n3"), two_leaders: bool = False) -> None:
        """`two_leaders`: leaders are deceived on purpose, beside everything else that goes wrong (`beliefs`)."""
        self.seed = seed
        self.node_ids = node_ids
        self.agenda = Agenda()
        self.oracle = Oracle()
        self.remote = Remote()
        # One for each part, so that a change of one leaves the chance of the others as it was.
        self.process_rng = random.Random(f"process {seed}")
        self.disk_rng = random.Random(f"disk {seed}")
        self.agents_rng = random.Random(f"agents {seed}")
        self.clients_rng = random.Random(f"clients {seed}")
        rng = self.rng = random.Random(f"world {seed}")
        self.network = Network(self.agenda, random.Random(f"network {seed}"))
        self.network.bytes_a_ms = rng.choice((0, 0, 500, 100))
        self.limits = Limits(session_ttl_ms=rng.choice((1_500, 3_000)), kill_grace_ms=500, lease_losses_max=1_000)
        entries_max = rng.choice((16, 64, 4_096))
        # The fewer, the more often a node comes back to entries that are gone.
        held_max = max(2, min(128, entries_max // 8))
        self.replica_limits = ReplicaLimits(
            journal_entries_max=entries_max, held_entries_max=held_max, tick_ms=rng.choice((10, 25))
        )
        # In a bare world agents come when the storm is over: all of it goes to the logbook.
        self.bare = rng.random() < 0.4
        # Small ones show what large ones hide: a follower that has part of what its leader has.
        self.append_bytes_max = rng.choice((1 << 20, 1_500, 400))
        self.in_flight_bytes_max = rng.choice((4 << 20, 3_000))
        self.storm_us = int((rng.uniform(8, 20) if self.bare else rng.uniform(6, 14)) * SECOND)
        self.beliefs = Beliefs(self)
        self.two_leaders = two_leaders
        if two_leaders:
            # There is somebody to lose, soon enough and often enough.
            self.bare = False
            self.storm_us = int(rng.uniform(16, 24) * SECOND)
            self.limits = replace(self.limits, session_ttl_ms=1_500)
        self.think_us = rng.choice((20, 60, 200)) * MS
        self.recount_share = 0.01
        self.definitions = DEFINITIONS
        self.actions = ACTIONS
        self.storm = True
        # Keys under which clients submit, and jobs that were acknowledged.
        self.keys: list[str] = []
        self.jobs: dict[str, Known] = {}
        self._ids = 0
        self._trace: deque[str] = deque(maxlen=_TRACE_MAX)
        self.verbose = False
        self.oracle.lease_runs = self._lease_runs
        self.oracle.elapsed_ms = lambda: self.agenda.now_us // MS
        self.machines = {node_id: Machine(self, node_id) for node_id in node_ids}
        self.faults = Faults(self)
        self.agents: list[Agent] = []
        self.clients: list[Client] = []
        self.calm_us = 0

    # The run.

    def run(self) -> None:
        """From the founding of the cluster to the end of the last job."""
        with (
            mock.patch.object(sending, "APPEND_BYTES_MAX", self.append_bytes_max),
            mock.patch.object(sending, "IN_FLIGHT_BYTES_MAX", self.in_flight_bytes_max),
        ):
            self._run()

    def _run(self) -> None:
        for machine in self.machines.values():
            store = PageStore(machine.device)
            found_cluster(store, machine.name, wall_ms=WALL_MS, members=self.node_ids, cluster_id=CLUSTER_ID)
            machine.device.settle()
            machine.start()
        self._begin()
        self.faults.begin(after_us=0)
        if self.two_leaders:
            self.beliefs.begin()
        self._run_for(self.storm_us)
        self.storm = False
        self.beliefs.heal()
        broken = self.faults.heal_but_one() if self.rng.random() < _LEFT_BROKEN else ""
        self.trace("world", "heals, but", broken)
        if not broken:
            self.faults.heal()
        if self.bare:
            self._hire()
        self._come_to_rest(without=broken)
        if broken:
            self.oracle.counts[f"left broken: {self.faults.broken_how}"] += 1
            self.trace("world", "heals", broken)
            self.faults.heal()
            self._come_to_rest(without="")
        self._judge()
        self._stay_at_rest()
        if self.rng.random() < _RECOVERED:
            self._recover()

    def _come_to_rest(self, *, without: str) -> None:
        """Wait until everything has ended, also when one node stays as it is."""
        healed_us = self.agenda.now_us
        while not self._is_done(without):
            if self.agenda.now_us - healed_us > _CALM_US_MAX:
                self.oracle.red("not done", self._what_is_open())
            self._run_for(_LOOK_US)
        self.calm_us = max(self.calm_us, self.agenda.now_us - healed_us)

    def _stay_at_rest(self) -> None:
        """Where nothing goes wrong nobody is elected, but for the one to whom leadership is handed."""
        leader = self._leader()
        assert leader is not None
        term = leader.standing.term
        self._run_for(_QUIET_US)
        if self._leader() is not leader or leader.standing.term != term:
            self.oracle.red("restless", f"{leader.name} led term {term}; {self._what_is_open()}")
        target = self.rng.choice(leader.peers)
        leader.transfer(target)
        begun_us = self.agenda.now_us
        while (now := self._leader()) is None or now.name != target:
            if self.agenda.now_us - begun_us > _TRANSFER_US_MAX:
                self.oracle.red("transfer", f"{target} does not lead; {self._what_is_open()}")
            self._run_for(10 * MS)
        self.oracle.counts["transfers at rest"] += 1

    def _recover(self) -> None:
        """One node is gone for good, another has lost its disk, and a person tells it so: the third has everything.

        Without that word nobody leads. A word that names one that is there is not taken.
        """
        # What only the two had would be lost for good, and rightly so.
        self._come_to_rest(without="")
        whole, wiped, gone = self.rng.sample(self.node_ids, 3)
        self.trace("world", "loses", f"{gone} for good, and the disk of {wiped}")
        self.machines[gone].wipe()
        self.machines[wiped].wipe()
        self.machines[wiped].start()
        self._run_for(_LEADERLESS_US)
        if self._leader() is not None:
            self.oracle.red("recover", f"somebody leads without {gone}, and nobody has said so")
        for named, wanted in ((whole, False), (gone, True)):
            word = _Word()
            process = self.machines[wiped].process
            assert process is not None
            process.recover(word, frozenset({named}))
            self._run_for(_LOOK_US)
            if isinstance(word.answer, Recovered) is not wanted:
                self.oracle.red("recover", f"{wiped} was told that {named} is gone: {word.answer}")
        self.clients[0].submit()
        self._come_to_rest(without=gone)
        self.machines[gone].start()
        self._come_to_rest(without="")
        self._judge()
        self.oracle.counts["recoveries"] += 1

    def _begin(self) -> None:
        """Wait for a leader, then let the definitions be stored, and begin to work."""
        until_us = self.agenda.now_us + _START_US
        while self._leader() is None:
            if self.agenda.now_us > until_us:
                self.oracle.red("no leader", "none within 5 s of the founding")
            self._run_for(_LOOK_US)
        leader = self._leader()
        assert leader is not None
        for body in DEFINITIONS:
            leader.propose_here(
                ApplyDefinition("default", body.name.encode().ljust(32, b"."), body), _Word(), urgent=False
            )
        self._run_for(1 * SECOND)
        if not self.bare:
            self._hire()
        self.clients = [Client(self, f"c{number}") for number in range(self.rng.choice((1, 2, 4)))]

    def _hire(self) -> None:
        self.agents = [Agent(self, f"a{number}", slots=self.rng.choice((1, 2, 4))) for number in range(3)]

    def _run_for(self, us: int) -> None:
        self.agenda.run_until(self.agenda.now_us + us)

    def _leader(self) -> Process | None:
        """Who leads in the newest epoch; one that is cut off may still believe that it does."""
        leading = [machine.process for machine in self.machines.values() if machine.process and machine.process.leads]
        return max(leading, key=lambda process: process.standing.epoch, default=None)

    # Rest.

    def _is_done(self, without: str) -> bool:
        """Whether all calls are answered, all jobs have ended, and all replicas are equal, but for one."""
        leader = self._leader()
        if leader is None or leader.name == without or not all(client.idle for client in self.clients):
            return False
        processes = [machine.process for machine in self.machines.values() if machine.name != without]
        if any(process is None or process.standing.quarantined for process in processes):
            return False
        # One that has just started may have the newest batch, and be unheard until a stream to what it was before ends.
        if any(process is not None and process.standing.leader_id != leader.name for process in processes):
            return False
        if len({process.standing.head.hash for process in processes if process is not None}) != 1:
            return False
        with leader.committed() as reader:
            return all(state in JOB_STATES_FINAL for state in self._states(reader).values())

    def _states(self, reader: Any) -> dict[str, JobState]:
        found = {}
        for key in reader.scan(keys.PROGRESS):
            row = reader.get(key)
            assert isinstance(row, rows.Progress)
            found[keys.progress_job_id(key)] = row.state
        return found

    def _what_is_open(self) -> str:
        leader = self._leader()
        lines = [f"calls {[client.name for client in self.clients if not client.idle]}"]
        for machine in self.machines.values():
            standing = machine.process and machine.process.standing
            lines.append(f"{machine.name} {standing and short(standing)}")
        if leader is not None:
            with leader.committed() as reader:
                open_ = {
                    job_id: state.name
                    for job_id, state in self._states(reader).items()
                    if state not in JOB_STATES_FINAL
                }
            lines.append(f"jobs {open_}")
        return "\n  ".join(lines)

    def _judge(self) -> None:
        """What stands outside is what the jobs say, and nothing acknowledged is missing."""
        standings = {name: machine.process.standing for name, machine in self.machines.items() if machine.process}
        self.oracle.at_rest(standings)
        leader = self._leader()
        assert leader is not None
        with leader.committed() as reader:
            self.oracle.recount(leader.name, reader, led_ms=leader.standing.head.led_ms)
            states = self._states(reader)
            by_key: dict[str, str] = {}
            for job_id, state in states.items():
                job = reader.get(keys.job(job_id))
                assert isinstance(job, rows.Job)
                if by_key.setdefault(job.idempotency_key, job_id) != job_id:
                    self.oracle.red("twice", f"{job_id} and {by_key[job.idempotency_key]} have one key")
                self._judge_job(reader, job_id, job, state)
        for ((job_id, step_id), part), tokens in self.remote.tokens.items():
            self.oracle.executed(job_id, step_id, part, tokens)
        for job_id, known in self.jobs.items():
            if job_id not in states:
                self.oracle.red("lost job", f"{job_id} was acknowledged")
            if known.final and states[job_id].name != known.final:
                self.oracle.red("not final", f"{job_id} was {known.final} and is {states[job_id].name}")
        for job_id in self.remote.jobs() - states.keys():
            self.oracle.red("orphan", f"{job_id} has left something, and is not known")

    def _judge_job(self, reader: Any, job_id: str, job: rows.Job, state: JobState) -> None:
        body = reader.get(keys.definition_body(job.definition_hash))
        assert isinstance(body, rows.DefinitionBody)
        self.oracle.counts[f"job {state.name}"] += 1
        for ordinal, spec in enumerate(body.steps):
            standing = self.remote.standing(job_id, spec.id)
            wanted = 1 if state is JobState.COMPLETED else 0
            if standing != wanted:
                step = step_row(reader, job_id, ordinal)
                self.oracle.red("effects", f"{state.name} {job_id}/{spec.id} has {standing} effects: {step}")

    # What the parts ask.

    def stepped(self) -> None:
        """A replica has stepped: at no moment may two nodes answer reads alone."""
        leading = [machine.process for machine in self.machines.values() if machine.process and machine.process.leads]
        if len(leading) < 2:
            return
        self.oracle.leases(
            [
                Leased(process.name, process.standing.term)
                for process in leading
                if process.clock.steady_ms() < process.standing.lease_until_ms
            ]
        )

    def _lease_runs(self, session_id: str) -> bool:
        return any(agent.session_id == session_id and agent.lease_runs for agent in self.agents)

    def judge_start(self, starting: Agent, key: AttemptKey) -> None:
        """An agent starts an attempt; no other may work on the step under a lease."""
        self.oracle.counts["started"] += 1
        self.oracle.started_attempt(key.job_id, key.step_id, key.token)
        for agent in self.agents:
            other = agent.works_on(key.job_id, key.step_id)
            if other is not None and (agent is not starting or other != key):
                self.oracle.red("two leases", f"{starting.name} starts {key} while {agent.name} works on {other}")

    def new_job_id(self) -> str:
        """Rises, as those that nodes draw do."""
        self._ids += 1
        return f"0-{WALL_MS + self.agenda.now_us // MS:012x}7{self._ids:019x}"

    def in_quarantine(self, name: str) -> bool:
        """Whether a node may still have to find out what it has forgotten."""
        return PageStore(self.machines[name].device).fact(facts.QUARANTINE) is not None

    def join(self, machine: Machine) -> None:
        """Make a machine with an empty disk a node again."""
        store = PageStore(machine.device)
        incarnation = WALL_MS + self.agenda.now_us // MS
        join_cluster(store, Identity(CLUSTER_ID, machine.name, 1, self.node_ids, incarnation))
        machine.device.settle()

    @property
    def digest(self) -> str:
        """Says whether two runs were the same: what the logbook holds, and all that was counted on the way."""
        heads = sorted(machine.process.standing.head.hash for machine in self.machines.values() if machine.process)
        counts = sorted({**self.oracle.counts, **self.faults.counts, **self.network.counts}.items())
        said = repr((self.agenda.now_us, self.agenda.events, self.network.messages, heads, counts))
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def trace(self, who: str, what: str, which: object) -> None:
        """Note something for whoever has to find out what happened."""
        line = f"{self.agenda.now_us / SECOND:10.6f} {who} {what} {which}"
        self._trace.append(line)
        if self.verbose:
            print(line)

    @property
    def told(self) -> str:
        """What happened last."""
        return "\n".join(self._trace)


class _Word:
    """The ticket of the world itself."""

    def __init__(self) -> None:
        self.floor = 0
        self.answer: Any = None

    def answered(self, answer: Any, sequence: int) -> None:
        """See `tickets.Ticket`."""
        self.answer = answer
