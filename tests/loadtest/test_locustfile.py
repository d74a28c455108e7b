"""The locustfile runs headless, counts failures of one kind as one, and judges by the exit code."""

import csv
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.loadtest.stand import ROOT, stand


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A few seconds of locust."""

    code: int
    output: str
    stats: list[dict[str, str]]
    failures: list[dict[str, str]]


def locust(host: str, folder: Path, *options: str) -> Ended:
    """Run it against a server."""
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    command += ["-u", "6", "-r", "6", "-t", "3s", "--host", host, "--csv", str(folder / "locust"), *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return Ended(
        code=ended.returncode,
        output=ended.stdout + ended.stderr,
        stats=rows(folder / "locust_stats.csv"),
        failures=rows(folder / "locust_failures.csv"),
    )


def rows(path: Path) -> list[dict[str, str]]:
    """A CSV file by its columns."""
    return list(csv.DictReader(path.read_text().splitlines()))


def test_jobs_run_to_their_end(tmp_path: Path) -> None:
    """Submit and wait, a few users at once, and an agent that the server knows beside locust's."""
    with stand(tmp_path) as (server, _):
        ended = locust(server.address, tmp_path, "--p99-ms-max", "30000", "Submitter", "FakeAgent")
    total = ended.stats[-1]

    assert ended.code == 0, ended.output
    names = {row["Name"] for row in ended.stats}
    assert {"run bench-trip", "open session"} <= names <= {"run bench-compensate", *names}
    assert int(total["Request Count"]) > 4
    assert total["Failure Count"] == "0"


def test_threshold_decides_over_the_exit_code(tmp_path: Path) -> None:
    """No job ends within a millisecond."""
    with stand(tmp_path) as (server, _):
        ended = locust(server.address, tmp_path, "--p99-ms-max", "1", "Submitter", "FakeAgent")

    assert ended.code == 1
    assert "99th percentile" in ended.output


def test_failures_are_counted_by_kind(tmp_path: Path) -> None:
    """Nobody listens there: one kind of failure, whatever gRPC's message says."""
    ended = locust("127.0.0.1:1", tmp_path, "-t", "5s", "--stop-timeout", "5", "Operator")

    assert ended.code == 1
    assert "100.00% of the requests failed" in ended.output
    assert {row["Error"] for row in ended.failures} == {"CallFailedError('Unreachable')"}


def test_mix_that_is_wrong_ends_it_at_once(tmp_path: Path) -> None:
    """The file is named, and what is wrong."""
    (tmp_path / "mix.toml").write_text("[user]\n")
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--host", "127.0.0.1:1"]
    command += ["--mix", str(tmp_path / "mix.toml")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode != 0
    assert "mix.toml: Object " in ended.stderr
