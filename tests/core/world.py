"""The core with a store in memory and a clock that stands still: what tables and random histories drive."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stepward.server.core import keys, rows
from stepward.server.core.batch import Batch
from stepward.server.core.commands import (
    ApplyDefinition,
    AttemptRef,
    AttemptReport,
    AttemptsReported,
    OpenSession,
    ReportAttempts,
    SessionOpened,
    SubmitJob,
)
from stepward.server.core.decide import Moment, decide
from stepward.server.core.draft import Draft
from stepward.server.core.limits import Limits
from stepward.server.core.rows import (
    DefinitionBody,
    Effect,
    OnUnknown,
    Payload,
    RetrySpec,
    StartMode,
    StepSpec,
    UndoSpec,
    VerifySpec,
)
from stepward.server.store.live import LiveRows
from stepward.server.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepward.server.core.commands import Answer, AnyCommand, AttemptEvent
    from stepward.server.core.rows import Event, Progress, Row, Step

WALL_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class RuleRaisedError(Exception):
    """A rule of the core raised: the command was rolled back, which no correct run needs."""


class World:
    """One shard without a logbook: each `do` is one batch, applied at once through bytes.

    All three clocks stand at `now_ms` until it is moved. Log and wall time are ahead by `leaderless_ms`, the time in
    which nobody led.
    """

    def __init__(self, *, limits: Limits | None = None, seed: int = 1) -> None:
        self.limits = limits or Limits(session_ttl_ms=3_000)
        self.rng = random.Random(seed)
        self.store = MemoryStore()
        self.reader = LiveRows(self.store)
        self.now_ms = 0
        self.leaderless_ms = 0
        self.sequence = 0
        self.epoch = 1
        self.changes: Mapping[bytes, Row | None] = {}

    def do(self, *commands: AnyCommand) -> list[Answer]:
        """Decide and apply a batch. Returns the answers, in order."""
        decision = decide(self.reader, commands, self.moment(), self.limits, self.rng)
        if decision.failures:
            raise RuleRaisedError(decision.failures[0][0]) from decision.failures[0][1]
        self._apply(decision.changes)
        return decision.answers

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """A batch for rules that no command leads to alone; what is done in it is applied at its end."""
        draft = Draft(self.reader)
        yield Batch(draft, self.moment(), self.limits, self.rng)
        self._apply(draft.changes())

    def moment(self) -> Moment:
        """That of the next batch."""
        return Moment(
            sequence=self.sequence + 1,
            epoch=self.epoch,
            incarnation=0,
            led_ms=self.now_ms,
            log_ms=self.now_ms + self.leaderless_ms,
            wall_ms=WALL_MS + self.now_ms + self.leaderless_ms,
            steady_ms=self.now_ms,
        )

    def _apply(self, changes: Mapping[bytes, Row | None]) -> None:
        self.changes = changes
        if changes:
            self.sequence += 1
            puts = [(key, keys.encode_row(row)) for key, row in changes.items() if row is not None]
            self.store.apply(puts, [key for key, row in changes.items() if row is None])
            self.store.commit()
            self.reader.applied(changes)

    def one(self, command: AnyCommand) -> Answer:
        """The answer to a single command."""
        return self.do(command)[0]

    def put(self, key: bytes, row: Row) -> None:
        """Write a row that no command makes, for a rule that must not depend on which do."""
        self.store.apply([(key, keys.encode_row(row))], [])
        self.store.commit()
        self.reader.applied({key: row})

    def define(self, body: DefinitionBody) -> None:
        """Store a definition under the hash of its name."""
        self.one(ApplyDefinition("default", body.name.encode().ljust(32, b"."), body))

    def submit(self, job_id: str, definition: str, *, key: str = "", body: bytes = b"{}", caller: str = "") -> Answer:
        """Submit a job with an id of the test's choice."""
        return self.one(self.submission(job_id, definition, key=key, body=body, caller=caller))

    def submission(
        self,
        job_id: str,
        definition: str,
        *,
        key: str = "",
        body: bytes = b"{}",
        labels: dict[str, str] | None = None,
        caller: str = "",
    ) -> SubmitJob:
        """What submits a job with an id of the test's choice."""
        return SubmitJob(job_id, "default", definition, 0, Payload(body), key, labels or {}, caller, body)

    def open(self, session_id: str, actions: tuple[str, ...], *, slots: int = 4, queue: str = "q") -> int:
        """Open a session or a newer stream of it. Returns the generation."""
        answer = self.one(OpenSession(session_id, "default", queue, actions, slots, session_id, "test", "n1"))
        assert isinstance(answer, SessionOpened), answer
        return answer.generation

    def report(self, session_id: str, job_id: str, step_id: str, event: AttemptEvent, *, token: int = 0) -> str:
        """Report on a step's newest token, or on the one given. Returns the result's name."""
        step = self.step(job_id, step_id)
        ref = AttemptRef(job_id, step_id, token or (0 if step is None else step.token))
        answer = self.one(ReportAttempts(session_id, 1, (AttemptReport(ref, event),)))
        assert isinstance(answer, AttemptsReported), answer
        return answer.results[0].result if answer.results else ""

    def ordinal(self, job_id: str, step_id: str) -> int:
        """A step's position in its definition."""
        job = self.reader.get(keys.job(job_id))
        assert isinstance(job, rows.Job)
        body = self.reader.get(keys.definition_body(job.definition_hash))
        assert isinstance(body, rows.DefinitionBody)
        return [spec.id for spec in body.steps].index(step_id)

    def step(self, job_id: str, step_id: str) -> Step | None:
        """A step's row."""
        row = self.reader.get(keys.step(job_id, self.ordinal(job_id, step_id)))
        assert row is None or isinstance(row, rows.Step)
        return row

    def step_state(self, job_id: str, step_id: str) -> str:
        """A step's state by name."""
        step = self.step(job_id, step_id)
        return "PENDING" if step is None else step.state.name

    def progress(self, job_id: str) -> Progress:
        """A job's progress row."""
        row = self.reader.get(keys.progress(job_id))
        assert isinstance(row, rows.Progress)
        return row

    def job_state(self, job_id: str) -> str:
        """A job's state by name."""
        return self.progress(job_id).state.name

    def events(self, job_id: str) -> Iterator[tuple[int, Event]]:
        """Everything that happened to a job, with the led time of its batch."""
        for key in list(self.reader.scan(keys.histories(job_id))):
            history = self.reader.get(key)
            assert isinstance(history, rows.History)
            for event in history.events:
                yield history.led_ms, event


def step_spec(
    id_: str,
    *,
    needs: tuple[int, ...] = (),
    dependents: tuple[int, ...] = (),
    undo: bool = True,
    effect: Effect = Effect.IDEMPOTENT,
    start: StartMode = StartMode.ON_OFFER,
    on_unknown: OnUnknown = OnUnknown.ESCALATE,
    retry: RetrySpec | None = None,
    verify: bool = False,
    undo_effect: Effect = Effect.IDEMPOTENT,
    start_to_close_ms: int = 10_000,
    heartbeat_ms: int = 0,
    schedule_to_close_ms: int = 0,
) -> StepSpec:
    """A step on queue "q" with an action of its own name; its undo is "undo-" and that name, its question "ask-".

    All have equal bounds.
    """
    retry = retry or RetrySpec(attempts_max=3)
    bounds = (heartbeat_ms, schedule_to_close_ms)
    return StepSpec(
        id=id_,
        action=id_,
        queue="q",
        needs=needs,
        dependents=dependents,
        input=b"",
        retry=retry,
        start_to_close_ms=start_to_close_ms,
        queue_ms=DAY_MS,
        effect=effect,
        start=start,
        on_unknown=on_unknown,
        undo=UndoSpec(f"undo-{id_}", "q", retry, start_to_close_ms, DAY_MS, *bounds, undo_effect) if undo else None,
        verify=VerifySpec(f"ask-{id_}", "q", retry, start_to_close_ms, DAY_MS, *bounds) if verify else None,
        heartbeat_ms=heartbeat_ms,
        schedule_to_close_ms=schedule_to_close_ms,
    )


def actions_of(body: DefinitionBody) -> tuple[str, ...]:
    """Every action of a definition, with its undos and its questions."""
    policies = (policy for spec in body.steps for policy in (spec, spec.undo, spec.verify))
    return tuple(dict.fromkeys(policy.action for policy in policies if policy is not None))
