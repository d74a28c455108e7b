"""Faults in rows: what is written, what is taken away, what is rolled back."""

from __future__ import annotations

from tests.museum.exhibit import MODEL, Exhibit, rule, transcript

_CALLER_ENDS = "tests/core/test_caller_ends.py::"
_DRAFT = "tests/core/test_draft.py::"
_RETENTION = "tests/core/test_retention.py::"
_RAISES = "tests/core/test_rules_that_raise.py::"

EXHIBITS = (
    Exhibit(
        "a job stays in the list of its old state",
        "temporalio/web#388: lists with and without a filter told of different runs (H093)",
        rule("batch:Batch.list_job", "self.draft.remove(keys.job_index(namespace, before, job_id))", "pass"),
        MODEL,
        "index rows for",
    ),
    Exhibit(
        "a job is counted where it was",
        "apache/airflow#15399: numbers that are added to and taken from drifted away (H090)",
        rule("counts:change", "counts[before] -= 1", "counts[before] -= 0"),
        MODEL,
        "counts",
    ),
    Exhibit(
        "the timer of a state outlives it",
        "rq/rq#2424: what had succeeded was found overdue, and failed (H021)",
        rule(
            "batch:Batch._move_timer",
            "self.draft.remove(states.timer_key(job_id, ordinal, before))",
            "pass",
        ),
        MODEL,
        "timer",
    ),
    Exhibit(
        "a state has no timer",
        "hatchet-dev/hatchet#301: what was assigned was covered by no timer, and stood for ever (H035)",
        rule(
            "batch:Batch._move_timer",
            "self.draft.put(states.timer_key(job_id, ordinal, after), rows.Timer())",
            "pass",
        ),
        MODEL,
        "timer has no row",
    ),
    Exhibit(
        "a command that is refused leaves its rows",
        "half of what was refused had happened (H064)",
        rule("draft:Draft.rollback", "while len(self._undo) > changes:", "while False:"),
        f"{_DRAFT}test_a_savepoint_takes_back_rows_and_events",
        "b'Aagent-one",
    ),
    Exhibit(
        "a command that is refused leaves its history",
        "the history told of what never happened (H064)",
        rule("draft:Draft.rollback", "_take_back(self._events, self._event_log, events)", "pass"),
        f"{_DRAFT}test_a_savepoint_takes_back_rows_and_events",
        "('j1', 'j2') == ('j1',)",
    ),
    Exhibit(
        "a command that raises is not rolled back",
        "camunda/camunda#16107: a command failed, and what it had begun stayed (H064)",
        rule(
            "decide:decide",
            "            draft.rollback(savepoint)\n            batch.failures",
            "            batch.failures",
        ),
        f"{_RAISES}test_h064_command_that_raises_leaves_no_trace",
        "{b'Jnew'} <= set()",
    ),
    Exhibit(
        "a batch leaves no history",
        "what had happened to a job could be told by nobody",
        rule(
            "draft:Draft.write_history",
            "self.put(keys.history(job_id, sequence), rows.History(wall_ms, led_ms, log_ms, tuple(events), untold))",
            "pass",
        ),
        transcript("cancel"),
        "+ j1: RUNNING",
    ),
    Exhibit(
        "an idempotency key is not looked up",
        "temporalio/temporal#11968: the same request, told twice, started two runs (H048)",
        rule("submission:_known", "if not command.idempotency_key:", "if True:"),
        transcript("idempotency_key"),
        "+ submitted j2",
    ),
    Exhibit(
        "another request under a known key is taken for the first",
        "NousResearch/hermes-agent#88400: what becomes of one key with another body was defined nowhere (H049)",
        rule("submission:_known", "first.fingerprint != command.fingerprint", "False"),
        transcript("idempotency_key"),
        "+ j1 is the first job of this key, RUNNING",
    ),
    Exhibit(
        "the removal of a job leaves its key",
        "a key named a job that there was not, and could never be used again (H052)",
        rule("retention:_hide", "            draft.delete(key)\n", "            pass\n"),
        f"{_RETENTION}test_h052_the_key_lives_until_the_job_has_been_kept",
        "b'Pj1'",
    ),
    Exhibit(
        "the removal of a job leaves its steps",
        "argoproj/argo-workflows#11128: what had ended was kept until the memory was full (H099)",
        rule("retention:_remove", "in _OF_STEPS:", "in _OF_STEPS[1:]:"),
        f"{_RETENTION}test_h018_nothing_of_a_removed_job_is_ever_run_again",
        "{'S': 1} == {}",
    ),
    Exhibit(
        "a job is removed that has not ended",
        "restatedev/restate#3839: the time to keep it ran out while it ran (H052)",
        rule("batch:Batch.put_progress", "after.state in rows.JOB_STATES_FINAL", "True"),
        MODEL,
        "has ended: False; it will be removed 1 times",
    ),
    Exhibit(
        "a job that waited for a person is told among its older ends, too",
        "one end in two places of a stream: whoever resumes is told twice",
        rule("caller_ends:add", "if progress.told_sequence:\n", "if False:\n"),
        f"{_CALLER_ENDS}test_a_job_that_waits_for_a_person_is_told_and_told_anew_when_it_ends",
        "Ends(sequence=",
    ),
    Exhibit(
        "an end stands in the list when its job has been removed",
        "an index that outlives what it points at grows for ever (H099)",
        rule("caller_ends:remove", "_withdraw(batch.draft, job_id, job.caller_id, progress.told_sequence)", "pass"),
        f"{_CALLER_ENDS}test_ends_go_with_their_jobs_and_leave_a_mark",
        "ends that callers are told",
    ),
    Exhibit(
        "nobody learns that ends are gone",
        "whoever resumes from long ago waits for ever for an end that was removed",
        rule("caller_ends:remove", "if progress.told_sequence > gone_sequence(batch.draft):", "if False:"),
        f"{_CALLER_ENDS}test_ends_go_with_their_jobs_and_leave_a_mark",
        "assert",
    ),
)
