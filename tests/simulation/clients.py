"""Clients: they submit, look and cancel, try again elsewhere with the same key, and remember what they were told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from stepward.server.core.commands import CancelJob, JobCancelled, JobSubmitted, SubmitJob, VerbDone
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import JOB_STATES_FINAL, Payload
from tests.simulation.agenda import MS
from tests.simulation.oracle import SAYS_NOTHING

if TYPE_CHECKING:
    from stepward.server.core.commands import AnyCommand
    from tests.simulation.network import Connection
    from tests.simulation.world import World

# More would not end in the time that they are given afterwards.
JOBS_MAX: Final = 150
_TIMEOUT_US: Final = 3_000 * MS
_AGAIN_US: Final = (5 * MS, 200 * MS)
_FINAL: Final = frozenset(state.name for state in JOB_STATES_FINAL)


class Known:
    """What clients were told of one job."""

    def __init__(self) -> None:
        self.final = ""


class _Call:
    """One thing that a client wants, until it has an answer that says something."""

    def __init__(self, asks: str, what: Any, job_id: str, floor: int, final: str = "") -> None:
        self.asks = asks
        self.what = what
        self.job_id = job_id
        # What was known when it was asked: whoever asks at the same time may be told less.
        self.floor = floor
        self.final = final


class Client:
    """One client, which wants one thing at a time."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng = world.clients_rng
        self._call: _Call | None = None
        self._attempt = 0
        self._count = 0
        self._connection: Connection | None = None
        world.network.attach(self)
        world.agenda.after(self._rng.uniform(0, 300 * MS), self._next)

    @property
    def listening(self) -> bool:
        """See `network.Party`."""
        return True

    @property
    def idle(self) -> bool:
        """Whether it waits for nothing."""
        return self._call is None

    def _next(self) -> None:
        """Think of something new, as long as there is a storm."""
        world, rng = self._world, self._rng
        if not world.storm:
            return
        kind = rng.choices(("submit", "get", "look", "cancel"), (5, 4, 2, 1))[0]
        if (kind == "submit" and len(world.keys) < JOBS_MAX) or not world.jobs:
            self.submit()
        elif kind == "cancel":
            job_id = rng.choice(list(world.jobs))
            command = CancelJob(job_id, "no longer wanted", self.name)
            self._begin(_Call("command", command, job_id, world.oracle.acknowledged))
        elif kind == "look":
            job_id = rng.choice(list(world.jobs))
            self._begin(_Call("look", job_id, job_id, 0))
        else:
            job_id = rng.choice(list(world.jobs))
            self._begin(_Call("get", job_id, job_id, world.oracle.acknowledged, world.jobs[job_id].final))

    def submit(self) -> None:
        """Want a job that nobody has asked for."""
        world = self._world
        world.keys.append(f"key-{len(world.keys)}")
        self._begin(_Call("command", self._submission(world.keys[-1]), "", world.oracle.acknowledged))

    def _submission(self, key: str) -> SubmitJob:
        definition = self._rng.choice(self._world.definitions)
        return SubmitJob(
            job_id=self._world.new_job_id(),
            namespace="default",
            definition_name=definition.name,
            definition_version=0,
            input=Payload(b"{}"),
            idempotency_key=key,
            labels={},
            caller_id=self.name,
            fingerprint=key.encode(),
        )

    def ask(self, command: AnyCommand, job_id: str) -> None:
        """Want something that somebody else has thought of."""
        assert self._call is None
        self._begin(_Call("command", command, job_id, self._world.oracle.acknowledged))

    def _begin(self, call: _Call) -> None:
        self._call = call
        self._try()

    def _try(self) -> None:
        """Ask some node; ask again if nothing is heard."""
        self._attempt += 1
        self._world.agenda.after(_TIMEOUT_US, self._timed_out, self._attempt)
        if self._connection is not None and self._connection.open and self._rng.random() < 0.8:
            self._send()
        else:
            if self._connection is not None:
                self._leave()
            self._world.network.connect(self, self._rng.choice(self._world.node_ids), "client")

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close(by=self)

    def _send(self) -> None:
        assert self._connection is not None
        assert self._call is not None
        call = self._call
        what = call.what
        if isinstance(what, SubmitJob):
            # A node draws a new id for each call; the key says that it is the same job.
            what = replace(what, job_id=self._world.new_job_id())
        self._connection.send(self, (self._attempt, call.asks, what), 300)

    def _timed_out(self, attempt: int) -> None:
        if self._call is not None and attempt == self._attempt:
            self._world.oracle.counts["calls_timed_out"] += 1
            self._leave()
            self._try()

    def accept(self, connection: Connection, kind: str) -> None:
        """A node is there."""
        if self._call is None:
            connection.close(by=self)
            return
        self._connection = connection
        self._send()

    def closed(self, connection: Connection) -> None:
        """A connection is gone, or did not come to be."""
        if connection is self._connection:
            self._connection = None
        if self._call is not None and self._connection is None:
            self._again()

    def _again(self) -> None:
        self._attempt += 1
        self._world.agenda.after(self._rng.uniform(*_AGAIN_US), self._try_again, self._attempt)

    def _try_again(self, attempt: int) -> None:
        if self._call is not None and attempt == self._attempt:
            self._try()

    def received(self, connection: Connection, message: Any) -> None:
        """An answer."""
        number, answer, sequence = message
        if self._call is None or number != self._attempt:
            return
        if isinstance(answer, Rejection) and answer.reason in SAYS_NOTHING:
            if answer.reason in (Reason.NO_LEADER, Reason.COMMIT_UNKNOWN):
                self._leave()
            self._again()
            return
        call, self._call = self._call, None
        self._hear(call, answer, sequence)
        self._world.agenda.after(self._rng.expovariate(1 / self._world.think_us), self._next)

    def _hear(self, call: _Call, answer: Any, sequence: int) -> None:
        """Hold an answer against what was known."""
        world = self._world
        oracle = world.oracle
        if sequence < call.floor:
            oracle.red("stale", f"{self.name} is told {answer} at {sequence}; {call.floor} was acknowledged before")
        known = world.jobs.get(call.job_id)
        match answer:
            case JobSubmitted():
                oracle.counts["duplicates" if answer.duplicate else "submitted"] += 1
                world.jobs.setdefault(answer.job_id, Known())
            case JobCancelled() | VerbDone():
                oracle.counts["cancelled"] += 1
            case (str() as job_id, str() as state):
                assert known is not None
                oracle.counts["gets"] += 1
                if not state:
                    oracle.red("lost job", f"{job_id} was acknowledged, and is not found at {sequence}")
                if call.final and state != call.final:
                    oracle.red("not final", f"{job_id} was {call.final}, and is {state or 'not found'} at {sequence}")
                if state in _FINAL:
                    known.final = state
            case Rejection():
                oracle.counts[f"refused {answer.reason.name}"] += 1
            case _:
                oracle.counts["other"] += 1
