"""Faults in what follows a success, and in what is done in slices."""

from __future__ import annotations

from tests.museum.exhibit import MODEL, Exhibit, rule, transcript

EXHIBITS = (
    Exhibit(
        "a fan-in starts one branch early",
        "conductor-oss/conductor#18: the join was done before its branches were (H062)",
        rule("advance:need_met", "join.remaining > 1", "join.remaining > 2"),
        "tests/core/test_wide_jobs.py::test_h062_a_fan_in_starts_once_after_every_branch",
        "== (5999 == 6000)",
    ),
    Exhibit(
        "a fan-in of two starts with the first",
        "a join was taken for a chain (H062)",
        rule("advance:need_met", "needs > 1", "needs > 2"),
        transcript("parallel_join"),
        "-   receipt: PENDING",
    ),
    Exhibit(
        "a job completes before its last step",
        "Netflix/conductor#1664: nothing was left to do, for the moment, so it was done (H055)",
        rule("advance:step_succeeded", "not steps_open", "steps_open <= 1"),
        transcript("cancel"),
        "+ j1: RUNNING -> COMPLETED; JobCompleted",
    ),
    Exhibit(
        "the last step of a slice is not told of a success",
        "of thousands of branches a few never began, and the job never ended (H062)",
        rule("spreads:_tell_dependents", "told=place))", "told=place + 1))"),
        transcript("pause_of_a_wide_job"),
        "- j1 b: READY; StepReady",
    ),
    Exhibit(
        "the last step of a slice is not told of an undo",
        "of thousands of steps a few were never undone",
        rule("spreads:_tell_needs", "told=place))", "told=place + 1))"),
        MODEL,
        "undo",
    ),
    Exhibit(
        "a walk over the steps passes over one in each slice",
        "of a page of results the last was never seen",
        rule("passes:_go_on", "found[number - 1]", "found[number]"),
        transcript("pause_of_a_wide_job"),
        "- j1 b: READY",
    ),
)
