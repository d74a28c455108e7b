"""What is stored of work that did not fit into one batch: how far it has come."""

from __future__ import annotations

from stepward.server.core.parts import By
from stepward.server.core.rows import PassKind, Row


class Pass(Row, frozen=True):
    """A walk over the steps of a job that did not fit into one batch (`X`): one a job, with a timer of its own.

    `after` is the position of the last step that it has passed. `by`, `actor` and `reason` say what began it.
    """

    kind: PassKind
    after: int = -1
    timer_at_led_ms: int = 0
    by: By = By.SUPERVISOR
    actor: str = ""
    reason: str = ""


class Spread(Row, frozen=True):
    """An outcome that is still being told to the steps that wait for it (`F`), with a timer of its own.

    `told` counts those that know it, in the order of the definition: dependents that may become ready, or with `undo`
    needs that may be undone.
    """

    undo: bool
    told: int
    timer_at_led_ms: int = 0


class Purge(Row, frozen=True):
    """An ended job that is to be removed (`R`); when is in the key.

    First what its steps have left elsewhere is looked for, behind the step `after`; then the job vanishes as a whole
    (`hidden`), then the rest of its rows.
    """

    after: int = -1
    hidden: bool = False
