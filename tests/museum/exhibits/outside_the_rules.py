"""Faults in the logbook, in the store, and in the session of an agent."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.planting import Patch

_SERVER = "stepward.server"
_AGENTS = "stepward.agents"
_REPLICA = "tests/logbook/test_replica.py::"
_LEASE = "tests/agents/test_session_lease.py::"
_OFFERS = "tests/agents/test_session_offers.py::"

EXHIBITS = (
    Exhibit(
        "the hash of the parent is not checked",
        "two replicas came apart, and neither noticed for weeks",
        Patch(f"{_SERVER}.logbook.batch:judge", " and batch.parent == head.hash", ""),
        "tests/logbook/test_batch.py::test_judge",
        "<Verdict.APPLY: 'APPLY'> is <Verdict.DIVERGED: 'DIVERGED'>",
    ),
    Exhibit(
        "an entry is applied twice",
        "a snapshot and the entries that it holds were both applied",
        Patch(f"{_SERVER}.logbook.batch:judge", "batch.sequence <= head.sequence", "batch.sequence < head.sequence"),
        "tests/logbook/test_batch.py::test_judge",
        "<Verdict.DIVERGED: 'DIVERGED'> is <Verdict.STALE: 'STALE'>",
    ),
    Exhibit(
        "answers leave before the disk has them",
        "what was acknowledged was gone after a power cut",
        Patch(f"{_SERVER}.logbook.replica:Replica._flush_before_outbox", "    self._store.commit()\n", "    pass\n"),
        f"{_REPLICA}test_outbox_is_durable",
        "0 == (0 + 1)",
    ),
    Exhibit(
        "a vote is never written to the disk",
        "a node that was restarted voted twice in one term, and there were two leaders",
        Patch(
            f"{_SERVER}.logbook.journal:StoreJournal.setCurrentTerm",
            "    self._store.put_fact(facts.TERM, msgspec.msgpack.encode((term, votedForNodeId)))\n",
            "",
        ),
        "tests/logbook/test_engine.py::test_vote_for_another_is_durable_before_it_is_given",
        "[0, None] == [9, 'n2']",
    ),
    Exhibit(
        "a damaged entry of the journal is read",
        "a bit that had flipped on one disk was sent to all",
        Patch(
            f"{_SERVER}.logbook.journal:_decode",
            ' or int.from_bytes(value[:_CHECKSUM_BYTES], "big") != _checksum(body, index)',
            "",
        ),
        "tests/logbook/test_journal.py::test_damaged_entry_is_found",
        "DID NOT RAISE JournalCorrupt",
    ),
    Exhibit(
        "what was applied may be truncated",
        "rows told of an entry that the journal had taken back",
        Patch(
            f"{_SERVER}.logbook.journal:StoreJournal.deleteEntriesFrom",
            "    assert first > self._applied, (first, self._applied)\n",
            "",
        ),
        "tests/logbook/test_journal.py::test_applied_entries_are_never_truncated",
        "DID NOT RAISE AssertionError",
    ),
    Exhibit(
        "a gap without a leader moves the clock of leases",
        "after an outage of the cluster every agent was taken for dead",
        Patch(f"{_SERVER}.core.clocks:reopen", "led_ms=head.led_ms,", "led_ms=head.led_ms + gap_ms,"),
        "tests/core/test_clocks.py::test_reopen",
        "Clocks(led_ms=10300,",
    ),
    Exhibit(
        "a pause of the leader moves the clock of leases by all of it",
        "a leader that woke from a pause ended all leases before it read the heartbeats that waited",
        Patch(f"{_SERVER}.core.clocks:advance", "min(passed_ms, LED_STEP_MS_MAX)", "passed_ms"),
        f"{_REPLICA}test_pause_moves_led_time_by_a_bounded_step",
        "(60000 - 0) == 2000",
    ),
    Exhibit(
        "a row that was deleted comes back from the cache",
        "an entry was dropped from the cache of today, and found in that of yesterday",
        Patch(f"{_SERVER}.store.live:LiveRows._forget", "    self._old.pop(key, None)\n", ""),
        "tests/store/test_live.py::test_deleted_row_is_gone_from_both_generations",
        "is None",
    ),
    Exhibit(
        "an agent counts its lease from the answer",
        "a slow answer made a lease longer than the one that was given (H003)",
        Patch(
            f"{_AGENTS}.session:Session._heartbeat_answered",
            "    self._lease.acknowledged(answer.number)\n",
            "    self._lease.acknowledged(answer.number)\n    self._lease._counts_from_ms = now_ms\n",
        ),
        f"{_LEASE}test_session_counts_its_lease_from_when_it_sent_the_heartbeat",
        "lease_runs",
    ),
    Exhibit(
        "an answer counts for the newest heartbeat",
        "the answer to a heartbeat of a minute ago was taken for that to the last one (H003)",
        Patch(
            f"{_AGENTS}.lease:Lease.acknowledged",
            "self._sent_at_ms.get(number)",
            "max(self._sent_at_ms.values(), default=None)",
        ),
        f"{_LEASE}test_lease_counts_from_the_newest_acknowledged",
        "12000 == 11000",
    ),
    Exhibit(
        "an offer that comes twice is started twice",
        "celery/celery#4766: one delivery, two executions (H017)",
        Patch(
            f"{_AGENTS}.holdings:Holdings.offered",
            "    if key in self.active or key in self.ended:\n        return\n",
            "",
        ),
        f"{_OFFERS}test_duplicate_of_a_running_attempt_is_dropped",
        "['start flight#7'] == []",
    ),
    Exhibit(
        "an offer of what was answered long ago is started",
        "a delivery that had been lost on its way came when all was done",
        Patch(
            f"{_AGENTS}.holdings:Holdings.offered",
            "case Past.STARTED | Past.FORGOTTEN:\n            return\n",
            "case Past.STARTED | Past.FORGOTTEN:\n            pass\n",
        ),
        f"{_OFFERS}test_duplicate_of_an_ended_attempt_is_dropped",
        "['start flight#7'] == []",
    ),
    Exhibit(
        "an agent starts what its lease does not cover",
        "a process that had slept took an offer from its buffer, and worked beside its successor",
        Patch(f"{_AGENTS}.holdings:Holdings.offered", "if not lease_runs:", "if False:"),
        f"{_LEASE}test_offer_without_a_lease_is_not_started_and_not_held",
        "['start flight#7'] == []",
    ),
    Exhibit(
        "a refused accept starts all the same",
        "an agent asked whether it may start, and did not wait for the answer (H027)",
        Patch(
            f"{_AGENTS}.holdings:Holdings._accept_answered", "if result != wire.REPORT_RESULT_RECORDED:", "if False:"
        ),
        f"{_OFFERS}test_accept_that_is_not_recorded_never_starts",
        "['start charge#7'] == []",
    ),
)
