"""What a job means: a plain interpreter of what happens to it, which knows no batches, rows, timers or slices.

It is told what agents said and what the history holds, event by event, and knows of each step what it is at, how often
it was tried, whether it may have happened, and which attempts can still act. An event that must not happen then is a
violation, and so is one that had to follow and did not. What it comes to must be what the rows say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.core.commands import Failed
from stepward.server.core.event_types import EventType as E
from stepward.server.core.rows import Effect, JobState, OnDeadline, OnUnknown, StartMode, StepState
from tests.model.subject import Attempt, Subject, ViolationError, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.core.commands import AttemptReport
    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import DefinitionBody, Event, Step

S = StepState
# The parts of a step, as the names of events begin, and how the names of their states begin.
STATES = {"Step": "", "Undo": "UNDO_", "Verify": "VERIFY_"}
ATTEMPT_ENDS = ("AttemptFailed", "AttemptTimedOut", "AttemptLost", "AttemptUnknown")
# How an attempt ended after which it is known that nothing of it happened.
NOT_HAPPENED = "AttemptFailed"
# What may be told of a job that has ended: an attempt that was given up is heard of after all.
LATE = frozenset({E.StaleReportObserved, E.StepAttemptConfirmedStopped})
DONE = frozenset({S.SUCCEEDED, S.SKIPPED})
PERSON = frozenset({S.ESCALATED, S.UNDO_FAILED, S.UNDO_OUTCOME_UNKNOWN})
# Where a step stays while its job is given up, until it is undone.
RESTS = frozenset({S.PENDING, S.OUTCOME_UNKNOWN, S.SUCCEEDED, S.FAILED, S.SKIPPED, S.CANCELLED})
FINAL = frozenset({JobState.COMPLETED, JobState.COMPENSATED, JobState.CANCELLED, JobState.FAILED})
# Kinds of ends that allow no other attempt: the time for all of them is over.
OVER = frozenset({"SCHEDULE_TO_CLOSE_TIMEOUT", "QUEUE_TIMEOUT"})


class Model:
    """One job."""

    def __init__(self, body: DefinitionBody, limits: Limits) -> None:
        self.steps = [Subject(spec) for spec in body.steps]
        self.state = JobState.RUNNING
        self.given_up = False
        self.undoing = False
        self.paused = self.was_paused = False
        self.terminating = False
        self._fails_late = body.on_deadline is OnDeadline.FAIL
        self.trace: list[str] = []
        self._limits = limits
        self._now_ms = 0
        self._said: dict[tuple[str, int], Failed] = {}

    # What it is told.

    def heard(self, report: AttemptReport) -> None:
        """An agent said something of an attempt. What counts of it, the history tells; how it is meant, only this."""
        if isinstance(report.event, Failed):
            self._said.setdefault((report.attempt.step_id, report.attempt.token), report.event)

    def session_ended(self, now_ms: int, session_id: str) -> None:
        """A session is over: what it left unconfirmed can act for a time that is known now."""
        for step in self.steps:
            for attempt in step.attempts.values():
                if attempt.session_id == session_id and attempt.acts_until_ms is None:
                    attempt.acts_until_ms = self._fence_ms(now_ms)

    def _fence_ms(self, now_ms: int) -> int:
        return now_ms + self._limits.session_ttl_ms + self._limits.kill_grace_ms

    def saw(self, now_ms: int, events: Sequence[Event]) -> None:
        """What one batch did, in order."""
        self._now_ms = now_ms
        for event in events:
            self.trace.append(f"{now_ms} {event.type.name} {event.ordinal} {event.token} {event.detail}")
            if event.ordinal < 0:
                self._job_event(event)
            else:
                require(self.state not in FINAL or event.type in LATE, f"{event.type.name} after {self.state.name}")
                self._step_event(self.steps[event.ordinal], event)

    # The job.

    def _job_event(self, event: Event) -> None:
        require(self.state not in FINAL, f"{event.type.name} after {self.state.name}")
        match event.type:
            case E.JobCompensationStarted:
                require(not self.given_up, "a job is given up twice")
                self.given_up, self.state = True, JobState.COMPENSATING
            case E.JobEscalated:
                require(any(step.state in PERSON for step in self.steps), "escalated, and nothing waits for a person")
                self.state = JobState.ESCALATED
            case E.JobPaused:
                require(not self.given_up, "a job is paused that is given up")
                self.paused = self.was_paused = True
            case E.JobResumed:
                self.paused = False
            case E.JobTerminated:
                self.terminating = self.given_up = True
            case E.JobDeadlinePassed if self._fails_late and not self.given_up:
                self.terminating = self.given_up = True
            case E.JobCompleted:
                require(all(step.state in DONE for step in self.steps), "completed with steps that are not done")
                self.state = JobState.COMPLETED
            case E.JobCompensated | E.JobCancelled | E.JobFailed:
                self._job_ends(event.type)
            case _:
                pass

    def _job_ends(self, type_: E) -> None:
        if not self.terminating:
            self._rest()
        for step in self.steps:
            if self.terminating and step.kept is not None and step.kept[0] is S.SKIPPED:
                # It was only asked whether there was anything to undo, and no event says that nobody asks any more.
                self._let_go(step)
                step.state, step.ended = S.SKIPPED, ""
        left = [step.spec.id for step in self.steps if step.stands]
        require(not any(step.held for step in self.steps), f"{type_.name} with attempts at work")
        fails = type_ is E.JobFailed and (bool(left) or self.terminating)
        require(fails or not (left or type_ is E.JobFailed), f"{type_.name}, and what stands is {left}")
        self.state = JobState[type_.name.removeprefix("Job").upper()]

    # A part of a step, whichever.

    def _step_event(self, step: Subject, event: Event) -> None:
        name = event.type.name
        part = next((part for part in STATES if name.startswith(part)), "")
        what = name.removeprefix(part)
        match what:
            case "Ready":
                self._ready(step, part)
            case "Offered":
                self._offered(step, part, event)
            case "Started":
                self._is(step, StepState[f"{STATES[part]}OFFERED"], event)
                step.tries += 1
                step.state = StepState[f"{STATES[part]}RUNNING"]
            case "OfferResent" | "OfferWithdrawn":
                self._is(step, StepState[f"{STATES[part]}OFFERED"], event)
            case "RetryScheduled":
                self._retry_scheduled(step, part, event)
            case "HandedBack" | "AttemptStopped":
                self._taken_back(step, part, what, event)
            case _ if what in ATTEMPT_ENDS:
                self._attempt_ended(step, part, what, event)
            case _:
                self._one_part_only(step, event)

    def _is(self, step: Subject, state: StepState, event: Event) -> None:
        require(step.state is state and event.token == step.newest, f"{event.type.name} in {step.state.name}")

    def _ready(self, step: Subject, part: str) -> None:
        if part == "Step":
            require(not self.given_up, f"{step.spec.id} goes forward in a job that is given up")
            if step.state is S.PENDING:
                needs = [self.steps[need] for need in step.spec.needs]
                require(all(need.state in DONE for need in needs), f"{step.spec.id} is ready before its needs")
            else:
                back = step.ended in ("HandedBack", "AttemptStopped")
                held_back = step.state is S.READY and self.was_paused
                require(back or held_back or step.state is S.RETRY_WAIT, f"ready again from {step.state.name}")
        elif part == "Undo":
            self._begins_undo(step)
        elif step.part != "Verify" or (self.given_up and not self.undoing):
            self._begins_to_ask(step)
        step.state, step.ended = StepState[f"{STATES[part]}READY"], ""

    def _offered(self, step: Subject, part: str, event: Event) -> None:
        require(step.state is StepState[f"{STATES[part]}READY"], f"offered in {step.state.name}")
        require(self.undoing or not self.given_up, f"{part} of {step.spec.id} is offered while its job is stopping")
        require(not (self.paused and not self.undoing), f"{part} of {step.spec.id} is offered while its job is paused")
        require(not self.terminating, f"{part} of {step.spec.id} is offered while its job is ended")
        require(event.token > step.newest, f"token {event.token} after {step.newest}")
        require(event.attempt == step.tries + 1, f"attempt {event.attempt} after {step.tries}")
        alone = self.undoing or step.spec.effect is Effect.NON_IDEMPOTENT
        require(not (alone and step.can_act(self._now_ms)), f"{part} of {step.spec.id} beside one that can act")
        step.attempts[event.token] = Attempt(part, event.session_id)
        step.state = StepState[f"{STATES[part]}OFFERED"]

    def _attempt_ended(self, step: Subject, part: str, how: str, event: Event) -> None:
        attempt = self._close(step, part, event)
        if step.state is StepState[f"{STATES[part]}OFFERED"] and how in ("AttemptFailed", "AttemptUnknown"):
            step.tries += 1
        require(event.attempt == step.tries, f"attempt {event.attempt}, and {step.tries} were counted")
        said = self._said.get((step.spec.id, event.token))
        step.kind = event.detail.split(":")[0]
        step.final = step.kind in OVER
        if how == "AttemptFailed":
            require(
                said is not None or step.kind in ("RESULT_TOO_LARGE", "INVALID_OUTPUT"), "nobody said that it failed"
            )
            step.final = said is None or not said.retryable
            if said is None or said.may_have_happened:
                how = "AttemptBroken"
        step.losses += how == "AttemptLost"
        if part != "Verify":
            step.maybe = step.maybe or how != NOT_HAPPENED
        if how == "AttemptTimedOut":
            attempt.acts_until_ms = None
        elif how == "AttemptLost":
            attempt.acts_until_ms = self._fence_ms(self._now_ms)
        step.ended = how
        self._rest_if_given_up(step, part)

    def _taken_back(self, step: Subject, part: str, what: str, event: Event) -> None:
        self._close(step, part, event)
        step.tries -= step.state is StepState[f"{STATES[part]}RUNNING"]
        if what == "AttemptStopped":
            require(step.harmless(part), "a drain repeats what may not be repeated")
            step.maybe = step.maybe or part != "Verify"
        step.ended = what
        self._rest_if_given_up(step, part)

    def _rest_if_given_up(self, step: Subject, part: str) -> None:
        """In a job that is stopping nothing follows from the end of an attempt but whether it may have happened."""
        if self.given_up and not self.undoing and part != "Undo":
            self._forget_question(step)
            step.state, step.ended = S.OUTCOME_UNKNOWN if step.maybe else S.CANCELLED, ""

    def _close(self, step: Subject, part: str, event: Event) -> Attempt:
        require(step.held and step.part == part, f"{event.type.name} in {step.state.name}")
        require(event.token == step.newest, f"{event.type.name} of token {event.token}, newest is {step.newest}")
        attempt = step.attempts[event.token]
        attempt.open = False
        return attempt

    def _retry_scheduled(self, step: Subject, part: str, event: Event) -> None:
        require(step.ended, f"a retry of {step.spec.id} after nothing")
        if step.ended != "HandedBack":
            require(self._may_retry(step, part), f"{step.spec.id} is tried again after {step.ended} {step.kind}")
        step.state, step.ended = StepState[f"{STATES[part]}RETRY_WAIT"], ""

    def _may_retry(self, step: Subject, part: str) -> bool:
        retry = step.retry(part)
        spent = step.tries >= retry.attempts_max or step.losses >= self._limits.lease_losses_max
        if spent or step.final or step.kind in retry.non_retryable_kinds:
            return False
        return step.ended == NOT_HAPPENED or step.harmless(part)

    def _must_retry(self, step: Subject, part: str) -> bool:
        """Whether another attempt has to follow: nothing speaks against it, not even that there may be no time."""
        policy = {"Step": step.spec, "Undo": step.spec.undo, "Verify": step.spec.verify}[part]
        assert policy is not None
        timeless = not policy.schedule_to_close_ms and not policy.retry.time_ms_max
        return timeless and bool(step.ended) and self._may_retry(step, part)

    # What belongs to one part.

    def _one_part_only(self, step: Subject, event: Event) -> None:
        match event.type:
            case E.StepSucceeded | E.UndoSucceeded:
                self._succeeded(step, event)
            case E.StepOutcomeUnknown:
                unknown = step.ended not in ("", NOT_HAPPENED)
                require(unknown and not self._must_retry(step, "Step"), f"unknown after {step.ended!r}")
                step.state, step.ended = S.OUTCOME_UNKNOWN, ""
            case E.StepEscalated:
                poison = step.losses >= self._limits.lease_losses_max
                asks = step.state is S.OUTCOME_UNKNOWN and step.spec.on_unknown is OnUnknown.ESCALATE
                require(asks or (poison and step.ended), f"escalated from {step.state.name}")
                step.state, step.ended = S.ESCALATED, ""
            case E.StepFailed if self.terminating:
                self._let_go(step)
                step.state, step.ended = S.FAILED, ""
            case E.StepFailed:
                require(not self._must_retry(step, "Step"), f"{step.spec.id} fails and could be tried again")
                step.state, step.ended = S.FAILED, ""
            case E.StepCancelled if self.terminating:
                self._let_go(step)
                step.state, step.ended = S.CANCELLED, ""
            case E.StepCancelled:
                require(self.given_up and not step.maybe, f"cancelled in {step.state.name}")
                if step.held:
                    self._never_started(step)
                self._forget_question(step)
                step.state, step.ended = S.CANCELLED, ""
            case E.StepFoundDone | E.StepFoundNotDone | E.StepNotTold:
                self._answered(step, event)
            case E.UndoFailed | E.UndoOutcomeUnknown:
                unknown = event.type is E.UndoOutcomeUnknown
                require(not self._must_retry(step, "Undo"), f"the undo of {step.spec.id} could be tried again")
                require(not (unknown and step.harmless("Undo")), "an undo that may be repeated is left unknown")
                step.state, step.ended = S.UNDO_OUTCOME_UNKNOWN if unknown else S.UNDO_FAILED, ""
            case E.StaleReportObserved | E.StepAttemptConfirmedStopped:
                attempt = step.attempts[event.token]
                require(not attempt.open, "an open attempt is called stale")
                attempt.acts_until_ms = 0
            case E.StepRetryRequested | E.UndoRetryRequested:
                self._asked_for(step)
            case E.StepSkipped:
                self._skipped(step, S.SKIPPED)
            case E.UndoSkipped:
                by_hand = event.detail.startswith("undone")
                self._skipped(step, S.COMPENSATED if by_hand else S.UNDO_SKIPPED)
            case _:
                raise ViolationError(f"nothing is known of {event.type.name}")

    def _succeeded(self, step: Subject, event: Event) -> None:
        undo = event.type is E.UndoSucceeded
        step.tries += step.state.name.endswith("OFFERED")
        self._close(step, "Undo" if undo else "Step", event)
        step.state = S.COMPENSATED if undo else S.SUCCEEDED
        step.maybe = step.maybe and not undo

    def _never_started(self, step: Subject) -> None:
        """An offer that is taken back by one side alone must be one that nobody starts without asking."""
        asks = step.spec.start is StartMode.ON_ACCEPT or step.part == "Undo"
        require(asks and step.state.name.endswith("OFFERED"), f"{step.spec.id} may have started")
        step.attempts[step.newest].open = False

    def _rest(self) -> None:
        """What went forward in a job that is given up has come to rest, which no event tells of what may be done."""
        for step in self.steps:
            if self.undoing or not self.given_up or step.part == "Undo" or step.state in RESTS:
                continue
            if step.held:
                self._never_started(step)
            self._forget_question(step)
            require(step.maybe or step.state is S.ESCALATED, f"{step.spec.id} comes to rest without a word")
            step.state, step.ended = S.OUTCOME_UNKNOWN, ""

    def _turns_back(self, step: Subject) -> None:
        """Undoing begins when no attempt can act any more, and comes to a step when what needs it is undone."""
        require(self.given_up, f"{step.spec.id} is undone in a job that goes forward")
        if not self.undoing:
            self._rest()
            self.undoing = True
            acting = [one.spec.id for one in self.steps if one.held or one.can_act(self._now_ms)]
            require(not acting, f"{step.spec.id} is undone while {acting} can act")
        for number in step.spec.dependents:
            above = self.steps[number]
            over = not above.stands or above.spec.undo is None or above.state is S.UNDO_SKIPPED
            require(over and above.part != "Verify", f"{step.spec.id} is undone before {above.spec.id}")

    def _begins_undo(self, step: Subject) -> None:
        self._turns_back(step)
        require(step.stands and step.spec.undo is not None, f"nothing of {step.spec.id} is to be undone")
        self._forget_question(step)
        if step.part != "Undo" or step.state in PERSON:
            step.tries = step.losses = 0

    def _begins_to_ask(self, step: Subject) -> None:
        require(step.spec.verify is not None and step.maybe, f"nobody can be asked about {step.spec.id}")
        if self.given_up and not step.ended:
            self._turns_back(step)
        step.kept = (step.state, step.tries, step.losses, step.ended or "AttemptUnknown", step.kind, step.final)
        step.tries = step.losses = 0

    def _forget_question(self, step: Subject) -> None:
        if step.kept is not None:
            _, step.tries, step.losses, step.ended, step.kind, step.final = step.kept
            step.kept = None

    def _answered(self, step: Subject, event: Event) -> None:
        require(step.part == "Verify" and step.kept is not None, f"{event.type.name} in {step.state.name}")
        assert step.kept is not None
        before = step.kept[0]
        if step.held:
            self._close(step, "Verify", event)
        self._forget_question(step)
        if event.type is E.StepFoundNotDone:
            step.maybe = step.can_act(self._now_ms)
            step.ended = NOT_HAPPENED
        if event.type is E.StepFoundDone:
            step.state, step.ended = S.SUCCEEDED, ""
        elif self.undoing:
            if event.type is E.StepFoundNotDone:
                step.state = before if before in (S.FAILED, S.SKIPPED) else S.CANCELLED
            else:
                step.state = S.FAILED if step.spec.undo is None else before
            step.ended = ""
        else:
            self._rest_if_given_up(step, "Verify")

    def _asked_for(self, step: Subject) -> None:
        if step.state is S.ESCALATED:
            step.generation += not step.maybe
            step.tries = step.losses = 0
            step.state = S.RETRY_WAIT
        elif step.state in PERSON:
            step.tries = step.losses = 0
            step.state = S.UNDO_RETRY_WAIT

    def _skipped(self, step: Subject, state: StepState) -> None:
        self._let_go(step)
        step.state, step.ended = state, ""
        if state is S.COMPENSATED:
            step.maybe = False

    def _let_go(self, step: Subject) -> None:
        """A step is passed over, whatever it is at: what an agent holds may happen, unless it must ask first."""
        if step.held:
            attempt = step.attempts[step.newest]
            attempt.open = False
            asks = not step.harmless("Undo") if attempt.part == "Undo" else step.spec.start is StartMode.ON_ACCEPT
            if attempt.part == "Verify" or not (asks and step.state.name.endswith("OFFERED")):
                attempt.acts_until_ms = None
                step.maybe = True
        self._forget_question(step)

    # What it comes to.

    def compare(self, state: JobState, rows: Sequence[Step | None]) -> None:
        """After a batch: the rows are what the history has come to."""
        for step, row in zip(self.steps, rows, strict=True):
            if row is None:
                require(step.state is S.PENDING, f"{step.spec.id} has no row and is {step.state.name}")
                continue
            self._pass_silently(step, row)
            for name, is_, mine in (
                ("state", row.state, step.state),
                ("attempts", row.attempts, step.tries),
                ("lease losses", row.lease_losses, step.losses),
                ("may be done", row.maybe_done, step.maybe),
                ("generation", row.generation, step.generation),
                ("token", row.token, step.newest),
            ):
                require(is_ == mine, f"{name} of {step.spec.id} is {is_!r}; it must be {mine!r}")
        if self.paused and not self.given_up and self.state not in FINAL:
            require(state is JobState.PAUSED, f"the job is {state.name}; it must be PAUSED")
        if state in FINAL or self.state in FINAL:
            require(state is self.state, f"the job is {state.name}; it must be {self.state.name}")

    def _pass_silently(self, step: Subject, row: Step) -> None:
        """What no event tells: a step comes to rest because its job is given up, or waits until nothing can act."""
        if step.state is row.state and not step.ended:
            return
        if row.state in (S.CANCELLED, S.OUTCOME_UNKNOWN):
            self._forget_question(step)
        match row.state:
            case S.CANCELLED:
                require(
                    self.given_up and not step.maybe and (step.ended or self.undoing),
                    f"{step.spec.id} comes to rest as {row.state.name} from {step.state.name} {step.ended}",
                )
            case S.OUTCOME_UNKNOWN:
                require(
                    self.given_up and (step.maybe or step.state is S.ESCALATED),
                    f"{step.spec.id} comes to rest as {row.state.name} from {step.state.name} {step.ended}",
                )
            case S.SKIPPED:
                require(self.terminating and step.kept is not None, f"{step.spec.id} comes to rest as SKIPPED")
                self._let_go(step)
            case S.FAILED:
                known = step.state in (S.OUTCOME_UNKNOWN, S.ESCALATED) and step.spec.undo is None
                require(self.given_up and known, f"{step.spec.id} comes to rest as FAILED from {step.state.name}")
            case S.UNDO_RETRY_WAIT:
                require(
                    self.given_up and step.stands and step.can_act(self._now_ms), f"{step.spec.id} waits for its undo"
                )
                step.tries = step.losses = 0
            case S.VERIFY_RETRY_WAIT:
                require(step.can_act(self._now_ms), f"{step.spec.id} waits to be asked about")
                self._begins_to_ask(step)
            case _:
                raise ViolationError(f"{step.spec.id} is {row.state.name}; it must be {step.state.name} {step.ended}")
        step.state, step.ended = row.state, ""

    def judge(self, state: JobState) -> None:
        """At the end."""
        require(state is self.state and state in FINAL, f"the job ends {state.name}; it must end {self.state.name}")
