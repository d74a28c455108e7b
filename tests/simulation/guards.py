"""What the simulation can do without, one guard at a time, to see what each is for.

Those of the engine stand in `tests/logbook/rules.py`, each with a test of its own that is red without it. Here stand
those of the rest, taken away as the museum plants faults: some words of one function are changed. `SEEN` says which of
them a storm shows, and how soon; the others need more luck than a thousand storms have, and rely on their own tests.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final
from unittest import mock

from tests.logbook.rules import RULES
from tests.museum.planting import Patch, planted

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGBOOK: Final = "stepward.server.logbook"
_LEASES: Final = "stepward.server.core.leases"
_READERS: Final = "stepward.server.peers.readers:Readers"

OTHERS: Final[dict[str, tuple[Patch, ...]]] = {
    "a disk flushes when it is told to": (
        Patch("tests.simulation.disk:Device.flush", 'self._issued.append((_FLUSH, b""))', "pass"),
    ),
    "a store is flushed when it is opened": (
        Patch("tests.simulation.disk:PageStore._keep_what_was_found", "self._device.flush()", "pass"),
    ),
    "the lease counts from when a message was sent": (
        Patch(f"{_LOGBOOK}.contacts:Contacts.lease_until_ms", "contact.sent_ms)", "contact.answered_at_ms + 300)"),
    ),
    "answers that change nothing wait for the lease": (
        Patch(f"{_LOGBOOK}.reads:Reads.cleared", "if now_ms <", "if True or now_ms <"),
    ),
    "rows that are older are not installed": (
        Patch(f"{_LOGBOOK}.replica:Replica.install", "if fetched.applied_index <= self._journal.applied or", "if"),
    ),
    "entries behind installed rows stay when they are proven": (
        Patch(f"{_LOGBOOK}.installing:install", "journal.term_of(index) == term", "True"),
    ),
    "log time waits for the age of the head": (
        Patch(
            f"{_LOGBOOK}.gap:HeadAge.gap_ms", "if known is not None:\n        return known", "return 2 * (known or 500)"
        ),
    ),
    "a pause counts for log time only": (
        Patch(
            "stepward.server.core.clocks:advance",
            "min(passed_ms, LED_STEP_MS_MAX)",
            "passed_ms * 2",
        ),
    ),
    "lease (a): acknowledged only while it is recorded": (
        Patch(f"{_LEASES}:may_acknowledge", "return session.renewed_epoch", "return True or session.renewed_epoch"),
        Patch(f"{_LEASES}:record_age_ms", "return ttl_ms // 8", "return ttl_ms * 8"),
    ),
    "lease (c): ended only when its agent knows": (
        Patch(
            f"{_LEASES}:session_end_led_ms", "+ -(-ttl_ms // 3) + kill_grace_ms + margin_ms(ttl_ms)", "- ttl_ms // 4"
        ),
    ),
    "rows are as old as the question about them": (
        Patch(f"{_READERS}.answered", "self._is_fresh, asked_at_ms", "self._is_fresh, self._clock.steady_ms()"),
    ),
    "rows are as new as what is applied": (
        Patch(
            f"{_READERS}.answered",
            "self._ahead.hold(sequence, ends_at_ms, partial(self._is_fresh, asked_at_ms), _nobody_waits)",
            "self._is_fresh(asked_at_ms)",
        ),
    ),
    "rows of a leader are as new as its lease": (
        Patch(f"{_READERS}.stepped", "min(now_ms, standing.lease_until_ms)", "now_ms"),
    ),
    "a remedy is written down once": (
        Patch(
            "stepward.server.core.remediation:record",
            "rule = decision.rule.name",
            "rule = decision.rule.name; ledger.record(batch, job_id, ordinal, decision.trouble, remedy, rule=rule)",
        ),
    ),
    "a batch is told when it is committed": (
        Patch(
            f"{_LOGBOOK}.replica:Replica._propose",
            "self._engine.propose(command)",
            "self._engine.propose(command); "
            "self._applied.append(Applied(batch.sequence, batch.epoch, changes, batch.puts, batch.deletes))",
        ),
    ),
    "an old token changes nothing": (
        Patch(
            "stepward.server.core.reports:_report",
            "step.token != ref.token or step.session_id",
            "step.session_id",
        ),
    ),
}

# The first seed of a run without a guard. Where one storm in a hundred shows it, the run begins near one that does.
FIRST: Final = 3_000
FIRST_OF: Final[dict[str, int]] = {
    "only new entries are taken over": 3_060,
    "an old token changes nothing": 3_110,
    "rows are as old as the question about them": 3_030,
    "rows are as new as what is applied": 3_060,
}

# Those that are seen where leaders are deceived: a storm leads to two of them too seldom.
TWO_LEADERS: Final = frozenset({"a batch is told when it is committed"})

# Seeds within which a run without it is red, with room to spare.
SEEN: Final[dict[str, int]] = {
    "flush before promise": 3,
    "only new entries are taken over": 30,
    "a wiped node is in quarantine": 30,
    "pre-vote": 20,
    "committed at the start is what is applied": 30,
    "a transfer passes those who hear the leader": 15,
    "a disk flushes when it is told to": 3,
    "the lease counts from when a message was sent": 40,
    "answers that change nothing wait for the lease": 80,
    "log time waits for the age of the head": 20,
    "a pause counts for log time only": 2,
    "lease (a): acknowledged only while it is recorded": 10,
    "lease (c): ended only when its agent knows": 30,
    "a remedy is written down once": 2,
    "a batch is told when it is committed": 3,
    "an old token changes nothing": 30,
    "who answers is not gone": 30,
    "rows are as old as the question about them": 30,
    "rows are as new as what is applied": 20,
    "rows of a leader are as new as its lease": 40,
}

NAMES: Final = (*RULES, *OTHERS)


@contextmanager
def without(name: str) -> Iterator[None]:
    """The software without one of its guards; empty: with all of them."""
    assert name in ("", *NAMES), f"{name!r} is none of {NAMES}"
    with ExitStack() as stack:
        if name in RULES:
            rule = RULES[name]
            stack.enter_context(mock.patch.object(rule.owner, rule.name, rule.instead))
        for patch in OTHERS.get(name, ()):
            stack.enter_context(planted(patch))
        yield
