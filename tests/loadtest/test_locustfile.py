"""The locustfile runs headless, counts failures of one kind as one, and judges by the exit code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.loadtest.stand import ROOT, stand


def locust(host: str, folder: Path, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """A few seconds of locust; its exit code, its statistics and what it printed."""
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    command += ["-u", "4", "-r", "4", "-t", "3s", "--host", host, "--json-file", str(folder / "stats"), *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, json.loads((folder / "stats.json").read_text()), ended.stdout + ended.stderr


def test_jobs_run_to_their_end(tmp_path: Path) -> None:
    """Submit and wait, a few users at once."""
    with stand(tmp_path) as (server, _):
        code, stats, output = locust(server.address, tmp_path)

    assert code == 0, output
    assert [entry["name"] for entry in stats] == ["RunJob"]
    assert stats[0]["num_requests"] > 4
    assert stats[0]["num_failures"] == 0


def test_threshold_decides_over_the_exit_code(tmp_path: Path) -> None:
    """No job ends within a millisecond."""
    with stand(tmp_path) as (server, _):
        code, _, output = locust(server.address, tmp_path, "--p99-ms-max", "1")

    assert code == 1
    assert "99th percentile" in output


def test_failures_are_counted_by_kind(tmp_path: Path) -> None:
    """Nobody listens there: one kind of failure, whatever gRPC's message says."""
    code, stats, output = locust("127.0.0.1:1", tmp_path)

    assert code == 1
    assert stats[0]["num_failures"] == stats[0]["num_requests"] > 0
    assert "100.00% of the jobs failed" in output
    assert "CallFailedError('Unreachable')" in output
