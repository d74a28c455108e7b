"""Drives the session over connections, on the I/O thread's own event loop.

Whatever handlers do, blocked threads and a blocked user loop included, heartbeats and reports go on here. All that is
decided is decided by the session; this file only carries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from stepward.agents.attempts import AttemptKey
from stepward.agents.connection import Connection, Dial, Ending
from stepward.agents.directives import (
    CancelHandler,
    ChangeNode,
    Directive,
    EndProcess,
    Finish,
    KillHandler,
    OpenedSession,
    SetLeaseLost,
    StartHandler,
)
from stepward.agents.errors import AgentRefused
from stepward.agents.handlers import Handlers
from stepward.agents.lag import LagWatch, StallWatch
from stepward.agents.mailbox import Mailbox
from stepward.agents.outcomes import Outcome
from stepward.agents.route import Route
from stepward.agents.session import Session
from stepward.v1 import agent_service_pb2 as wire

# The session's sense of time. Ends of leases are noticed this late at most, far below the cluster's margin of 500 ms.
TICK_MS: Final = 50

# How long the last words of an agent that ends may take to be written and the stream to be ended.
LAST_WORDS_S_MAX: Final = 3.0

# This machine.
_LOCAL: Final = ("localhost:", "127.0.0.1:", "[::1]:")

# Answers to a hello that no repetition changes.
_FINAL_REASONS: Final = frozenset({"INVALID_ARGUMENT", "PROTOCOL_VERSION"})

_log = logging.getLogger("stepward.agents.runner")


class Runner:
    """One agent process at work. Everything here runs on the I/O loop, except where it says otherwise."""

    def __init__(
        self,
        session: Session,
        route: Route,
        *,
        dial: Dial,
        steady_ms: Callable[[], int],
        new_session_id: Callable[[], str],
        on_ready: Callable[[str], None],
        end_process: Callable[[int], None],
        user_loop: asyncio.AbstractEventLoop,
        user_sight: Callable[[], str],
        prepare: Callable[[Callable[[int], Awaitable[None]]], Awaitable[None]],
    ) -> None:
        """Put it together; nothing runs yet.

        `prepare` runs before the first hello; it is given a pause that ends early when the agent is to end.
        `user_sight` says what the user's loop is doing.
        """
        self._session = session
        self._route = route
        self._dial = dial
        self._steady_ms = steady_ms
        self._new_session_id = new_session_id
        self._on_ready = on_ready
        self._end_process = end_process
        self._user_loop = user_loop
        self._prepare = prepare
        self._handlers: Handlers | None = None
        self._connection: Connection | None = None
        self._mailbox = Mailbox(asyncio.get_running_loop(), after=self._flush)
        self._flush_due = False
        self._finished = asyncio.Event()
        self._exit_code = 0
        self._ready_session_id = ""
        self._failure: BaseException | None = None
        self._progress: dict[AttemptKey, bytes] = {}
        self._progress_posted: set[AttemptKey] = set()
        self._lag = LagWatch(sight=user_sight)
        self._stall = StallWatch(tick_ms=TICK_MS)

    # Called on any thread.

    def handler_ended(self, key: AttemptKey, outcome: Outcome) -> None:
        """A handler has ended."""
        self._mailbox.post(partial(self._handler_ended, key, outcome))

    def progressed(self, key: AttemptKey, details: bytes) -> None:
        """A handler says how far it is, or only that it lives. However often it does, at most one call waits here."""
        # Written before the flag is looked at, and lowered there before it is read: nothing is left lying in between.
        self._progress[key] = details or self._progress.get(key, b"")
        if key not in self._progress_posted:
            self._progress_posted.add(key)
            self._mailbox.post(partial(self._take_progress, key))

    def drain(self) -> None:
        """Take nothing more and end."""
        self._mailbox.post(lambda: self._session.drain(self._steady_ms()))

    # On the I/O loop.

    async def run(self, handlers: Handlers) -> int:
        """Work until drained. Returns the exit code.

        Raises:
            AgentRefused: The cluster will never take this agent.
            DefinitionRefused: It will never take one of its definitions.
        """
        self._handlers = handlers
        asyncio.get_running_loop().set_exception_handler(self._callback_failed)
        ticker = asyncio.create_task(self._tick_for_ever())
        work = asyncio.create_task(self._work())
        finished = asyncio.create_task(self._finished.wait())
        try:
            # A ticker that ends has failed, and without it nobody would notice that the lease has ended.
            await asyncio.wait((ticker, work, finished), return_when=asyncio.FIRST_COMPLETED)
            if ticker.done():
                ticker.result()
            if work.done():
                work.result()
            if self._failure is not None:
                raise self._failure
            # The last words are queued and may still be written; a node that does not read them is not waited for.
            await asyncio.wait((work,), timeout=LAST_WORDS_S_MAX)
            return self._exit_code
        finally:
            for task in (ticker, work, finished):
                task.cancel()
            await asyncio.gather(ticker, work, finished, return_exceptions=True)
            handlers.close()

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of the loop has raised. If asyncio only logged it, the agent would go on with half its wits."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if "handle" in context and isinstance(error, BaseException):
            self._failure = error
            self._finished.set()

    async def _work(self) -> None:
        await self._prepare(self._pause)
        while not self._session.finished:
            await self._exchange(self._route.next_address())
            if not self._session.finished:
                await self._pause(self._route.failed_wait_ms())

    async def _pause(self, wait_ms: int) -> None:
        await asyncio.sleep(wait_ms / 1_000)

    async def _exchange(self, address: str) -> None:
        """One stream, from hello to its end."""
        connection = Connection(address, self._dial, self._received)
        self._connection = connection
        self._session.connected(self._steady_ms())
        self._flush()
        try:
            ending = await connection.run()
        finally:
            self._connection = None
        welcomed = self._session.welcomed
        self._session.disconnected()
        if not self._session.finished:
            self._judge_ending(address, ending, welcomed=welcomed)
        self._flush()

    def _judge_ending(self, address: str, ending: Ending, *, welcomed: bool) -> None:
        level = logging.WARNING if welcomed or self._route.failures == 0 else logging.DEBUG
        # What has a reason was said by a server.
        nobody = not (welcomed or self._ready_session_id or ending.reason)
        # Of a node elsewhere nobody knows that it is none which this person would start.
        hint = "; start a server with: stepward dev" if nobody and address.startswith(_LOCAL) else ""
        _log.log(level, "stream_ended address=%s reason=%s why=%s%s", address, ending.reason, ending.message, hint)
        if welcomed:
            # SESSION_ENDED too: it may only mean that a hello of ours, given up earlier, was heard late. Hello tells.
            return
        if ending.reason == "SESSION_ENDED":
            self._session.session_over(self._steady_ms(), self._new_session_id())
        elif ending.reason in _FINAL_REASONS and not self._ready_session_id:
            broken = "".join(f"\n  {one.field}: {one.description}" for one in ending.violations)
            raise AgentRefused(f"{address} refuses this agent: {ending.message}{broken}")

    def _received(self, response: wire.WorkResponse) -> None:
        self._session.received(self._steady_ms(), response)
        if not self._flush_due:
            # Once for all messages that are read in one go, so that what they bring about goes out together.
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _handler_ended(self, key: AttemptKey, outcome: Outcome) -> None:
        assert self._handlers is not None
        # Whoever held the interpreter may be the first to be heard of when it is free again.
        self._tell_stall(self._steady_ms())
        self._take_progress(key)
        self._handlers.forget(key)
        self._session.handler_ended(key, outcome)

    def _take_progress(self, key: AttemptKey) -> None:
        self._progress_posted.discard(key)
        details = self._progress.pop(key, None)
        if details is not None:
            self._session.progressed(key, details)

    async def _tick_for_ever(self) -> None:
        while True:
            now_ms = self._steady_ms()
            self._tell_stall(now_ms)
            self._session.tick(now_ms)
            self._flush()
            if self._lag.ask(now_ms):
                self._user_loop.call_soon_threadsafe(self._answer_lag)
            await asyncio.sleep(TICK_MS / 1_000)

    def _tell_stall(self, now_ms: int) -> None:
        """Say that this thread stood still, before what follows from it: the log reads in the order of causes."""
        assert self._handlers is not None
        stalled = self._stall.woke(now_ms, cpu_ms=_cpu_ms, ttl_ms=self._session.ttl_ms)
        if stalled:
            _log.warning(
                "interpreter_blocked %s lease=%s handlers=%s: no heartbeat was sent meanwhile. One of these handlers "
                "held the interpreter (C code that does not let go of it): make it a plain function with process=True. "
                "With little cpu_ms the process may have been stopped, or the machine was asleep or is overloaded",
                stalled,
                "runs" if self._session.lease_runs(now_ms) else "ended",
                ",".join(self._handlers.in_this_process()) or "none",
            )

    def _answer_lag(self) -> None:
        # On the user's loop, which is the point of it.
        self._mailbox.post(lambda: self._lag.answered(self._steady_ms()))

    def _flush(self) -> None:
        """Carry out what the session wants."""
        self._flush_due = False
        outputs = self._session.take()
        if self._connection is not None:
            for message in outputs.messages:
                self._connection.send(message)
        starts = [one for one in outputs.directives if isinstance(one, StartHandler)]
        if starts:
            assert self._handlers is not None
            self._handlers.start(starts)
        for directive in outputs.directives:
            self._carry_out(directive)

    def _carry_out(self, directive: Directive) -> None:
        assert self._handlers is not None
        match directive:
            case StartHandler():
                # All starts went together.
                pass
            case CancelHandler(key=key, reason=reason):
                self._handlers.cancel(key, reason)
            case KillHandler(key=key):
                self._handlers.kill(key)
            case SetLeaseLost(key=key, lost=lost):
                self._handlers.set_lease_lost(key, lost)
            case OpenedSession():
                self._opened(directive)
            case ChangeNode(why=why, addresses=addresses):
                self._change_node(why, addresses)
            case EndProcess(exit_code=exit_code, why=why):
                _log.critical("process_ends exit_code=%s why=%s", exit_code, why)
                self._end_process(exit_code)
                self._finish(exit_code)
            case Finish(exit_code=exit_code):
                self._finish(exit_code)

    def _opened(self, opened: OpenedSession) -> None:
        self._route.welcomed()
        address = self._connection.address if self._connection is not None else ""
        self._route.learn(opened.node_addresses, at=address)
        _log.info(
            "session_opened session=%s generation=%s node=%s address=%s",
            opened.session_id,
            opened.generation,
            opened.node_id,
            address,
        )
        if opened.session_id != self._ready_session_id:
            self._ready_session_id = opened.session_id
            self._on_ready(opened.session_id)

    def _change_node(self, why: str, addresses: tuple[str, ...]) -> None:
        self._route.prefer(addresses)
        if self._connection is not None:
            _log.warning("node_left address=%s why=%s", self._connection.address, why)
            self._connection.drop()

    def _finish(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._finished.set()
        if self._connection is not None:
            self._connection.close()


def _cpu_ms() -> int:
    """What this process has computed."""
    return time.process_time_ns() // 1_000_000
