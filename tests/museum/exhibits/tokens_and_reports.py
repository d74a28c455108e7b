"""Faults in what may be reported of an attempt, and by whom."""

from __future__ import annotations

from tests.museum.exhibit import SCENARIOS, Exhibit, rule, transcript

_REPORTS = f"{SCENARIOS}/test_reports.py::"

EXHIBITS = (
    Exhibit(
        "the token of a report is not checked",
        "hatchet-dev/hatchet#1022: the late result of a first attempt moved its workflow on a second time (H019)",
        rule("reports:_report", "step.token != ref.token or step.session_id", "step.session_id"),
        f"{_REPORTS}test_h023_one_stale_report_leaves_the_others_standing",
        "b'Aagent-one",
    ),
    Exhibit(
        "any session may report an attempt",
        "a session that has ended speaks for the one that now holds the step (H022)",
        rule("reports:_report", " or step.session_id != session_id", ""),
        transcript("stale_report"),
        "b'Aagent-three",
    ),
    Exhibit(
        "the token does not grow with the next assignment",
        "a paused holder of a lock wakes up and writes with the number that its successor has",
        rule(
            "offers:_offer",
            "token=token, session_id=session_id)\n    batch.event",
            "token=step.token or token, session_id=session_id)\n    batch.event",
        ),
        transcript("cancel"),
        "b'Aagent-one",
    ),
    Exhibit(
        "a success that is told twice counts twice",
        "rq/rq#2424: what had ended was ended again, the second time otherwise (H021)",
        rule(
            "reports:_report",
            "    if step.state not in states.HELD:\n        return _after_its_end(report.event, step)\n",
            "",
        ),
        transcript("skip_step"),
        "j2/",
    ),
    Exhibit(
        "an attempt that timed out is forgotten",
        "a result that came late was taken for that of the next attempt (H022)",
        rule("attempts:let_go", "lingering=lingering, maybe_done=True", "maybe_done=True"),
        transcript("heartbeat"),
        "- rejected STALE_TOKEN: this attempt had ended; its report was kept as an observation",
    ),
    Exhibit(
        "what a late attempt says is not kept",
        "conductor-oss/conductor#322: a result after the timeout was dropped without a trace (H022)",
        rule(
            "reports:_late",
            "EventType.StaleReportObserved, _describe(event)",
            'EventType.StepAttemptConfirmedStopped, ""',
        ),
        transcript("stale_report"),
        "- rejected STALE_TOKEN: this attempt had ended; its report was kept as an observation (success)",
    ),
    Exhibit(
        "one bad report takes the others of its batch with it",
        "camunda/camunda#16107: the failure of one command held up a whole partition (H023, H064)",
        rule("reports:report_attempts", "            batch.draft.rollback(savepoint)\n", ""),
        f"{_REPORTS}test_h064_a_report_that_raises_leaves_no_trace",
        "== set()",
    ),
    Exhibit(
        "a cancelled step may still be accepted",
        "camunda/camunda#4352: a cancel and a start crossed, and the work of a cancelled job was done (H027)",
        rule("reports:_after_its_end", "if not isinstance(event, Accepted):", "if True:"),
        f"{SCENARIOS}/test_compensation.py::test_h027_a_cancel_between_offer_and_accept",
        "['RECORDED'] == ['CANCELLED']",
    ),
    Exhibit(
        "an on-accept offer of a lost session counts as done",
        "camunda/camunda#59354: an assignment that nobody had seen was taken for work (H014)",
        rule(
            "supervision:_lose",
            "assignment.start is StartMode.ON_ACCEPT and step.state is states.phase(step.state).offered",
            "False",
        ),
        f"{SCENARIOS}/test_leases.py::test_what_was_not_accepted_when_its_session_ended_has_not_happened",
        "('RETRY_WAIT', 0, 1, True) == ('READY', 0, 0, False)",
    ),
    Exhibit(
        "an on-offer assignment of a lost session counts as not begun",
        "work that was delivered and begun was given to another as if it were fresh, and never undone (H042)",
        rule("supervision:_lose", "assignment.start is StartMode.ON_ACCEPT and step.state", "step.state"),
        f"{SCENARIOS}/test_leases.py::test_h063_an_agent_that_dies_before_it_can_say_started_counts_too",
        "('READY', 0, 0) == ('ESCALATED', 0, 3)",
    ),
    Exhibit(
        "an unanswered on-offer assignment is given to another",
        "celery/celery#4766: what was still being worked on was delivered again, and again (H017)",
        rule("supervision:_offer_unanswered", "if assignment.start is StartMode.ON_ACCEPT:", "if True:"),
        transcript("unanswered_offer"),
        "+ at 3000: j1 run: StepHandedBack agent-one",
    ),
)
