"""A node whose supervisor nothing holds back: `python -m tests.faults.no_brake dev --data ...`.

For tests that let many things go wrong at once and judge each as if it were alone. What the brake does has tests of
its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stepward.server import __main__
from stepward.server.core import brake

if TYPE_CHECKING:
    from stepward.server.core.brake import Hold
    from stepward.server.core.brake_rows import Brake
    from stepward.server.core.limits import Limits


def no_hold(row: Brake, *, led_ms: int, limits: Limits) -> Hold | None:
    """What every remediation is asked for: nothing stands against it."""
    return None


if __name__ == "__main__":
    brake.hold = no_hold
    sys.exit(__main__.main(sys.argv[1:]))
