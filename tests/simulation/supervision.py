"""The supervisor of a leading process: sweeps when something is due, and at latest each second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stepward.server.core.commands import Sweep, Swept
from tests.simulation.agenda import MS

if TYPE_CHECKING:
    from tests.simulation.process import Process

_SUBJECTS_MAX: Final = 100
_BEAT_MS: Final = 1_000
_UNFINISHED_MS: Final = 1
_OVERDUE_MS: Final = 50
_REFUSED_MS: Final = 200


class Supervision:
    """Bound to one epoch after another."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._epoch = 0

    def follow(self) -> None:
        """Leadership has changed."""
        standing = self._process.standing
        if standing.leads and standing.epoch != self._epoch:
            self._epoch = standing.epoch
            self._sweep(self._epoch)

    def _sweep(self, epoch: int) -> None:
        process = self._process
        if process.leads and process.standing.epoch == epoch:
            process.propose_here(Sweep(_SUBJECTS_MAX), _Swept(self, epoch), urgent=False)

    def swept(self, answer: Any, epoch: int) -> None:
        """A sweep was answered: plan the next."""
        process = self._process
        wait_ms = _REFUSED_MS
        if isinstance(answer, Swept):
            if answer.stuck:
                process.oracle.red("stuck", str(answer.stuck))
            process.oracle.counts["swept"] += answer.handled
            wait_ms = _wait_ms(process, answer)
        process.agenda.after(wait_ms * MS, process.when_awake, self._sweep, epoch)


class _Swept:
    """The ticket of a sweep."""

    def __init__(self, supervision: Supervision, epoch: int) -> None:
        self._supervision = supervision
        self._epoch = epoch
        self.floor = 0

    def answered(self, answer: Any, sequence: int) -> None:
        """See `tickets.Ticket`."""
        self._supervision.swept(answer, self._epoch)


def _wait_ms(process: Process, swept: Swept) -> int:
    if swept.unfinished:
        return _UNFINISHED_MS
    if swept.overdue > swept.held:
        return _OVERDUE_MS
    head = process.standing.head
    passed_ms = process.clock.steady_ms() - head.decided_steady_ms
    waits = [_BEAT_MS]
    if swept.look_again_in_ms is not None:
        waits.append(swept.look_again_in_ms)
    if swept.next_due_led_ms is not None:
        waits.append(swept.next_due_led_ms - head.led_ms - passed_ms)
    if swept.next_due_log_ms is not None:
        waits.append(swept.next_due_log_ms - head.log_ms - passed_ms)
    return max(_UNFINISHED_MS, min(waits))
