"""Faults in what is tried again, how often, and after which wait."""

from __future__ import annotations

from tests.museum.exhibit import MODEL, SCENARIOS, Exhibit, rule, transcript

_POLICIES = "tests/core/test_policies.py::"

EXHIBITS = (
    Exhibit(
        "one attempt too many",
        "kubernetes/kubernetes#70251: 64 failures where ten were allowed (H029)",
        rule("remediation:_is_left", "step.attempts >= retry.attempts_max", "step.attempts > retry.attempts_max"),
        transcript("retry_with_backoff"),
        "+ j1 charge: OFFERED -> RETRY_WAIT; StepAttemptFailed agent-one attempt=4",
    ),
    Exhibit(
        "one attempt too few",
        "contribsys/faktory#409: the dead list with retries left (H031)",
        rule("remediation:_is_left", "step.attempts >= retry.attempts_max", "step.attempts + 1 >= retry.attempts_max"),
        transcript("retry_with_backoff"),
        "+ j1 charge: OFFERED -> FAILED; StepAttemptFailed agent-one attempt=3",
    ),
    Exhibit(
        "an offer that was lost counts as a failure",
        "contribsys/faktory#409: a reservation that ran out cost a retry (H030, H031)",
        rule("attempts:_close", "trouble in FAILURES", "trouble in FAILURES | {Trouble.LEASE_LOST}"),
        MODEL,
        "were counted",
    ),
    Exhibit(
        "lost leases are not counted",
        "sidekiq/sidekiq#4633: a job that kills its worker went to the next one, again and again (H063)",
        rule("attempts:_close", "step.lease_losses + (trouble is Trouble.LEASE_LOST)", "step.lease_losses"),
        transcript("poison"),
        "- at 16000: j1: RUNNING -> ESCALATED; JobEscalated (POISON)",
    ),
    Exhibit(
        "the poison limit is one too late",
        "a job that kills its worker went on for longer than its limit says (H063)",
        rule("remediation:is_poison", "step.lease_losses >= batch.limits", "step.lease_losses > batch.limits"),
        transcript("poison"),
        "- at 16000: j1: RUNNING -> ESCALATED; JobEscalated (POISON)",
    ),
    Exhibit(
        "a step that may not be repeated is repeated after an unknown outcome",
        "kubernetes/kubernetes#62772: what was asked to run once ran twice (H020)",
        rule("remediation:repeating_is_harmless", "effect is Effect.IDEMPOTENT", "True"),
        transcript("lost_with_its_job"),
        "+ j1 pay: RUNNING -> RETRY_WAIT; StepAttemptUnknown",
    ),
    Exhibit(
        "the wait has no cap",
        "a doubling wait grew to days, and nothing was tried any more",
        rule("policies:retry_delay_ms_max", "min(retry.cap_ms, exact_ms)", "exact_ms"),
        f"{_POLICIES}test_longest_wait",
        "12800 == 10000",
    ),
    Exhibit(
        "the wait overflows",
        "after some thirty attempts the doubling overflowed, and everybody came at once",
        rule(
            "policies:retry_delay_ms_max",
            "return retry.cap_ms",
            "return (retry.initial_ms << exponent) & 0x7FFFFFFF",
        ),
        f"{_POLICIES}test_longest_wait",
        "0 == 300000",
    ),
    Exhibit(
        "everybody waits for equally long",
        "those who failed together came back together, and failed again",
        rule(
            "policies:retry_delay_ms",
            "rng.randint(0, retry_delay_ms_max(attempt, retry))",
            "retry_delay_ms_max(attempt, retry)",
        ),
        f"{_POLICIES}test_wait_is_drawn_from_the_whole_range",
        "{3} == {0, 1, 2, 3}",
    ),
    Exhibit(
        "an agent may ask for any wait",
        "a Retry-After of a century was taken at its word",
        rule("attempts:wait_ms", "min(retry_after_ms, batch.limits.duration_ms_max)", "retry_after_ms"),
        f"{SCENARIOS}/test_timers.py::test_what_an_agent_asks_for_is_bounded",
        "1001 == 1000",
    ),
    Exhibit(
        "the wait that an agent asks for is not heard",
        "Netflix/conductor#167: a delay was ignored for one class of tasks, which were tried again at once (H032)",
        rule("attempts:wait_ms", "if retry_after_ms is not None:", "if False:"),
        transcript("retry_with_backoff"),
        "+ j1 charge: OFFERED -> RETRY_WAIT; StepAttemptFailed agent-one attempt=3",
    ),
    Exhibit(
        "a queue timeout counts as an attempt that may have happened",
        "what nobody had taken was shown to a person as of unknown outcome",
        rule("remediation:_without_attempt", "decide(trouble,", "decide(Trouble.ATTEMPT_UNKNOWN,"),
        transcript("queue_timeout"),
        "+ at 5000: j1: RUNNING -> ESCALATED; JobEscalated (QUEUE_TIMEOUT)",
    ),
    Exhibit(
        "a sign of life extends the step",
        "conductor-oss/conductor#245: a task of 600 s was still in progress after three hours (H033)",
        rule(
            "schedules:working",
            "Bound(step.started_log_ms + policy.start_to_close_ms",
            "Bound(max(step.started_log_ms, heard_log_ms) + policy.start_to_close_ms",
        ),
        transcript("heartbeat"),
        "- at 41500: j1 pages: RUNNING -> RETRY_WAIT; StepAttemptTimedOut",
    ),
    Exhibit(
        "a sign of life is not heard",
        "a task that said that it lives was ended as one that does not",
        rule("reports:_progressed", "rows.StepProgress(kept, batch.moment.log_ms)", "rows.StepProgress(kept, 0)"),
        transcript("heartbeat"),
        "+ at 13000: j1 pages: RUNNING -> RETRY_WAIT; StepAttemptTimedOut",
    ),
    Exhibit(
        "a new leader gives a step its time anew",
        "conductor-oss/conductor#245: the timeout was never reached, since each restart began it again (H033, H034)",
        rule(
            "supervision:_worked_too_long",
            "    if bound.at_log_ms > batch.moment.log_ms:\n",
            "    beat = batch.draft.read(keys.BEAT, rows.Beat)\n"
            "    if beat is not None and beat.epoch != batch.moment.epoch:\n"
            "        bound = bound._replace(at_log_ms=batch.moment.log_ms + policy.start_to_close_ms)\n"
            "    if bound.at_log_ms > batch.moment.log_ms:\n",
        ),
        f"{SCENARIOS}/test_timers.py::test_h033_a_new_leader_gives_an_attempt_no_new_time",
        "[] == [10000]",
    ),
)
