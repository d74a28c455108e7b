"""Agents: the shipped session of an agent, on a clock of its own, with handlers that do what chance says.

An agent's process may be killed, paused or cut off. What it holds is known to the oracle at every moment.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from stepward.agents.directives import CancelHandler, ChangeNode, EndProcess, Finish, KillHandler, StartHandler
from stepward.agents.outcomes import Failed, Outcome, Stopped, Succeeded
from stepward.agents.session import Profile, Session
from stepward.v1 import agent_service_pb2 as wire
from tests.simulation.agenda import MS, SECOND
from tests.simulation.clocks import MachineClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.agents.attempts import AttemptKey
    from stepward.agents.directives import Directive
    from tests.simulation.network import Connection
    from tests.simulation.world import World

_TICK_US: Final = 50 * MS
_DRAIN_MS: Final = 10_000
_RECONNECT_US: Final = (5 * MS, 300 * MS)
_FATES: Final = ("ok",) * 12 + ("busy", "busy_done", "declined", "hang", "slow", "slow")
_UNDO: Final = "undo-"


class _Handler:
    """One handler at work."""

    def __init__(self, key: AttemptKey, offer: wire.Offer, fate: str, session_id: str) -> None:
        self.key = key
        self.offer = offer
        self.fate = fate
        # Under whose lease it was begun.
        self.session_id = session_id
        self.refused = False


class Agent:
    """One machine with one agent process at a time."""

    def __init__(self, world: World, name: str, *, slots: int) -> None:
        self._world = world
        self.name = name
        self._slots = slots
        self._rng = world.agents_rng
        self._clock = MachineClock(world.agenda, world.agents_rng, name)
        self._processes = 0
        self._sessions = 0
        self.paused = False
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._life = 0
        self.alive = False
        self._is_lost = False
        self.start()

    # Life.

    def start(self) -> None:
        """A new process, which knows nothing of an older one."""
        if self.alive or self._is_lost:
            return
        self.alive, self.paused, self._deferred = True, False, []
        self._life += 1
        profile = Profile(
            namespace="default",
            queue="q",
            actions=self._world.actions,
            slots=self._slots,
            name=self.name,
            library="simulation",
        )
        self._session = Session(profile, self._new_session_id(), drain_timeout_ms=_DRAIN_MS)
        self._handlers: dict[AttemptKey, _Handler] = {}
        self._connection: Connection | None = None
        self._connecting = False
        self._welcomed = False
        self._world.network.attach(self)
        self._tick(self._life)
        self._connect(self._life)

    def kill(self) -> None:
        """Its process ends; what it did stays done."""
        self.alive = False
        self._world.network.detach(self, silently=False)

    def lose(self) -> None:
        """Its process ends, and none is started until it `come_back`."""
        self._is_lost = True
        self.kill()

    def come_back(self) -> None:
        """A new process may start, and does."""
        self._is_lost = False
        self.start()

    def pause(self) -> None:
        """It stands still; its clock does not."""
        self.paused = True

    def resume(self) -> None:
        """It goes on where it stood."""
        if self.paused and self.alive:
            self.paused = False
            deferred, self._deferred = self._deferred, []
            for act, arguments in deferred:
                act(*arguments)

    def _when_awake(self, act: Callable[..., None], *arguments: Any) -> None:
        if self.paused:
            self._deferred.append((act, arguments))
        else:
            act(*arguments)

    def _after(self, delay_us: float, act: Callable[..., None], *arguments: Any) -> None:
        """Let this process do something later; the first argument is its life."""
        self._world.agenda.after(delay_us, self._when_awake, self._if_alive, self._life, act, arguments)

    def _if_alive(self, life: int, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.alive and life == self._life:
            act(*arguments)

    def _new_session_id(self) -> str:
        self._sessions += 1
        return f"{self.name}-session-{self._sessions:04d}"

    # What the oracle asks.

    @property
    def session_id(self) -> str:
        """The session that it counts on."""
        return self._session.session_id

    @property
    def lease_runs(self) -> bool:
        """Whether it would start work at this moment."""
        return self.alive and self._session.lease_runs(self._clock.steady_ms())

    @property
    def is_at_work(self) -> bool:
        """Whether a handler of this process runs."""
        return bool(self._handlers)

    def works_on(self, job_id: str, step_id: str) -> AttemptKey | None:
        """The attempt of a step for which a handler of this process runs under a lease.

        What goes on from a session that has ended does so under none, also when there is a newer session by now.
        """
        if not self.lease_runs:
            return None
        for key, handler in self._handlers.items():
            if (key.job_id, key.step_id) == (job_id, step_id) and handler.session_id == self._session.session_id:
                return key
        return None

    # The stream.

    @property
    def listening(self) -> bool:
        """See `network.Party`."""
        return self.alive and not self.paused

    def _connect(self, life: int) -> None:
        if self._connection is None and not self._connecting:
            self._connecting = True
            node_id = self._rng.choice(self._world.node_ids)
            self._world.network.connect(self, node_id, "agent")

    def accept(self, connection: Connection, kind: str) -> None:
        """The stream stands."""
        self._connecting = False
        self._connection, self._welcomed = connection, False
        self._session.connected(self._clock.steady_ms())
        self._flush()

    def closed(self, connection: Connection) -> None:
        """The stream is gone, or did not come to be."""
        self._when_awake(self._if_alive, self._life, self._closed, (connection,))

    def _closed(self, connection: Connection) -> None:
        if connection is self._connection:
            self._drop()
        elif self._connecting:
            self._connecting = False
            self._after(self._rng.uniform(*_RECONNECT_US), self._connect, self._life)

    def _drop(self) -> None:
        self._connection = None
        self._session.disconnected()
        self._after(self._rng.uniform(*_RECONNECT_US), self._connect, self._life)

    def received(self, connection: Connection, message: Any) -> None:
        """A message of the node."""
        self._when_awake(self._if_alive, self._life, self._received, (connection, message))

    def _received(self, connection: Connection, message: Any) -> None:
        if connection is not self._connection:
            return
        kind, content = message
        if kind == "work":
            response = wire.WorkResponse.FromString(content)
            self._welcomed |= response.WhichOneof("message") == "welcome"
            self._session.received(self._clock.steady_ms(), response)
            self._flush()
            return
        welcomed = self._welcomed
        connection.close(by=self)
        self._drop()
        if content == "SESSION_ENDED" and not welcomed:
            self._session.session_over(self._clock.steady_ms(), self._new_session_id())
        self._flush()

    def _flush(self) -> None:
        """Send and do what the session wants."""
        outputs = self._session.take()
        if self._connection is not None:
            for message in outputs.messages:
                self._connection.send(self, message.SerializeToString(), 200)
        for directive in outputs.directives:
            self._obey(directive)

    def _tick(self, life: int) -> None:
        self._session.tick(self._clock.steady_ms())
        self._flush()
        if self.alive and life == self._life:
            self._after(_TICK_US, self._tick, life)

    # Handlers.

    def _obey(self, directive: Directive) -> None:
        match directive:
            case StartHandler(key=key, offer=offer):
                self._start_handler(key, offer)
            case CancelHandler(key=key) | KillHandler(key=key):
                self._after(self._rng.uniform(0, 100 * MS), self._end, key, Stopped())
            case ChangeNode() if self._connection is not None:
                connection = self._connection
                connection.close(by=self)
                self._drop()
            case EndProcess() | Finish():
                self._world.oracle.counts["agent_processes_ended"] += 1
                self.kill()
                self._world.agenda.after(self._rng.uniform(50 * MS, 500 * MS), self.start)
            case _:
                pass

    def _start_handler(self, key: AttemptKey, offer: wire.Offer) -> None:
        self._world.judge_start(self, key)
        rng = self._rng
        fate = rng.choice(_FATES) if self._world.storm else "ok"
        self._handlers[key] = _Handler(key, offer, fate, self._session.session_id)
        acts_us = rng.choice(
            (0, 0, rng.uniform(0, 50 * MS), rng.uniform(0, 800 * MS if self._world.storm else 50 * MS))
        )
        if fate == "slow":
            acts_us += rng.uniform(500 * MS, 3_000 * MS)
        self._after(acts_us, self._act, key)

    def _act(self, key: AttemptKey) -> None:
        """Ask the travel service, where the fate says so."""
        handler = self._handlers.get(key)
        if handler is None:
            return
        offer, step = handler.offer, (key.job_id, key.step_id)
        undoes = offer.action.startswith(_UNDO)
        if handler.fate in ("ok", "slow", "busy_done", "hang") or (handler.fate == "declined" and undoes):
            remote = self._world.remote
            if undoes:
                keys = json.loads(offer.input.data)["idempotency_keys"]
                handler.refused = not remote.undo(step, keys, key.token)
            else:
                handler.refused = not remote.do(step, offer.idempotency_key, key.token)
        waits_us = self._rng.choice((0, self._rng.uniform(0, 300 * MS)))
        if handler.fate == "hang":
            waits_us += self._rng.uniform(2, 6) * SECOND
        self._after(waits_us, self._report, key)

    def _report(self, key: AttemptKey) -> None:
        handler = self._handlers.get(key)
        if handler is None:
            return
        outcome: Outcome = Succeeded(b'{"id":1}')
        if handler.refused:
            outcome = Failed("StaleToken", "the service has seen a newer token", retryable=True)
        elif handler.fate.startswith("busy"):
            done = handler.fate == "busy_done"
            outcome = Failed("Busy", "come back", retryable=True, retry_after_ms=100, may_have_happened=done)
        elif handler.fate == "declined" and not handler.offer.action.startswith(_UNDO):
            outcome = Failed("Declined", "no", retryable=False)
        self._end(key, outcome)

    def _end(self, key: AttemptKey, outcome: Outcome) -> None:
        if self._handlers.pop(key, None) is not None:
            self._session.handler_ended(key, outcome)
            self._flush()
