"""H064: a rule of ours that raises, at whatever moment, harms its own command, once, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest

from stepward.server.core import decide as rules
from stepward.server.core import keys
from stepward.server.core.commands import (
    AnyCommand,
    ApplyDefinition,
    AttemptRef,
    AttemptReport,
    AttemptsReported,
    CancelJob,
    CloseStream,
    Command,
    DrainSession,
    MarkNotices,
    OpenSession,
    PauseJob,
    RenewSession,
    ReportAttempts,
    ResolveIncident,
    ResumeJob,
    RetryStep,
    SkipStep,
    Started,
    SubmitJob,
    Succeeded,
    Sweep,
    Swept,
    TerminateJob,
    Unknown,
    WatchSilence,
)
from stepward.server.core.draft import Draft
from stepward.server.core.epoch_rows import Epoch
from stepward.server.core.limits import Limits
from stepward.server.core.parts import Resolution
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.core.rows import NO_OUTPUT, DefinitionBody, Effect, Payload
from tests.core.world import World, actions_of, step_spec
from tests.server.host import Host

if TYPE_CHECKING:
    from stepward.server.core.commands import Answer
    from stepward.server.core.decide import Decision, Moment
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Row

SESSION = "agent-one"
BODY = DefinitionBody(
    "trip",
    (
        step_spec("flight", dependents=(1,)),
        step_spec("hotel", needs=(0,), undo=False, effect=Effect.NON_IDEMPOTENT),
    ),
    b"",
    b"",
)
OTHER = DefinitionBody("other", (step_spec("only"),), b"", b"")

# More rows than any command below writes.
WRITES_MAX = 200


class BrokenRuleError(Exception):
    """What the rule of a test raises."""


def prepared() -> World:
    """Two jobs: of `running` the flight is booked and the hotel is at work; the hotel of `waiting` is escalated."""
    world = World()
    world.define(BODY)
    world.open(SESSION, actions_of(BODY))
    for job_id in ("running", "waiting"):
        world.submit(job_id, "trip")
        world.report(SESSION, job_id, "flight", Succeeded(Payload(b"1")))
        world.report(SESSION, job_id, "hotel", Started())
    world.report(SESSION, "waiting", "hotel", Unknown("NoAnswer", ""))
    assert [world.step_state(job_id, "hotel") for job_id in ("running", "waiting")] == ["RUNNING", "ESCALATED"]
    world.now_ms = 1_000
    return world


def paused() -> World:
    """A flight that is held back."""
    world = World()
    world.define(BODY)
    world.submit("running", "trip")
    world.one(PauseJob("running", "", "me"))
    return world


def late() -> World:
    """The same, when the hotel of `running` has used up its time and its session its lease."""
    world = prepared()
    world.now_ms = 60_000
    return world


def silent() -> World:
    """A leadership in which nobody supervises."""
    world = prepared()
    world.put(keys.EPOCH, Epoch(1, 0))
    world.now_ms = 9_000
    return world


def _report(world: World) -> ReportAttempts:
    step = world.step("running", "hotel")
    assert step is not None
    ref = AttemptRef("running", "hotel", step.token)
    return ReportAttempts(SESSION, 1, (AttemptReport(ref, Succeeded(Payload(b"1"))),))


# For each kind of command the world that it changes, and one of it.
EXAMPLES: dict[type[Command], tuple[Callable[[], World], Callable[[World], Command]]] = {
    SubmitJob: (prepared, lambda _: SubmitJob("new", "default", "trip", 0, Payload(b"{}"), "key", {}, "me", b"print")),
    CancelJob: (prepared, lambda _: CancelJob("waiting", "")),
    TerminateJob: (prepared, lambda _: TerminateJob("running", "why", "me")),
    PauseJob: (prepared, lambda _: PauseJob("running", "", "me")),
    ResumeJob: (paused, lambda _: ResumeJob("running", "", "me")),
    RetryStep: (prepared, lambda _: RetryStep("waiting", "hotel", "", "me")),
    SkipStep: (prepared, lambda _: SkipStep("waiting", "hotel", Payload(b"1"), undone=False, reason="", actor="me")),
    ApplyDefinition: (prepared, lambda _: ApplyDefinition("default", b"o" * 32, OTHER)),
    OpenSession: (prepared, lambda _: OpenSession("agent-two", "default", "q", ("flight",), 4, "", "", "n1")),
    RenewSession: (prepared, lambda _: RenewSession(SESSION, 1, 0)),
    CloseStream: (prepared, lambda _: CloseStream(SESSION, 1)),
    DrainSession: (prepared, lambda _: DrainSession(SESSION, 1)),
    ReportAttempts: (prepared, _report),
    Sweep: (late, lambda _: Sweep(100)),
    WatchSilence: (silent, lambda _: WatchSilence(1_500)),
    ResolveIncident: (prepared, lambda _: ResolveIncident(1, Resolution.COMPENSATE, NO_OUTPUT, False, "why", "me")),
    MarkNotices: (prepared, lambda _: MarkNotices(1, 0)),
}
KINDS = pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)


class Fault:
    """Lets the rule of one command raise, at one of its writes."""

    def __init__(self, target: Command, at: int) -> None:
        self.target = target
        self.left = at
        self.active = False
        self.hit = False

    def wrote(self) -> None:
        """A row was written, by whoever it was."""
        if self.active and not self.hit:
            self.hit = self.left == 0
            self.left -= 1
            if self.hit:
                raise BrokenRuleError


@contextlib.contextmanager
def broken(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the fault happen when its command is decided."""
    decide_one = rules._decide_one
    change = Draft._change

    def deciding(batch: Any, command: AnyCommand) -> Answer:
        fault.active = command is fault.target
        try:
            return decide_one(batch, command)
        finally:
            fault.active = False

    def changing(draft: Draft, key: bytes, row: Row | None) -> None:
        # After the write, so that there is something to roll back.
        change(draft, key, row)
        fault.wrote()

    with monkeypatch.context() as patched:
        patched.setattr(rules, "_decide_one", deciding)
        patched.setattr(Draft, "_change", changing)
        yield


def test_every_kind_of_command_has_an_example() -> None:
    """Whoever adds a command adds one here."""
    assert set(EXAMPLES) == set(get_args(AnyCommand))


@KINDS
def test_h064_command_that_raises_leaves_no_trace(kind: type[Command], monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of its writes in turn: the others of the batch stand, and it can be decided with the next one."""
    make, example = EXAMPLES[kind]
    raised = 0
    for at in range(WRITES_MAX):
        world, twin = make(), make()
        target, companion = example(world), CancelJob("nobody", "")
        fault = Fault(target, at)
        with broken(fault, monkeypatch):
            decision = rules.decide(
                world.reader,
                cast("Sequence[AnyCommand]", (target, companion)),
                world.moment(),
                world.limits,
                world.rng,
            )
        if not fault.hit:
            break
        raised += 1
        _is_refused(kind, decision)
        assert {key for key in decision.changes if key[:1] != keys.BEAT} <= _swept(kind, decision, twin)
        assert isinstance(decision.answers[1], Rejection)
        assert decision.answers[1].reason is Reason.JOB_NOT_FOUND
        assert world.do(cast("AnyCommand", target)) == twin.do(cast("AnyCommand", target))

    assert 0 < raised < WRITES_MAX


def _is_refused(kind: type[Command], decision: Decision) -> None:
    """The command, or the part of it that raised, was answered as a fault of ours, and is handed out for the log."""
    answer = decision.answers[0]
    assert [type(error) for _, error in decision.failures] == [BrokenRuleError]
    if kind is ReportAttempts:
        # Each report has a savepoint of its own.
        assert isinstance(answer, AttemptsReported)
        assert [one.result for one in answer.results] == ["INTERNAL"]
    elif isinstance(answer, Swept):
        assert kind is Sweep
    else:
        assert isinstance(answer, Rejection)
        assert answer.reason is Reason.INTERNAL


def _swept(kind: type[Command], decision: Decision, twin: World) -> set[bytes]:
    """What may have changed: nothing; but of a sweep the other subjects, as without the fault."""
    if kind is not Sweep:
        return set()
    whole = rules.decide(twin.reader, (Sweep(100),), twin.moment(), twin.limits, twin.rng)
    assert not whole.failures
    assert len(decision.changes) < len(whole.changes)
    return set(whole.changes)


@KINDS
async def test_h064_logbook_goes_on_behind_a_command_that_raises(
    kind: type[Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is a link of the chain with what else was decided; the next one is fine."""
    limits, rng = Limits(session_ttl_ms=3_000), random.Random(1)
    target = EXAMPLES[kind][1](prepared())
    decide_one = rules._decide_one

    def deciding(batch: Any, command: AnyCommand) -> Answer:
        if command is not target:
            return decide_one(batch, command)
        with contextlib.suppress(Refused):
            decide_one(batch, command)
        raise BrokenRuleError

    def decider(reader: Reader, commands: Sequence[Command], moment: Moment) -> Decision:
        return rules.decide(reader, cast("Sequence[AnyCommand]", commands), moment, limits, rng)

    monkeypatch.setattr(rules, "_decide_one", deciding)
    host = Host(decider)
    shard = await host.lead()
    before = shard.standing.head
    other = ApplyDefinition("default", b"t" * 32, BODY)
    answers = await asyncio.gather(shard.call(cast("AnyCommand", target)), shard.call(other))
    broken_head = shard.standing.head
    await shard.call(SubmitJob("0-next", "default", "trip", 0, Payload(b"{}"), "", {}, "", b""))
    after = shard.standing.head
    shard.stop()

    assert isinstance(answers[0], Rejection)
    assert answers[0].reason is Reason.INTERNAL
    assert not isinstance(answers[1], Rejection)
    assert before.sequence < broken_head.sequence < after.sequence
    assert len({before.hash, broken_head.hash, after.hash}) == 3
    assert host.fatal == []
