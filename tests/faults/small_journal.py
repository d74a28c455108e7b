"""A node that keeps few entries of its log: `python -m tests.faults.small_journal ENTRIES run --data ...`.

Whoever was away for some seconds then finds what it missed compacted, as otherwise after a long time.
"""

import sys
from functools import partial

from stepward.server import __main__
from stepward.server.logbook import replica
from stepward.server.logbook.outbox import ReplicaLimits

if __name__ == "__main__":
    limits = partial(ReplicaLimits, journal_entries_max=int(sys.argv[1]))
    replica.ReplicaLimits = limits  # type: ignore[misc,assignment]  # the replica asks for its limits by this name
    sys.exit(__main__.main(sys.argv[2:]))
