"""Load with locust, for mixes, soaks and failures under load; what one job costs is measured by `loadtest.bench`.

    locust -f loadtest/locustfile.py --headless -u 40 -r 20 -t 30s --host localhost:7654,localhost:7655,localhost:7656

Names of classes behind it take these users only, and the agents that they need: `... Submitter FakeAgent`. How many
there are of each, and how often each begins something, stands in `mix.toml`. Latencies contain the time that a call
waits for its turn in this one Python process, so read them as a limit to what the server took. Exits with 1 when more
fails, or takes longer, than the file or the command line allows.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import gevent
import grpc
import grpc.experimental.gevent
from locust import constant_pacing, events
from locust.env import Environment

from loadtest import mix_file, stages
from loadtest.bulk_user import BulkSubmitter
from loadtest.fake_agent import FakeAgent
from loadtest.mix_file import MixError
from loadtest.mix_jobs import SHAPES
from loadtest.observer import ChaosObserver
from loadtest.submissions import Ledger
from loadtest.users import PATIENCE, Caller, Operator, Poller, Submitter, Watcher, stable
from stepward.client import Client, StepwardError

WAITING_CALLS_MAX = 2_000

# gRPC waits in C, where gevent cannot see it: without this, before the first channel, one call at a time would run.
grpc.experimental.gevent.init_gevent()
# Each call that waits holds one of its threads: with ten, which is its own bound, ten users would wait for each other.
gevent.get_hub().threadpool.maxsize = WAITING_CALLS_MAX

__all__ = ["BulkSubmitter", "ChaosObserver", "FakeAgent", "Operator", "Poller", "Submitter", "Watcher"]


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]  # locust's decorators say nothing of types
def add_options(parser: ArgumentParser) -> None:
    """The file, and what is still good enough in place of what it says."""
    group = parser.add_argument_group("stepward")
    group.add_argument("--mix", default=str(mix_file.DEFAULT), help="users and thresholds (default: %(default)s)")
    group.add_argument("--ledger", default="", help="a file for what was submitted and done (default: none)")
    group.add_argument("--fail-ratio-max", type=float, help="of all requests, in place of the file's")
    group.add_argument("--p99-ms-max", type=float, help="99th percentile of each kind, in place of the file's")


@events.init.add_listener  # type: ignore[untyped-decorator]  # locust's decorators say nothing of types
def apply_mix(environment: Environment, **_: Any) -> None:
    """Let the users be as the file says."""
    options = environment.parsed_options
    assert options is not None
    try:
        mix = mix_file.read(Path(options.mix))
    except MixError as error:
        sys.exit(str(error))
    for kind in environment.user_classes:
        wanted = mix.users.get(kind.__name__, mix_file.Kind(count=1))
        kind.weight, kind.fixed_count = wanted.weight, wanted.count
        kind.wait_time = constant_pacing(wanted.pace_s)
    if mix.stages:
        environment.shape_class = stages.Stages(mix.stages)
        environment.shape_class.runner = environment.runner
    if options.fail_ratio_max is None:
        options.fail_ratio_max = mix.thresholds.fail_ratio_max
    if options.p99_ms_max is None:
        options.p99_ms_max = mix.thresholds.p99_ms_max
    # gevent's clock stood while all this was imported: on a busy machine the run would be over before it begins.
    gevent.get_hub().loop.update_now()
    Caller.ledger = Ledger(Path(options.ledger) if options.ledger else None)


@events.test_start.add_listener  # type: ignore[untyped-decorator]  # locust's decorators say nothing of types
def apply_definitions(environment: Environment, **_: Any) -> None:
    """Store what the users run; storing it again changes nothing. A server that is away shows in every job."""
    with Client(environment.host or "", patience=PATIENCE) as client:
        try:
            for shape in SHAPES:
                client.apply_definition(shape.definition)
        except StepwardError as error:
            print(f"not all definitions were stored: {stable(error)}")


@events.quitting.add_listener  # type: ignore[untyped-decorator]  # locust's decorators say nothing of types
def judge(environment: Environment, **_: Any) -> None:
    """Set the exit code."""
    Caller.ledger.close()
    options = environment.parsed_options
    assert options is not None
    complaints = list(complaints_of(environment, options.fail_ratio_max, options.p99_ms_max))
    for complaint in complaints:
        print(complaint)
    environment.process_exit_code = 1 if complaints else 0


def complaints_of(environment: Environment, fail_ratio_max: float, p99_ms_max: float) -> list[str]:
    """What is not good enough, in words."""
    total = environment.stats.total
    found = []
    if total.num_requests == 0:
        found.append("nothing was asked for")
    if total.fail_ratio > fail_ratio_max:
        found.append(f"{total.fail_ratio:.2%} of the requests failed; at most {fail_ratio_max:.2%} may")
    for entry in environment.stats.entries.values():
        p99_ms = entry.get_response_time_percentile(0.99) or 0
        if p99_ms > p99_ms_max:
            text = f"the 99th percentile of {entry.name!r} is {p99_ms:.0f} ms; at most {p99_ms_max:.0f} ms are allowed"
            found.append(text)
    return found
