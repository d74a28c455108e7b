"""Faults in how a job is undone."""

from __future__ import annotations

from tests.museum.exhibit import MODEL, SCENARIOS, Exhibit, rule, transcript

_COMPENSATION = f"{SCENARIOS}/test_compensation.py::"

EXHIBITS = (
    Exhibit(
        "a step of unknown outcome is not undone",
        "apache/incubator-seata#3284: an error in recording was taken for a failure, and no undo followed (H042)",
        rule("compensation:needs_undo", " or step.maybe_done", ""),
        transcript("compensation_of_a_running_branch"),
        "+ j2 hotel: RUNNING -> OUTCOME_UNKNOWN",
    ),
    Exhibit(
        "a step that timed out is not undone",
        "a call without an answer is taken for one that did nothing (H042)",
        rule("attempts:let_go", ", maybe_done=True", ""),
        transcript("deadline"),
        "-   rest may remain done: has no undo",
    ),
    Exhibit(
        "a failure that hides a success is not undone",
        "an exception behind the charge is taken for a charge that was not made (H042)",
        rule(
            "attempts:_close",
            "step.maybe_done or trouble is not Trouble.ATTEMPT_FAILED",
            "step.maybe_done or trouble not in (Trouble.ATTEMPT_FAILED, Trouble.ATTEMPT_BROKEN)",
        ),
        f"{SCENARIOS}/test_reports.py::test_an_exception_that_nobody_classified_may_hide_an_effect",
        "('COMPENSATED', 'FAILED') ==",
    ),
    Exhibit(
        "an undo starts before those of its dependents have ended",
        "camunda/camunda#14920: the order of undos was not the reverse of the work (H041)",
        rule("compensation:dependent_undone", "step.undo_waits or _open_undo", "_open_undo"),
        MODEL,
        "is undone before",
    ),
    Exhibit(
        "all undos start together",
        "camunda/camunda#14920: all undo handlers were started at once (H041)",
        rule("compensation:open_last", "step.undo_waits or any(", "False and any("),
        transcript("cancel"),
        "+ j1 flight: SUCCEEDED -> UNDO_OFFERED; UndoReady; UndoReady",
    ),
    Exhibit(
        "undos start while a forward attempt may act",
        "argoproj/argo-workflows#4108: the exit handler ran beside the pod that it cleaned up after (H046)",
        rule("compensation:all_stopped", "batch.progress(job_id).settling == 0", "True"),
        transcript("cancel"),
        "+ j1 flight: SUCCEEDED -> UNDO_READY",
    ),
    Exhibit(
        "an undo starts beside a lost attempt of its own step",
        "argoproj/argo-workflows#4108, for an agent that was only cut off (H046)",
        rule("compensation:start_undo", "leases.is_clear(step, led_ms=batch.moment.led_ms)", "True"),
        f"{_COMPENSATION}test_an_undo_that_a_person_has_tried_again_waits_for_the_lost_one",
        "'UNDO_OFFERED' == 'UNDO_RETRY_WAIT'",
    ),
    Exhibit(
        "an undo is repeated beside a lost one",
        "an undo that still acts meets its own repetition (H046)",
        rule("attempts:_may_go_on", "not states.phase(step.state).undo and ", ""),
        f"{_COMPENSATION}test_an_undo_of_a_lost_agent_waits_for_its_fence_before_it_is_repeated",
        "'UNDO_OFFERED' == 'UNDO_RETRY_WAIT'",
    ),
    Exhibit(
        "a lost attempt has no fence",
        "a paused process finished its work after its lease was given to another (H042)",
        rule("attempts:_close", "max(fence_led_ms, fence_of(batch, step.session_id))", "fence_led_ms"),
        transcript("poison"),
        "+ j1 run: OFFERED attempts=1 lease_losses=1",
    ),
    Exhibit(
        "one lost attempt that is heard of lifts the fence of another",
        "of two agents that were cut off one comes back, and its word is taken for both (H046)",
        rule(
            "reports:_late",
            "if any(known.lost and not (known.closed or known.asks) for known in kept) else 0",
            "if False else 0",
        ),
        f"{SCENARIOS}/test_timers.py::test_h046_the_word_of_one_lost_attempt_is_not_that_of_another",
        "'UNDO_OFFERED' == 'OUTCOME_UNKNOWN'",
    ),
    Exhibit(
        "a success while the job is stopping is never settled",
        "camunda/camunda#4352: cancel and completion crossed, and the instance could do neither (H026)",
        rule("advance:succeed", "    if stopping:\n", "    if False:\n"),
        transcript("cancel_races"),
        "+ j2 hotel: OFFERED -> SUCCEEDED",
    ),
    Exhibit(
        "an undo that failed for good lets the undo go on",
        "apache/incubator-seata#5077: an undo that failed was no reason to ask anybody (H043)",
        rule(
            "compensation:undo_failed",
            "    _escalate_job(batch, job_id, replace(failure, step_id=batch.spec(job_id, ordinal).id))\n",
            "    undo_ended(batch, job_id, ordinal)\n",
        ),
        transcript("retry_step"),
        "+ j3: COMPENSATING -> FAILED; JobFailed",
    ),
    Exhibit(
        "a job is COMPENSATED although something remains done",
        "a saga reported its success while one of its steps had no undo at all",
        rule("compensation:_count_ended", "progress.remaining + needs_undo(step)", "progress.remaining"),
        transcript("lost_with_its_job"),
        "+ j1: RUNNING -> COMPENSATED; JobCompensationStarted (NOT_HELD); JobCompensated",
    ),
    Exhibit(
        "an undo inherits the attempts of its action",
        "apache/incubator-seata#2861: what the action had used up was missing when it was to be undone (H043)",
        rule("compensation:start_undo", "attempts=0, lease_losses=0, ready_log_ms=-1", "ready_log_ms=-1"),
        transcript("cancel"),
        "+ j1 flight: SUCCEEDED -> UNDO_OFFERED; UndoReady; UndoOffered agent-one attempt=2",
    ),
    Exhibit(
        "the verdict of a question is not heard",
        "a status query was made, and what it said was not looked at",
        rule("verifying:answered", "said.happened is None", "True"),
        transcript("verify"),
        "StepNotTold",
    ),
    Exhibit(
        "a verdict counts for an attempt that can still act",
        "the query came before the charge that it asked about",
        rule(
            "verifying:_found_not_done",
            "maybe_done = not leases.is_clear(step, led_ms=batch.moment.led_ms)",
            "maybe_done = False",
        ),
        transcript("verify_late"),
        "+ j1 charge: RETRY_WAIT attempts=2",
    ),
)
