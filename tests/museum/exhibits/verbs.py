"""Faults in what people do by hand."""

from __future__ import annotations

from tests.museum.exhibit import SCENARIOS, Exhibit, rule, transcript

EXHIBITS = (
    Exhibit(
        "what is passed over does not let its dependents go on",
        "a task that was marked as done by hand was, and nothing followed it",
        rule("step_verbs:_skip_action", "    advance.step_succeeded(batch, job_id, ordinal)\n", ""),
        transcript("skip_step"),
        "+ nobody holds j1 tell",
    ),
    Exhibit(
        "a paused job goes on with what waits",
        "what was paused was tried again at its time, as if it were not",
        rule("advance:make_ready", "phase.ready in states.HELD_BACK_IN_PAUSED", "False"),
        transcript("pause"),
        "- at 11000: j1 car: RETRY_WAIT -> READY; StepReady (held back: the job is paused)",
    ),
    Exhibit(
        "a paused job is offered until the walk has come to its end",
        "of a wide job some thousand steps began after its pause",
        rule("offers:_may_be_offered", "progress.state is JobState.PAUSED or ", ""),
        f"{SCENARIOS}/test_transcripts.py::test_transcript[pause_of_a_wide_job]",
        "+ j1 b: READY -> OFFERED",
    ),
    Exhibit(
        "what a person ends leaves its offer with the agent",
        "hatchet-dev/hatchet#4494: what was dropped held its slot for ever (H112)",
        rule("step_verbs:take_back", "        batch.draft.delete(key)\n", ""),
        transcript("skip_step"),
        "+ agent-five: 0 of 1 slots free",
    ),
    Exhibit(
        "a terminated job waits for what had ended",
        "a run that was killed was looked at by timers for the rest of its life",
        rule("termination:end_step", " or step.timer_clock is not NO_TIMER.clock", ""),
        transcript("terminate"),
        "+ j5 first: SUCCEEDED attempts=2",
    ),
    Exhibit(
        "a rerun after nothing had happened keeps its old key",
        "a second try was answered by a remote service with the failure of the first",
        rule("step_verbs:_rerun", "step.generation + (not step.maybe_done)", "step.generation"),
        f"{SCENARIOS}/test_verbs.py::test_a_rerun_is_a_new_generation_only_when_surely_nothing_happened",
        "(1, 0, 0) == (2, 0, 0)",
    ),
    Exhibit(
        "a rerun after something may have happened has a new key",
        "a charge that nobody knew of was made a second time by hand",
        rule("step_verbs:_rerun", "step.generation + (not step.maybe_done)", "step.generation + 1"),
        transcript("retry_step"),
        "+   key j1/pay/2",
    ),
    Exhibit(
        "a rerun inherits the attempts that were used up",
        "temporalio/temporal#1913: what was run again by hand failed at once, of what had been before (H036)",
        rule("step_verbs:_rerun", "        attempts=0,\n", ""),
        transcript("deadline"),
        "+ j9 book: ESCALATED -> OFFERED; StepRetryRequested; StepReady; StepOffered agent-four attempt=2",
    ),
    Exhibit(
        "a rerun inherits the deadline that has passed",
        "Netflix/conductor#1148: what was run again by hand timed out at once (H036)",
        rule("step_verbs:retry_step", "        deadlines.renew(batch, job_id)\n", ""),
        transcript("deadline"),
        "+ j9: ESCALATED -> RUNNING",
    ),
)
