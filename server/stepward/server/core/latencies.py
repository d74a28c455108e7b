"""How soon trouble is noticed while a leader leads: the promises, each with the bound that it rests on.

All are upper bounds. Those of leases are on led time, all others on log time. What an agent reports is noticed with the
report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from stepward.server.core import leases
from stepward.server.core.parts import Part, Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import DefinitionBody, StepSpec
    from stepward.server.core.schedules import Policy

# The supervisor looks at what is due when it falls due, at latest this much later.
SWEEP_MS: Final = 1_000
# While a step is only offered its one timer is the accept deadline, at which this bound is looked at, too.
_SEEN_AT_ACCEPT_DEADLINE: Final = frozenset({Trouble.OFFER_UNANSWERED, Trouble.SCHEDULE_TO_CLOSE})
# Promises of one definition that are told: some 200 bytes each. The first steps stand for the others.
DETECTIONS_MAX: Final = 2_000


class Detection(Struct, frozen=True):
    """One kind of trouble is noticed within a time. `part` None: it is the job's."""

    step_id: str
    part: Part | None
    trouble: Trouble
    within_ms: int
    text: str


def lost_agent_ms(limits: Limits) -> int:
    """From the last sign of life of an agent until its attempts are taken from it, on led time."""
    end_led_ms = leases.session_end_led_ms(
        renewed_led_ms=0, ttl_ms=limits.session_ttl_ms, kill_grace_ms=limits.kill_grace_ms
    )
    return end_led_ms + SWEEP_MS


def beyond_bound_ms(trouble: Trouble, limits: Limits) -> int:
    """How long after its bound trouble is noticed at latest; of a lost agent, after its last sign of life."""
    if trouble is Trouble.LEASE_LOST:
        return lost_agent_ms(limits)
    return (limits.accept_deadline_ms if trouble in _SEEN_AT_ACCEPT_DEADLINE else 0) + SWEEP_MS


def detections(body: DefinitionBody, limits: Limits) -> tuple[Detection, ...]:
    """What is noticed of the jobs of a definition, and how soon: the first DETECTIONS_MAX."""
    found: list[Detection] = []
    if body.deadline_ms:
        found.append(_bounded("", None, Trouble.JOB_DEADLINE, body.deadline_ms))
    for spec in body.steps:
        for part, policy in _parts(spec):
            if len(found) >= DETECTIONS_MAX:
                return tuple(found[:DETECTIONS_MAX])
            found += _of_part(spec.id, part, policy, limits)
    return tuple(found[:DETECTIONS_MAX])


def _parts(spec: StepSpec) -> Iterator[tuple[Part, Policy]]:
    yield Part.ACTION, spec
    if spec.undo is not None:
        yield Part.UNDO, spec.undo
    if spec.verify is not None:
        yield Part.VERIFY, spec.verify


def _of_part(step_id: str, part: Part, policy: Policy, limits: Limits) -> Iterator[Detection]:
    yield Detection(step_id, part, Trouble.LEASE_LOST, lost_agent_ms(limits), _lost_agent_text(limits))
    if policy.schedule_to_close_ms:
        yield _bounded(step_id, part, Trouble.SCHEDULE_TO_CLOSE, policy.schedule_to_close_ms, limits.accept_deadline_ms)
    for trouble, bound_ms in (
        (Trouble.OFFER_UNANSWERED, limits.accept_deadline_ms),
        (Trouble.START_TO_CLOSE, policy.start_to_close_ms),
        (Trouble.HEARTBEAT, policy.heartbeat_ms),
        (Trouble.QUEUE_TIME, policy.queue_ms),
        (Trouble.RETRY_TIME, policy.retry.time_ms_max),
    ):
        if bound_ms:
            yield _bounded(step_id, part, trouble, bound_ms)


# What is noticed, counted from when, and what the bound is called.
_TEXTS: Final = {
    Trouble.OFFER_UNANSWERED: ("an offer without an answer", "being made", "accept deadline"),
    Trouble.START_TO_CLOSE: ("an attempt that does not end", "its start", "start_to_close"),
    Trouble.HEARTBEAT: ("an attempt without a sign of life", "the last one", "heartbeat"),
    Trouble.QUEUE_TIME: ("a step that nobody takes", "being ready", "queue"),
    Trouble.SCHEDULE_TO_CLOSE: (
        "a step that does not end, with all its attempts,",
        "being ready first",
        "schedule_to_close",
    ),
    Trouble.RETRY_TIME: ("a step that may not be tried again", "being ready first", "time_max of its retries"),
    Trouble.JOB_DEADLINE: ("a job that does not end", "its submission", "deadline"),
}


def _bounded(
    step_id: str, part: Part | None, trouble: Trouble, bound_ms: int, accept_deadline_ms: int = 0
) -> Detection:
    """`accept_deadline_ms`: of an offer that was made before the bound, which is looked at only then. 0: it is not."""
    within_ms = bound_ms + accept_deadline_ms + SWEEP_MS
    what, since, name = _TEXTS[trouble]
    offered = f"accept deadline {in_words(accept_deadline_ms)} + " if accept_deadline_ms else ""
    made_of = f"{name} {in_words(bound_ms)} + {offered}sweep {in_words(SWEEP_MS)}"
    return Detection(
        step_id, part, trouble, within_ms, f"{what} is noticed within {in_words(within_ms)} of {since}: {made_of}"
    )


def _lost_agent_text(limits: Limits) -> str:
    ttl_ms = limits.session_ttl_ms
    made_of = (
        f"TTL {in_words(ttl_ms)} x 4/3 + kill grace {in_words(limits.kill_grace_ms)} + margin "
        f"{in_words(leases.margin_ms(ttl_ms))} + sweep {in_words(SWEEP_MS)}"
    )
    # The parts are exact, and the sum is rounded up.
    within_ms = -(-lost_agent_ms(limits) // 1_000) * 1_000
    return f"a crashed agent is noticed within {in_words(within_ms)} of led time: {made_of}"


_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000))


def in_words(ms: int) -> str:
    """A time as people say it, exact to the millisecond: "10 min 1 s", "0.6 s"."""
    parts = []
    for unit, unit_ms in _UNITS:
        number, ms = divmod(ms, unit_ms)
        if number:
            parts.append(f"{number} {unit}")
    if ms or not parts:
        parts.append(f"{f'{ms / 1_000:.3f}'.rstrip('0').rstrip('.')} s")
    return " ".join(parts)
