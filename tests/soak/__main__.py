"""Bad days by hand: `python -m tests.soak --hours 2` tells how soon everything was noticed."""

from __future__ import annotations

import argparse
import sys
import time

from tests.soak.days import Days
from tests.soak.figures import table


def main(arguments: list[str]) -> int:
    """Run what is asked for; what is wrong raises."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=2.0, help="of simulated time")
    options = parser.parse_args(arguments)
    begun_s = time.process_time()
    days = Days(options.seed)
    days.run(int(options.hours * 3_600))
    print(table(days))
    print(f"seed {options.seed}: {options.hours} simulated hours took {time.process_time() - begun_s:.0f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
