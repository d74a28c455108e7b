"""How supervision is, as one node judges it by its own rows and its own clock; nothing is asked of the supervisor."""

from __future__ import annotations

from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from stepward.server.core import brake, breakers, counts, epoch_rows, epochs, incidents, keys, ledger, rows
from stepward.server.core.brake import Standing
from stepward.server.core.clocks import LED_STEP_MS_MAX
from stepward.server.core.due import Due, look

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import JobState
    from stepward.server.reading import Reading

# A beat comes every second. Without one for so long others are told; for so long nobody looks after what hangs.
WARNING_MS: Final = epochs.SILENCE_MS_MAX
CRITICAL_MS: Final = 8_000
# Breakers that a status tells of; more are as bad.
BREAKERS_TOLD_MAX: Final = 100


class Health(IntEnum):
    """How supervision is; the numbers are the contract's."""

    WELL = 1
    WARNING = 2
    CRITICAL = 3


class Verdict(NamedTuple):
    """How it is, and why it is not better; empty when it is well."""

    health: Health
    reason: str


class Findings(Struct, frozen=True):
    """What the rows of one node say about supervision."""

    due: Due = Due()
    epochs_lost: int = 0
    stays: bool = False
    jobs: Mapping[JobState, int] = {}
    remediations: int = 0
    incidents_open: int = 0
    brake: Standing = Standing(None, 0)
    held: int = 0
    breakers: tuple[breakers.Standing, ...] = ()


def find(reader: Reading, *, since_head_ms: int, limits: Limits) -> Findings:
    """What the rows say, so long after this node applied the last batch.

    Led time stands still while nobody leads, so without batches it is taken to go on no further than one of them moves
    it.
    """
    head, epoch = reader.head(), reader.get(keys.EPOCH)
    log_ms = head.log_ms + since_head_ms
    led_ms = head.led_ms + min(since_head_ms, LED_STEP_MS_MAX)
    due, beat = look(reader, led_ms=led_ms, log_ms=log_ms), reader.get(keys.BEAT)
    assert epoch is None or isinstance(epoch, epoch_rows.Epoch), epoch
    return Findings(
        due,
        epochs_lost=0 if epoch is None else len(epochs.recent(epoch, log_ms)),
        stays=epoch is not None and epoch.stays,
        jobs=counts.of_all(reader),
        remediations=ledger.recorded(reader),
        incidents_open=incidents.counts(reader).open,
        brake=brake.standing(reader, led_ms=led_ms, limits=limits),
        held=beat.held if isinstance(beat, rows.Beat) else 0,
        breakers=tuple(islice(breakers.standing(reader, led_ms=led_ms), BREAKERS_TOLD_MAX)),
    )


def judge(findings: Findings, *, silent_ms: int, leaderless_ms: int) -> Verdict:
    """The verdict.

    Args:
        findings: What the rows say.
        silent_ms: For how long this node has applied no beat; since its start, if there was none.
        leaderless_ms: For how long it has heard of no leader; since its start, if it never has.
    """
    critical: list[str] = []
    warnings: list[str] = []
    if findings.stays:
        critical.append(
            f"{epochs.LOST_MAX} leaderships within {epochs.LOST_WINDOW_MS // 1_000} s have lost their supervisor: "
            f"nothing is remedied until one has worked for {epochs.GOOD_MS // 1_000} s; see the leader's log"
        )
    if leaderless_ms >= CRITICAL_MS:
        critical.append(f"no leader has been heard of for {leaderless_ms} ms")
    if silent_ms >= WARNING_MS:
        silence = critical if silent_ms >= CRITICAL_MS else warnings
        silence.append(f"the supervisor has given no sign of life for {silent_ms} ms; one is due every second")
    if findings.epochs_lost and not findings.stays:
        warnings.append(
            f"{findings.epochs_lost} of the leaderships of the last {epochs.LOST_WINDOW_MS // 1_000} s lost their "
            "supervisor; see the log of the node that led"
        )
    if findings.brake.on is not None:
        warnings.append(f"the brake holds back {findings.held} remedies: {findings.brake.on.reason}")
    if findings.breakers:
        first, more = findings.breakers[0], len(findings.breakers) - 1
        others = f" and {more} more" if more else ""
        warnings.append(f"the breaker of action {first.action!r}{others} is open: {first.reason}")
    reason = "; ".join((*critical, *warnings))
    return Verdict(Health.CRITICAL if critical else Health.WARNING if warnings else Health.WELL, reason)
