"""Faults in what waits for a person, in what he decides, in the ledger, and in who is told."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, rule

_INCIDENTS = "tests/core/test_incidents.py::"
_LEDGER = "tests/core/test_ledger.py::"

EXHIBITS = (
    Exhibit(
        "an incident stays open when its step goes on",
        "a list of what waits, half of which waits no more, is read by nobody after a week",
        rule("incidents:_resolved", "    draft.remove(keys.incident_open(incident.namespace, number))\n", ""),
        f"{_INCIDENTS}test_a_paused_job_keeps_its_incident",
        "incident 1 stands among the open ones",
    ),
    Exhibit(
        "a decision meets the next incident of its step",
        "an operator ended a job by an alarm of the day before, and it was at work on something else by then",
        rule(
            "resolving:resolve",
            "    if incident.resolved_wall_ms:\n        return IncidentResolved(incident.job_id, already=True)\n",
            "",
        ),
        f"{_INCIDENTS}test_what_was_resolved_is_resolved_once",
        "IncidentResolved(job_id='0-a', already=False)",
    ),
    Exhibit(
        "what a person began is told as the supervisor's",
        "nobody could tell who had ended ten thousand jobs, since it took more than one batch",
        rule("passes:go_on", "        batch.cause = Cause(pass_.by, pass_.actor, pass_.reason)\n", ""),
        f"{_INCIDENTS}test_who_ended_a_wide_job_is_told_at_its_last_step",
        "<By.SUPERVISOR: 1>",
    ),
    Exhibit(
        "a sweep does as a person what he has not asked for",
        "an audit that names a person for what a timer did is worse than none",
        rule("passes:go_on", "            batch.cause = sweep\n", "            pass\n"),
        f"{_INCIDENTS}test_what_a_person_began_is_not_taken_for_what_a_sweep_does_next",
        "<By.PERSON: 3>",
    ),
    Exhibit(
        "a job is undone behind its point of no return",
        "what had been shipped was cancelled, paid back, and delivered",
        rule("resolving:_compensate", "compensation.check_may_turn_back(", "(lambda *_, **__: None)("),
        f"{_INCIDENTS}test_behind_the_point_of_no_return_nothing_is_undone",
        "isinstance(IncidentResolved(",
    ),
    Exhibit(
        "the ledger grows for ever",
        "the table of what the watchers did was what filled the disk",
        rule("ledger:purge_due", "entry.serial > keep_from and ", ""),
        f"{_LEDGER}test_entries_go_by_their_number",
        "[1, 2, 3, 4, 5, 6] == [2, 3, 4, 5, 6]",
    ),
    Exhibit(
        "the last entry of the ledger is removed",
        "after a quiet week the count of all that was ever done began at one again",
        rule("ledger:purge_due", "key == newest or (", "("),
        f"{_LEDGER}test_entries_go_by_their_age",
        "[] == [3]",
    ),
    Exhibit(
        "the cursor of notices goes back",
        "a leader that had been away told everybody of what was long over",
        rule("notices:mark", "max(command.done, 0 if before is None else before.done)", "command.done"),
        f"{_INCIDENTS}test_the_cursor_never_goes_back",
        "NoticesMarked(done=4) == NoticesMarked(done=5)",
    ),
)
