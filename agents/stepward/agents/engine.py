"""Puts an agent together: the session, its runner on the I/O thread, and the handlers beside it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import random
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from stepward.agents import definitions as definition_calls
from stepward.agents import sight
from stepward.agents.action import Action
from stepward.agents.clock import steady_ms
from stepward.agents.connection import Dial
from stepward.agents.errors import AgentError
from stepward.agents.handlers import Handlers
from stepward.agents.route import Route
from stepward.agents.runner import Runner
from stepward.agents.session import EXIT_KILLED, Profile, Session
from stepward.v1 import definition_pb2

if TYPE_CHECKING:
    from stepward.client.tls import TlsFiles

SESSION_ID_BYTES: Final = 16
# After so long without a welcome it is found out whether certificates are the reason, at so many addresses.
WELCOME_S_MAX: Final = 2.0
DIAGNOSED_MAX: Final = 3

_log = logging.getLogger("stepward.agents.engine")


class Engine:
    """One run of an agent."""

    def __init__(
        self,
        *,
        actions: Mapping[str, Action],
        queue: str,
        slots: int,
        namespace: str,
        name: str | None,
        definitions: Sequence[definition_pb2.Definition],
        drain_timeout_ms: int,
        addresses: Sequence[str],
        dial: Dial,
        tls: TlsFiles | None,
        on_ready: Callable[[str], None] | None,
    ) -> None:
        self._actions = actions
        self._definitions = definitions
        self._profile = Profile(
            namespace=namespace,
            queue=queue,
            actions=tuple(sorted(actions)),
            slots=slots,
            name=name or f"{queue}@{socket.gethostname()}:{os.getpid()}",
            library=f"stepward-python/{_version()}",
            killable=tuple(sorted(name for name, action in actions.items() if action.place is not None)),
        )
        self._session = Session(self._profile, _new_session_id(), drain_timeout_ms=drain_timeout_ms)
        self._addresses = addresses
        self._route = Route(addresses, random.Random())
        self._dial = dial
        self._tls = tls
        self._on_ready = on_ready
        self._welcomed = asyncio.Event()
        self._runner: Runner | None = None
        self._drain_asked = False

    async def run(self) -> int:
        """Work until drained, with handlers on the running loop. Returns the exit code."""
        user_loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="stepward-io")
        work = thread.submit(_run_io, self._work(user_loop, threading.get_ident()))
        work.add_done_callback(_end_if_broken)
        thread.shutdown(wait=False)
        ended = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.drain()
            await ended
            raise

    async def _work(self, user_loop: asyncio.AbstractEventLoop, user_thread: int) -> int:
        """The whole life of the I/O thread."""
        codes = sight.codes_of({name: action.function for name, action in self._actions.items()})
        runner = Runner(
            self._session,
            self._route,
            dial=self._dial,
            steady_ms=steady_ms,
            new_session_id=_new_session_id,
            on_ready=self._ready,
            end_process=os._exit,
            user_loop=user_loop,
            user_sight=lambda: sight.of_thread(user_thread, codes),
            prepare=self._apply_definitions,
        )
        handlers = Handlers(
            self._actions,
            slots=self._profile.slots,
            loop=user_loop,
            steady_ms=steady_ms,
            lease_runs=lambda: self._session.lease_runs(steady_ms()),
            on_ended=runner.handler_ended,
            on_progress=runner.progressed,
        )
        self._runner = runner
        if self._drain_asked:
            runner.drain()
        refusals = asyncio.create_task(self._tell_refusals())
        try:
            return await runner.run(handlers)
        finally:
            refusals.cancel()

    def _ready(self, session_id: str) -> None:
        self._welcomed.set()
        if self._on_ready is not None:
            self._on_ready(session_id)

    async def _tell_refusals(self) -> None:
        """Say once why nobody welcomes this agent, when certificates are the reason: of them gRPC says nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WELCOME_S_MAX):
                await self._welcomed.wait()
        if self._welcomed.is_set():
            return
        from stepward.client.tls import why_refused  # noqa: PLC0415 - only who is not welcomed needs the client

        for address in self._addresses[:DIAGNOSED_MAX]:
            why = await asyncio.to_thread(why_refused, address, self._tls)
            if why:
                _log.warning("connection_refused address=%s why=%s", address, why)

    async def _apply_definitions(self, pause: Callable[[int], Awaitable[None]]) -> None:
        await definition_calls.apply(
            self._definitions, namespace=self._profile.namespace, route=self._route, dial=self._dial, pause=pause
        )

    def drain(self) -> None:
        """Take nothing more and end. On any thread."""
        self._drain_asked = True
        if self._runner is not None:
            self._runner.drain()


def _run_io(work: Coroutine[Any, Any, int]) -> int:
    """Run the I/O thread's own loop to its end."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the I/O loop: uvloop where it is installed, which costs less, else asyncio."""
    try:
        import uvloop  # noqa: PLC0415 - an agent needs none
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _end_if_broken(work: Future[int]) -> None:
    """End the process if the I/O thread has failed: handlers would go on under leases that nobody renews."""
    error = work.exception()
    if error is not None and not isinstance(error, AgentError):
        _log.critical("io_thread_failed; the process ends", exc_info=error)
        os._exit(EXIT_KILLED)


def _new_session_id() -> str:
    return secrets.token_hex(SESSION_ID_BYTES)


def _version() -> str:
    try:
        return importlib.metadata.version("stepward")
    except importlib.metadata.PackageNotFoundError:
        # Run from a checkout that is not installed.
        return "unknown"
