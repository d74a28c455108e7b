"""A cluster, its agents and its clock in one process: what handlers and definitions are tested on."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from stepward.agents import outcomes
from stepward.agents.agent import Agent
from stepward.agents.testing import sources
from stepward.agents.testing.errors import BenchError, JobStuck
from stepward.agents.testing.faults import AnswerLost, Crash, FaultPlan, Hangs, Instead, Takes
from stepward.agents.testing.results import BenchEvent, Call, JobResult
from stepward.agents.testing.workers import Worker

if TYPE_CHECKING:
    from stepward.agents.testing.rules import Rules
    from stepward.client.definition_forms import AnyDefinition

T = TypeVar("T")

# Moments at which something may happen before a job has ended. A job of a test has some dozens.
MOMENTS_MAX: Final = 100_000
# How far virtual time may run for one job: beyond the longest duration that a definition can hold.
VIRTUAL_MS_MAX: Final = 10 * 366 * 86_400_000
# A process that died is started again, as `stepward agent run` does.
RESTART_MS: Final = 1_000


class Bench:
    """Runs jobs of a definition against handlers, under the rules of the cluster, on a clock that skips all waits.

    Use it as a context manager: `with` in a test that is no coroutine, `async with` in one that is; the latter calls
    `run_async` where the former calls `run`, and so on. When it is left, faults that have not happened are an error.

    Handlers are called one at a time, in an order that `seed` decides, so that a run can be repeated. A handler takes
    no virtual time unless `takes` says so.
    """

    def __init__(
        self,
        definition: AnyDefinition | Mapping[str, Any],
        agents: Agent | Sequence[Agent] | Mapping[str, Callable[..., Any]],
        *,
        seed: int = 0,
        session_ttl_seconds: float = 10.0,
        handler_seconds_max: float = 10.0,
        unserved: Collection[str] = (),
    ) -> None:
        """Prepare a bench.

        Args:
            definition: As an agent brings it, such as a path or what was built in Python; or YAML text, or a dict.
            agents: What serves it: agents, or functions by action for all queues of the definition.
            seed: Decides the jitter of waits, and the order of what happens at the same moment.
            session_ttl_seconds: How long the lease of an agent lasts that is not heard from.
            handler_seconds_max: How long one call of a handler may take, in real time.
            unserved: Actions that no agent serves, so that their steps wait until their queue timeout.

        Raises:
            DefinitionRefused: The rules refuse the definition; the message tells everything that is wrong.
            BenchError: An action has no handler on its queue.
        """
        message = sources.read_definition(definition)
        wanted = sources.wanted_by(message)
        self._agents = sources.agents_for(agents, wanted)
        sources.require_served(wanted, self._agents, unserved)
        self._rules = _rules(
            namespace=self._agents[0].namespace, seed=seed, session_ttl_ms=_ms(seconds=session_ttl_seconds)
        )
        self._name = self._rules.define(message).name
        self._seconds_max = handler_seconds_max
        self._chance = random.Random(seed)
        self._faults = FaultPlan(frozenset(one.action for one in wanted))
        self._calls: list[Call] = []
        self._planned: list[tuple[int, int, Callable[[], Coroutine[Any, Any, None]]]] = []
        self._order = itertools.count()
        self._cancels: list[tuple[int, str]] = []
        self._workers: list[Worker] = []
        self._sessions = itertools.count(1)
        self._entered = AsyncExitStack()
        self._runner: asyncio.Runner | None = None
        self._is_open = False

    # Entering and leaving.

    def __enter__(self) -> Self:
        if _loop_runs():
            raise BenchError("an event loop is running here: use `async with`, and run_async instead of run")
        self._runner = asyncio.Runner()
        with ExitStack() as opened:
            opened.callback(self._runner.close)
            self._runner.run(self._enter())
            opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        try:
            self._runner.run(self._leave())
        finally:
            self._runner.close()
        if error is None:
            self._require_used()

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()
        if error is None:
            self._require_used()

    async def _enter(self) -> None:
        async with AsyncExitStack() as entered:
            for agent in self._agents:
                await entered.enter_async_context(agent.prepared())
                self._start(agent)
            # Should a lifespan fail, those that were entered before it have been left again.
            self._entered = entered.pop_all()
        self._is_open = True

    async def _leave(self) -> None:
        self._is_open = False
        await self._entered.aclose()

    def _start(self, agent: Agent) -> None:
        """A process of an agent, with a session of its own."""
        session_id = f"{agent.queue}-agent-{next(self._sessions)}"
        self._rules.open_session(session_id, queue=agent.queue, actions=list(agent.actions), slots=agent.slots)
        self._workers.append(
            Worker(
                session_id,
                agent,
                rules=self._rules,
                faults=self._faults,
                calls=self._calls,
                plan=self._plan,
                on_death=self._on_death,
                seconds_max=self._seconds_max,
            )
        )

    def _on_death(self, worker: Worker) -> None:
        """A process is gone: its stream ends at once, its lease when its time is over; another is started."""
        self._workers.remove(worker)
        self._rules.close_stream(worker.session_id)
        self._plan(RESTART_MS, lambda: self._start_again(worker.agent))

    async def _start_again(self, agent: Agent) -> None:
        self._start(agent)

    def _require_used(self) -> None:
        unused = self._faults.unused()
        if unused:
            what = ", ".join(f"{count} of {action!r}" for action, count in unused.items())
            raise BenchError(f"faults that were asked for have not happened: {what}; the test shows less than it says")

    # What goes wrong.

    def fail(
        self,
        action: str,
        *,
        times: int | None = 1,
        kind: str = "Injected",
        message: str = "",
        retryable: bool = True,
        retry_after_seconds: float | None = None,
        may_have_happened: bool = False,
    ) -> None:
        """Let attempts fail before the handler is called. `times` None: all of them, from now on."""
        retry_after_ms = None if retry_after_seconds is None else _ms(seconds=retry_after_seconds)
        failed = outcomes.Failed(kind, message, retryable, retry_after_ms, may_have_happened)
        self._faults.add(action, Instead(failed), times)

    def unknown(self, action: str, *, times: int | None = 1, kind: str = "NoAnswer") -> None:
        """Let nobody know what became of attempts. The handler is not called."""
        self._faults.add(action, Instead(outcomes.Unknown(kind, "")), times)

    def lose_after(self, action: str, *, times: int | None = 1, kind: str = "NoAnswer") -> None:
        """Let the handler do its work, and nobody know that it did."""
        self._faults.add(action, AnswerLost(kind), times)

    def hang(self, action: str, *, times: int | None = 1) -> None:
        """Let attempts start and never end by themselves: a timeout cancels them, or the end of the job."""
        self._faults.add(action, Hangs(), times)

    def crash(self, action: str, *, times: int | None = 1, after: bool = False) -> None:
        """Let the agent's process die, before the handler is called or after it has done its work.

        Everything that the process holds is lost with it. A new one is started a second later.
        """
        self._faults.add(action, Crash(after), times)

    def takes(self, action: str, *, times: int | None = None, **duration: float) -> None:
        """Let so much virtual time pass before the outcome of the handler comes: seconds=, minutes=, hours=, days=."""
        self._faults.add(action, Takes(_ms(**duration)), times)

    # Jobs.

    def start(self, input: Any = None) -> str:
        """Submit a job and return its id. Nothing runs before `finish`, `run` or `advance`."""
        self._require_open()
        data, encoding = sources.encode(input)
        job_id = self._rules.submit(self._name, data, encoding)
        for after_ms, reason in self._cancels:
            self._plan(after_ms, partial(self._cancel, job_id, reason))
        self._cancels.clear()
        return job_id

    async def _cancel(self, job_id: str, reason: str) -> None:
        if not self._rules.is_over(job_id):
            self._rules.cancel(job_id, reason)

    def run(self, input: Any = None) -> JobResult:
        """Submit a job and run it until it has ended, or waits for a person."""
        return self.finish(self.start(input))

    async def run_async(self, input: Any = None) -> JobResult:
        """As `run`."""
        return await self.finish_async(self.start(input))

    def finish(self, job_id: str) -> JobResult:
        """Run until a job has ended, or waits for a person.

        Raises:
            JobStuck: It waits for something that will not happen; the message says for what.
            HandlerStuck: A handler has not come back within its bound of real time.
        """
        return self._run(self.finish_async(job_id))

    async def finish_async(self, job_id: str) -> JobResult:
        """As `finish`."""
        self._require_open()
        self._rules.job(job_id)
        began_ms = self._rules.now_ms
        for _ in range(MOMENTS_MAX):
            await self._settle()
            if self._rules.is_over(job_id):
                return self.job(job_id)
            at_ms = self._next_ms()
            if at_ms is None or at_ms - began_ms > VIRTUAL_MS_MAX:
                raise JobStuck(f"job {job_id} moves no more: {self._waits_for(job_id)}")
            await self._move_to(at_ms)
        raise JobStuck(f"job {job_id} has not ended after {MOMENTS_MAX} moments: {self._waits_for(job_id)}")

    def advance(self, **duration: float) -> None:
        """Let virtual time pass: seconds=, minutes=, hours=, days=. What falls due meanwhile happens."""
        self._run(self.advance_async(**duration))

    async def advance_async(self, **duration: float) -> None:
        """As `advance`."""
        self._require_open()
        until_ms = self._rules.now_ms + _ms(**duration)
        for _ in range(MOMENTS_MAX):
            await self._settle()
            at_ms = self._next_ms()
            if at_ms is None or at_ms > until_ms:
                await self._move_to(until_ms)
                return
            await self._move_to(at_ms)
        raise BenchError(f"too much happens: {MOMENTS_MAX} moments are over before {until_ms / 1_000} s")

    # What people do.

    def cancel(self, job_id: str, reason: str = "") -> None:
        """Cancel a job now: what it did is undone. May be called from a handler."""
        self._rules.cancel(job_id, reason)

    def cancel_at(self, reason: str = "", **duration: float) -> None:
        """Cancel the job that is submitted next, so long after its submission, unless it is over by then."""
        self._cancels.append((_ms(**duration), reason))

    def retry_step(self, job_id: str, step_id: str, reason: str = "bench") -> None:
        """As an operator does: try a step, or its undo, again that waits for a person or for its next attempt."""
        self._rules.retry_step(job_id, step_id, reason)

    def skip_step(
        self, job_id: str, step_id: str, output: Any = None, *, undone: bool = False, reason: str = "bench"
    ) -> None:
        """As an operator does: pass over a step with an output in its place, or over its undo."""
        data, encoding = sources.encode(output)
        self._rules.skip_step(job_id, step_id, data, encoding, undone=undone, reason=reason)

    # What has happened.

    @property
    def elapsed(self) -> float:
        """Virtual seconds since the bench was made."""
        return self._rules.now_ms / 1_000

    def job(self, job_id: str) -> JobResult:
        """A job as it is now."""
        return self._rules.job(job_id)

    def calls(self, action: str | None = None) -> list[Call]:
        """Attempts in the order in which they began, of one action or of all."""
        return [call for call in self._calls if action in (None, call.action)]

    def history(self, job: JobResult | str) -> list[BenchEvent]:
        """What happened to a job, in its order."""
        job_id = job if isinstance(job, str) else job.job_id
        return [
            BenchEvent(at_ms / 1_000, event.type.name, step_id, event.attempt, event.token, event.detail, event.actor)
            for at_ms, step_id, event in self._rules.history(job_id)
        ]

    # Time.

    def _plan(self, after_ms: int, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something done so much later."""
        heapq.heappush(self._planned, (self._rules.now_ms + after_ms, next(self._order), what))

    def _next_ms(self) -> int | None:
        """When something happens next."""
        alive = frozenset(worker.session_id for worker in self._workers)
        due = [at_ms for at_ms in (self._rules.next_due_ms(alive),) if at_ms is not None]
        due += [self._planned[0][0]] if self._planned else []
        return min(due, default=None)

    async def _move_to(self, at_ms: int) -> None:
        """Let it be so late. What agents say at a moment is heard before what is due at it is judged."""
        self._rules.now_ms = max(self._rules.now_ms, at_ms)
        while self._planned and self._planned[0][0] <= self._rules.now_ms:
            await heapq.heappop(self._planned)[2]()
        self._rules.pass_time([worker.session_id for worker in self._workers])

    async def _settle(self) -> None:
        """Let agents do what they are told until nothing new comes at this moment."""
        while True:
            told = [(worker, *one) for worker in self._workers for one in self._rules.told(worker.session_id)]
            new = [(worker, offer, cancel) for worker, offer, cancel in told if worker.is_news(offer, cancel)]
            if not new:
                return
            self._chance.shuffle(new)
            for worker, offer, cancel in new:
                # It may have died of the one before.
                if worker in self._workers:
                    await worker.take(offer, cancel)

    def _waits_for(self, job_id: str) -> str:
        """What a job waits for, in words."""
        waits = self._rules.waits(job_id)
        return "; ".join(waits) if waits else "nothing that is known"

    def _require_open(self) -> None:
        if not self._is_open:
            raise BenchError("this bench is not open: use it in `with` or `async with`")

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        """Run what is async, where there is no loop."""
        if self._runner is None or _loop_runs():
            what.close()
            raise BenchError("an event loop is running here: use `async with` and await the method that ends in _async")
        return self._runner.run(what)


def _rules(*, namespace: str, seed: int, session_ttl_ms: int) -> Rules:
    """The rules of the server, which agents do without."""
    try:
        from stepward.agents.testing.rules import Rules  # noqa: PLC0415 - an agent runs without the server's rules
    except ModuleNotFoundError as error:
        raise BenchError(
            f"the rules of the server cannot be imported ({error}), and a bench runs them: pip install stepward"
        ) from error
    return Rules(namespace=namespace, seed=seed, session_ttl_ms=session_ttl_ms)


def _ms(**duration: float) -> int:
    """A duration in whole milliseconds, from the units of `timedelta`."""
    ms = round(timedelta(**duration) / timedelta(milliseconds=1))
    if ms < 0:
        raise BenchError(f"a duration is {ms} ms; time goes forward")
    return ms


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
