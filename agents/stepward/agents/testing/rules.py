"""The rules of the cluster in this process: what the server decides, over rows in memory.

The only module outside the server that imports it, and nobody imports it before a `Bench` is made: an agent never
needs it. There is no logbook, no network and no disk; a batch is applied as soon as it is decided.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from stepward.agents.errors import DefinitionRefused, Violation
from stepward.agents.testing.errors import BenchError
from stepward.agents.testing.results import Failure, JobResult, StepResult
from stepward.agents.testing.sources import decode
from stepward.server.api import convert, definitions
from stepward.server.core import canonical, commands, keys, rows, views
from stepward.server.core.commands import Answer, AnyCommand
from stepward.server.core.decide import Moment, decide
from stepward.server.core.definition import compile_definition
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Rejection
from stepward.server.core.rows import CancelReason, Clock, DefinitionBody, JobState
from stepward.server.core.views import JobView, OfferView, StepView
from stepward.server.store.live import LiveRows
from stepward.server.store.memory import MemoryStore
from stepward.v1 import agent_service_pb2 as wire
from stepward.v1 import definition_pb2

A = TypeVar("A")
R = TypeVar("R", bound=rows.Row)

# Any moment will do: virtual time begins at 0, and what is shown of the wall clock begins here.
WALL_MS_AT_START: Final = 1_700_000_000_000
# Due timers that are judged at one moment. More than jobs of one test can have.
SWEEPS_MAX: Final = 10_000


class Rules:
    """One shard without a logbook."""

    def __init__(self, *, namespace: str, seed: int, session_ttl_ms: int) -> None:
        self.now_ms = 0
        self._namespace = namespace
        self._limits = Limits(session_ttl_ms=session_ttl_ms)
        self._rng = random.Random(seed)
        self._store = MemoryStore()
        self._rows = LiveRows(self._store)
        self._sequence = 0
        self._jobs = 0
        self._bodies: dict[str, DefinitionBody] = {}

    # Commands.

    def define(self, message: definition_pb2.Definition) -> DefinitionBody:
        """Store a definition.

        Raises:
            DefinitionRefused: It breaks rules.
        """
        source = message.SerializeToString(deterministic=True)
        body = compile_definition(definitions.source(message), self._limits, source)
        if isinstance(body, tuple):
            violations = tuple(Violation(one.field, one.description) for one in body)
            raise DefinitionRefused(f"the rules refuse definition {message.name!r}:", violations)
        command = commands.ApplyDefinition(self._namespace, canonical.definition_hash(body), body)
        self._do(command, commands.DefinitionApplied)
        self._bodies[body.name] = body
        return body

    def submit(self, definition_name: str, data: bytes, encoding: str) -> str:
        """Submit a job. Returns its id."""
        self._jobs += 1
        job_id, given = f"0-{self._jobs:032x}", rows.Payload(data, encoding)
        fingerprint = canonical.submission_fingerprint(
            namespace=self._namespace,
            definition_name=definition_name,
            definition_version=0,
            input=given,
            labels={},
            deadline_ms=0,
            limits=self._limits,
        )
        submit = commands.SubmitJob(job_id, self._namespace, definition_name, 0, given, "", {}, "", fingerprint)
        self._do(submit, commands.JobSubmitted)
        return job_id

    def open_session(self, session_id: str, *, queue: str, actions: Sequence[str], slots: int) -> None:
        """Welcome an agent."""
        opened = commands.OpenSession(
            session_id, self._namespace, queue, tuple(actions), slots, session_id, "bench", "bench"
        )
        self._do(opened, commands.SessionOpened)

    def close_stream(self, session_id: str) -> None:
        """The agent of a session is gone; its lease goes on until it ends."""
        self._do(commands.CloseStream(session_id, 1), commands.StreamClosed)

    def report(self, session_id: str, report: wire.AttemptReport) -> str:
        """Report on an attempt. Returns the result's name, empty for progress."""
        reports = tuple(convert.reports(wire.Report(attempts=[report]), self._limits))
        answer = self._do(commands.ReportAttempts(session_id, 1, reports), commands.AttemptsReported)
        return answer.results[0].result if answer.results else ""

    def cancel(self, job_id: str, reason: str) -> None:
        """Have a job cancelled and undone."""
        self._do(commands.CancelJob(job_id, reason), commands.JobCancelled)

    def retry_step(self, job_id: str, step_id: str, reason: str) -> None:
        """As an operator does: try a step, or its undo, again."""
        self._do(commands.RetryStep(job_id, step_id, reason, "bench"), commands.VerbDone)

    def skip_step(self, job_id: str, step_id: str, data: bytes, encoding: str, *, undone: bool, reason: str) -> None:
        """As an operator does: pass over a step, or its undo."""
        given = rows.Payload(data, encoding)
        self._do(commands.SkipStep(job_id, step_id, given, undone, reason, "bench"), commands.VerbDone)

    def pass_time(self, alive: Sequence[str]) -> None:
        """Judge what is due now. The agents that are alive have sent their heartbeats all along."""
        renewals: list[AnyCommand] = [commands.RenewSession(session_id, 1, 0) for session_id in alive]
        for _ in range(SWEEPS_MAX):
            answers = self._decide([*renewals, commands.Sweep(self._limits.sweep_subjects_max)])
            swept = answers[-1]
            assert isinstance(swept, commands.Swept), swept
            if not swept.overdue:
                return
        raise BenchError(
            f"after {SWEEPS_MAX} sweeps at {self.now_ms} ms something is still due: this is a bug of stepward"
        )

    def _do(self, command: AnyCommand, answer_type: type[A]) -> A:
        answer = self._decide([command])[0]
        if isinstance(answer, Rejection):
            raise BenchError(f"refused: {answer.message} ({answer.reason.value})")
        assert isinstance(answer, answer_type), answer
        return answer

    def _decide(self, asked: Sequence[AnyCommand]) -> list[Answer]:
        moment = Moment(
            sequence=self._sequence + 1,
            epoch=1,
            incarnation=0,
            led_ms=self.now_ms,
            log_ms=self.now_ms,
            wall_ms=WALL_MS_AT_START + self.now_ms,
            steady_ms=self.now_ms,
        )
        decision = decide(self._rows, asked, moment, self._limits, self._rng)
        if decision.failures:
            what, error = decision.failures[0]
            raise BenchError(f"a rule of stepward failed at {what}: this is a bug of stepward") from error
        if decision.changes:
            self._sequence += 1
            puts = [(key, keys.encode_row(row)) for key, row in decision.changes.items() if row is not None]
            self._store.apply(puts, [key for key, row in decision.changes.items() if row is None])
            self._store.commit()
            self._rows.applied(decision.changes)
        return decision.answers

    # What agents are told.

    def told(self, session_id: str) -> Iterator[tuple[wire.Offer, wire.Cancel | None]]:
        """The open assignments of a session as its stream has them, each with its cancel if there is one."""
        for key in list(self._rows.scan(keys.assignments(session_id))):
            assignment = self._require(key, rows.Assignment)
            view = views.offer_view(self._rows, key, assignment, self._limits)
            if view is not None:
                yield convert.offer(view), _cancel(view)

    def next_due_ms(self, alive: frozenset[str]) -> int | None:
        """When something falls due next, beside the leases of those who are alive."""
        due = [self._first_due_ms(keys.timers(clock, duty), alive) for clock, duty in keys.TIMER_QUEUES]
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def _first_due_ms(self, queue: bytes, alive: frozenset[str]) -> int | None:
        for key in self._rows.scan(queue):
            at_ms, kind, subject = keys.parse_timer(key)
            if kind != keys.TIMER_SESSION or subject.decode() not in alive:
                return at_ms
        return None

    # What callers see.

    def job(self, job_id: str) -> JobResult:
        """A job with its steps.

        Raises:
            BenchError: There is no such job.
        """
        view = self._view(job_id)
        return JobResult(
            job_id=job_id,
            state=view.progress.state.name,
            output=None if view.output is None else decode(view.output.data, view.output.encoding),
            failure=_failure(view.failure),
            steps={step.spec.id: _step(step) for step in self._steps(job_id)},
            remaining=view.remaining,
        )

    def _view(self, job_id: str) -> JobView:
        view = views.job_view(self._rows, job_id, self._limits, with_steps=False)
        if view is None:
            raise BenchError(f"there is no job {job_id!r} on this bench")
        return view

    def _steps(self, job_id: str) -> list[StepView]:
        body = views.definition_of(self._rows, job_id)
        assert body is not None, job_id
        return [views.step_view(self._rows, job_id, body, n, self._limits) for n in range(len(body.steps))]

    def waits(self, job_id: str) -> list[str]:
        """What each step that is not over waits for."""
        found = []
        for step in self._steps(job_id):
            if step.step is not None and step.step.timer_clock is not Clock.NONE:
                due_s = step.step.timer_at_ms / 1_000
                found.append(
                    f"step {step.spec.id} is {step.step.state.name}, {step.due_for or 'settling'} at {due_s} s"
                )
            elif step.step is not None and step.step.state.name in ("ESCALATED", "UNDO_FAILED"):
                found.append(f"step {step.spec.id} is {step.step.state.name} and waits for a person")
        return found

    def is_over(self, job_id: str) -> bool:
        """Whether nothing moves a job any more: it has ended, or waits for a person and nothing of it goes on."""
        progress = self._require(keys.progress(job_id), rows.Progress)
        if progress.state in rows.JOB_STATES_FINAL:
            return True
        if progress.state not in (JobState.ESCALATED, JobState.PAUSED):
            return False
        return not any(
            step.step is not None and step.step.timer_clock is not Clock.NONE for step in self._steps(job_id)
        )

    def history(self, job_id: str) -> Iterator[tuple[int, str, rows.Event]]:
        """What happened to a job: when (ms), to which step ("": the job itself), and what."""
        specs = self._steps(job_id)
        for key in self._rows.scan(keys.histories(job_id)):
            history = self._require(key, rows.History)
            for event in history.events:
                step_id = specs[event.ordinal].spec.id if event.ordinal >= 0 else ""
                yield history.log_ms, step_id, event

    def _require(self, key: bytes, type_: type[R]) -> R:
        row: Any = self._rows.get(key)
        assert isinstance(row, type_), (key, row)
        return row


def _cancel(view: OfferView) -> wire.Cancel | None:
    return None if view.cancel is CancelReason.NONE else convert.cancel(view)


def _step(view: StepView) -> StepResult:
    row, output = view.step, view.output
    return StepResult(
        step_id=view.spec.id,
        state="PENDING" if row is None else row.state.name,
        attempts=0 if row is None else row.attempts,
        lease_losses=0 if row is None else row.lease_losses,
        output=None if output is None else decode(output.data, output.encoding),
        failure=None if row is None else _failure(row.failure),
        maybe_done=row is not None and row.maybe_done,
    )


def _failure(value: rows.Failure | None) -> Failure | None:
    return None if value is None else Failure(value.kind, value.message, value.step_id)
