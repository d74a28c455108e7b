"""The oracle sees what it is there for: each known wrong history is red, and its right twin is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepward.server.core import keys, rows
from stepward.server.core.commands import StreamClosed
from stepward.server.core.ledger_rows import Evidence, LedgerEntry
from stepward.server.core.parts import By, Remedy, Trouble
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import Head, Part, StartMode
from stepward.server.logbook.outbox import Applied, Standing, Transferred
from tests.simulation.clocks import WALL_ERROR_MS
from tests.simulation.oracle import Leased, Oracle, ViolationError


def standing(
    sequence: int, *, term: int = 1, epoch: int = 1, leader_id: str = "", leads: bool = False, hash_: bytes = b"hash"
) -> Standing:
    head = Head(sequence, hash_ + bytes([sequence]), epoch, 1, 0, 0, 0, 0, "")
    return Standing(leads, epoch, term, head, leader_id)


def assigned(sequence: int, token: int, session_id: str = "s") -> Applied:
    row = rows.Assignment(Part.ACTION, StartMode.ON_OFFER, 0)
    put = (keys.assignment(session_id, token, "0-job", 0), keys.encode_row(row))
    return Applied(sequence, 1, None, [put], [])


def remedied(sequence: int, *, token: int, serial: int = 1, remedy: Remedy = Remedy.REASSIGN) -> Applied:
    entry = LedgerEntry(
        serial=serial,
        wall_ms=0,
        led_ms=0,
        log_ms=0,
        epoch=1,
        namespace="default",
        definition_name="trip",
        definition_version=1,
        job_id="0-job",
        ordinal=0,
        step_id="pay",
        part=Part.ACTION,
        trouble=Trouble.LEASE_LOST,
        remedy=remedy,
        by=By.SUPERVISOR,
        actor="",
        reason="",
        evidence=Evidence(token=token),
        proposed=False,
        rule="",
        step_before=None,
        job_before=rows.JobState.RUNNING,
        step_after=None,
        job_after=rows.JobState.RUNNING,
    )
    return Applied(sequence, 1, None, [(keys.ledger(sequence, 0), keys.encode_row(entry))], [])


def ended(sequence: int, session_id: str = "s") -> Applied:
    return Applied(sequence, 1, None, [], [keys.session(session_id)])


def apply(oracle: Oracle, *batches: Applied, led_ms: int = 0, log_ms: int = 0) -> None:
    for batch in batches:
        oracle.applied(batch, Head(batch.sequence, b"", 1, 1, led_ms, log_ms, 0, 0, ""))


def two_leaders(oracle: Oracle) -> None:
    oracle.stepped("n1", standing(1, leader_id="n1"))
    oracle.stepped("n2", standing(1, leader_id="n2"))


def two_epochs(oracle: Oracle) -> None:
    oracle.stepped("n1", standing(1, leads=True))
    oracle.stepped("n2", standing(1, leads=True, term=2))


def forgotten(oracle: Oracle) -> None:
    oracle.stepped("n1", standing(7))
    oracle.started("n1", standing(6), {})


def forgotten_in_the_journal(oracle: Oracle) -> None:
    oracle.stepped("n1", standing(7))
    oracle.started("n1", standing(6), {7: b"other"})


def forgotten_while_it_runs(oracle: Oracle) -> None:
    oracle.stepped("n1", standing(7))
    oracle.stepped("n1", standing(6))


def forgotten_term(oracle: Oracle) -> None:
    oracle.stepped("n1", standing(7, term=3))
    oracle.started("n1", standing(7, term=2), {})


def diverged(oracle: Oracle) -> None:
    oracle.stepped("n1", standing(7))
    oracle.stepped("n2", standing(7, hash_=b"other"))


def lost(oracle: Oracle) -> None:
    oracle.answered("n1", StreamClosed(), 7, floor=0)
    oracle.stepped("n2", standing(7, leads=True, epoch=2))


def lost_with_a_follower(oracle: Oracle) -> None:
    oracle.answered("n1", StreamClosed(), 8, floor=0)
    oracle.stepped("n3", standing(7, epoch=2))
    oracle.stepped("n2", standing(7, leads=True, epoch=2))


def stale(oracle: Oracle) -> None:
    oracle.answered("n1", StreamClosed(), 6, floor=7)


def internal(oracle: Oracle) -> None:
    oracle.answered("n1", Rejection(Reason.INTERNAL, "a bug"), 6, floor=0)


def token(oracle: Oracle) -> None:
    apply(oracle, assigned(1, 5), assigned(2, 4))


def not_granted(oracle: Oracle) -> None:
    apply(oracle, assigned(1, 5))
    oracle.started_attempt("0-job", "pay", 6)


def executed_once_too_often(oracle: Oracle) -> None:
    apply(oracle, remedied(1, token=5))
    oracle.executed("0-job", "pay", Part.ACTION, {5, 6, 7})


def executed_by_a_resent_offer(oracle: Oracle) -> None:
    apply(oracle, remedied(1, token=5, remedy=Remedy.RESEND))
    oracle.executed("0-job", "pay", Part.ACTION, {5, 6})


def remedied_twice(oracle: Oracle) -> None:
    apply(oracle, remedied(1, token=5), remedied(2, token=5, serial=2))


def remedied_by_two(oracle: Oracle) -> None:
    apply(oracle, remedied(1, token=5), remedied(2, token=6))


def early_end(oracle: Oracle) -> None:
    oracle.lease_runs = lambda session_id: session_id == "s"
    apply(oracle, ended(1))


def led_time(oracle: Oracle) -> None:
    apply(oracle, ended(1), led_ms=10)
    apply(oracle, ended(2), led_ms=9)


def led_time_runs_ahead(oracle: Oracle) -> None:
    oracle.elapsed_ms = lambda: 1_000
    apply(oracle, ended(1), led_ms=1_010)


def log_time(oracle: Oracle) -> None:
    apply(oracle, ended(1), log_ms=10)
    apply(oracle, ended(2), log_ms=9)


def log_time_runs_ahead(oracle: Oracle) -> None:
    oracle.elapsed_ms = lambda: 1_000
    oracle.reboots = 1
    apply(oracle, ended(1), log_ms=1_000 + WALL_ERROR_MS + 10)


def read_leases(oracle: Oracle) -> None:
    oracle.leases([Leased("n1", 1), Leased("n2", 2)])


def too_old(oracle: Oracle) -> None:
    known_since_100_ms(oracle)
    oracle.looked("n2", 6, age_ms=880, error_ms=0)


def too_old_by_wall_clocks(oracle: Oracle) -> None:
    known_since_100_ms(oracle)
    oracle.looked("n2", 6, age_ms=480, error_ms=WALL_ERROR_MS)


def known_since_100_ms(oracle: Oracle) -> None:
    """At 1,000 ms."""
    oracle.elapsed_ms = lambda: 100
    oracle.answered("n1", StreamClosed(), 7, floor=0)
    oracle.elapsed_ms = lambda: 1_000


def not_equal(oracle: Oracle) -> None:
    oracle.at_rest({"n1": standing(3), "n2": standing(4)})


def lost_at_rest(oracle: Oracle) -> None:
    oracle.answered("n1", StreamClosed(), 7, floor=0)
    oracle.at_rest({"n1": standing(6), "n2": standing(6)})


def terms(oracle: Oracle) -> None:
    oracle.stepped("n1", standing(1, leader_id="n1"))
    oracle.at_rest({"n1": standing(3, term=8), "n2": standing(3, term=8)})


WRONG: list[tuple[Callable[[Oracle], None], str]] = [
    (two_leaders, "two leaders"),
    (two_epochs, "two epochs"),
    (forgotten, "forgotten"),
    (forgotten_in_the_journal, "forgotten"),
    (forgotten_while_it_runs, "forgotten"),
    (forgotten_term, "forgotten"),
    (diverged, "diverged"),
    (lost, "lost"),
    (lost_with_a_follower, "lost"),
    (stale, "stale"),
    (internal, "internal"),
    (token, "token"),
    (not_granted, "not granted"),
    (executed_once_too_often, "executed"),
    (executed_by_a_resent_offer, "executed"),
    (remedied_twice, "remedied twice"),
    (remedied_by_two, "ledger"),
    (early_end, "lease inequality"),
    (led_time, "clocks"),
    (led_time_runs_ahead, "clocks"),
    (log_time, "clocks"),
    (log_time_runs_ahead, "clocks"),
    (read_leases, "two read leases"),
    (too_old, "too old"),
    (too_old_by_wall_clocks, "too old"),
    (not_equal, "not equal"),
    (lost_at_rest, "lost"),
    (terms, "terms"),
]


def test_node_has_forgotten_nothing_that_its_journal_holds() -> None:
    """Its rows hold it again when a leader says that it is committed."""
    oracle = Oracle()
    oracle.stepped("n1", standing(7))
    oracle.started("n1", standing(6), {7: standing(7).head.hash})
    oracle.stepped("n1", standing(6))
    oracle.stepped("n1", standing(7))
    oracle.started("n1", standing(7), {})


@pytest.mark.parametrize(("history", "kind"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong_history_is_red(history: Callable[[Oracle], None], kind: str) -> None:
    with pytest.raises(ViolationError) as raised:
        history(Oracle())

    assert raised.value.kind == kind


def test_right_history_is_not_red() -> None:
    oracle = Oracle()
    oracle.stepped("n1", standing(1, leader_id="n1", leads=True))
    oracle.answered("n1", StreamClosed(), 1, floor=0)
    oracle.answered("n1", Rejection(Reason.COMMIT_UNKNOWN, "who knows"), 0, floor=1)
    oracle.stepped("n2", standing(1, leader_id="n1"))
    oracle.stepped("n2", standing(2, term=2, epoch=2, leader_id="n2", leads=True))
    oracle.stepped("n1", standing(2, term=2, epoch=2, leader_id="n2"))
    oracle.started("n1", standing(2, term=2, epoch=2), {})
    apply(oracle, assigned(1, 1), assigned(2, 2), ended(3))
    apply(oracle, remedied(4, token=2), remedied(5, token=3, serial=2))
    oracle.started_attempt("0-job", "pay", 2)
    oracle.executed("0-job", "pay", Part.ACTION, {1, 2, 3})
    oracle.executed("0-job", "pay", Part.UNDO, {4})
    oracle.wiped("n1")
    oracle.started("n1", standing(0, term=0, epoch=0, hash_=b"genesis"), {})
    oracle.leases([Leased("n2", 2)])
    oracle.at_rest({"n1": standing(5), "n2": standing(5)})

    assert oracle.acknowledged == 1


def test_epoch_that_comes_to_light_late_has_nothing_to_show() -> None:
    """A leader that stood still while another took over opened its epoch before anything of that was acknowledged."""
    oracle = Oracle()
    oracle.stepped("n2", standing(9, epoch=3, leads=True, term=3))
    oracle.answered("n2", StreamClosed(), 9, floor=0)

    oracle.stepped("n1", standing(5, epoch=2, leads=True, term=2))


def test_first_batch_of_an_epoch_may_be_known_before_its_leader_leads() -> None:
    """A majority has it while the disk of the leader is slow: the one before, which knows it, says who follows it."""
    oracle = Oracle()
    oracle.stepped("n1", standing(7, epoch=2, term=2))
    oracle.answered("n1", Transferred("n2", 2), 7, floor=0)

    oracle.stepped("n2", standing(7, epoch=2, leads=True, term=2))


def test_rows_may_be_as_old_as_they_are_said_to_be() -> None:
    """And the newest are never too old."""
    oracle = Oracle()
    known_since_100_ms(oracle)

    oracle.looked("n2", 6, age_ms=900, error_ms=0)
    oracle.looked("n2", 6, age_ms=500, error_ms=WALL_ERROR_MS)
    oracle.looked("n2", 7, age_ms=0, error_ms=0)
