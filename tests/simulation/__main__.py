"""Runs seeds by hand: `python -m tests.simulation --seed N` replays one, `--seeds N --first F` runs many."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections import Counter

from stepward.server.store.errors import ServerError
from tests.simulation.agenda import SECOND
from tests.simulation.guards import without
from tests.simulation.world import World

# Sets of strings have another order in every process, unless it is told otherwise.
HASH_SEED = "0"


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 when something is red."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed, and tell what happens")
    parser.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--without", default="", metavar="GUARD", help="take one of the guards away")
    parser.add_argument("--two-leaders", action="store_true", help="deceive leaders")
    parser.add_argument("--until-red", action="store_true", help="stop at the first seed that is red")
    options = parser.parse_args(arguments)
    # What agents log is what they should do.
    logging.disable(logging.CRITICAL)
    with without(options.without):
        return run_one(options) if options.seed is not None else run_many(options)


def run_one(options: argparse.Namespace) -> int:
    """Replay a seed."""
    return int(bool(run(options.seed, verbose=True, totals=Counter(), two_leaders=options.two_leaders)))


def run_many(options: argparse.Namespace) -> int:
    """Run seeds, and tell how they went."""
    totals: Counter[str] = Counter()
    begun_s = time.process_time()
    seeds = range(options.first, options.first + options.seeds)
    for count, seed in enumerate(seeds, 1):
        kind = run(seed, verbose=False, totals=totals, two_leaders=options.two_leaders)
        if kind:
            totals[f"red {kind}"] += 1
            if options.until_red:
                seeds = seeds[:count]
                break
    took_s = time.process_time() - begun_s
    red = sum(count for name, count in totals.items() if name.startswith("red "))
    print(f"{len(seeds)} seeds, {red} red, {took_s / len(seeds):.2f} s of CPU each")
    for name, count in sorted(totals.items()):
        print(f"  {name} {count}")
    return int(red > 0)


def run(seed: int, *, verbose: bool, totals: Counter[str], two_leaders: bool) -> str:
    """Run one seed. Returns in which way it is red; empty: it is green."""
    world = World(seed, two_leaders=two_leaders)
    world.verbose = verbose
    kind = ""
    try:
        world.run()
    except (AssertionError, ServerError) as error:
        kind = getattr(error, "kind", type(error).__name__)
        print(f"seed {seed} is red at {world.agenda.now_us / SECOND:.3f} s: {error}", flush=True)
        if verbose:
            traceback.print_exc()
    totals.update(world.oracle.counts)
    totals.update({f"fault {kind}": count for kind, count in world.faults.counts.items()})
    totals.update({f"network {kind}": count for kind, count in world.network.counts.items()})
    totals.update({f"belief {kind}": count for kind, count in world.beliefs.counts.items()})
    totals["simulated s"] += world.agenda.now_us // SECOND
    if verbose and not kind:
        print(f"seed {seed} is green after {world.agenda.now_us / SECOND:.3f} s; it ends as {world.digest}")
    return kind


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
