"""The benchmark, and the shape that speed needs: counted by the server, so no machine changes it."""

import json
from pathlib import Path

import pytest

from tests.loadtest.stand import last_json, run_module, stand


@pytest.mark.parametrize("mode", ["run", "python-client"])
def test_bench_measures_and_checks_itself(tmp_path: Path, mode: str) -> None:
    """A short run from start to end; its figures are plausible and sound."""
    figures = tmp_path / "figures.json"
    options = ("--mode", mode, "--seconds", "1", "--warmup", "0.5", "--inflight", "8", "--data", str(tmp_path))
    ended = run_module("loadtest.bench", *options, "--json", str(figures))
    measured = json.loads(figures.read_text())

    assert ended.returncode == 0, ended.stderr
    assert "jobs/s" in ended.stdout
    assert (measured["lost"], measured["duplicated"], measured["failures"]) == (0, 0, {})
    assert measured["jobs_per_s"] > 0
    assert measured["yardstick_calls_per_s"] > 0
    assert set(measured["cpu_ms_per_job_by_process"]) == {"server", "agent", "load"}


def test_open_loop_begins_jobs_at_their_time(tmp_path: Path) -> None:
    """The rate is kept whatever the answers do."""
    with stand(tmp_path) as (server, _):
        options = ("--server", server.address, "--rate", "50", "--seconds", "2", "--warmup", "0")
        said = last_json(run_module("loadtest.load", *options).stdout)

    assert 80 <= said["begun"] <= 110
    assert said["answered"] == said["begun"]


def test_three_nodes_with_mutual_tls(tmp_path: Path) -> None:
    """All three hold the same batches at the end, and each process is told apart."""
    figures = tmp_path / "figures.json"
    options = ("--nodes", "3", "--tls", "--seconds", "1", "--warmup", "0.5", "--inflight", "8", "--data", str(tmp_path))
    ended = run_module("loadtest.bench", *options, "--json", str(figures))

    assert ended.returncode == 0, ended.stderr
    measured = json.loads(figures.read_text())
    assert "3 nodes with TLS" in ended.stdout
    assert (measured["lost"], measured["duplicated"], measured["failures"]) == (0, 0, {})
    assert measured["replicas_equal"]
    assert len(measured["cpu_ms_per_job_by_process"]) == 5


def test_shape_of_a_trip_that_runs_alone(tmp_path: Path) -> None:
    """A job of three steps costs at most 4 batches, 30 puts and 4 KB of log.

    Each outcome must share its batch with the offer that it makes possible, an agent must report start and outcome
    together, and a job must be few rows. None of these can be added later. Beats and heartbeats cost a few batches and
    rows beside the jobs; the run is long enough for that to be below a tenth of one a job.
    """
    with stand(tmp_path) as (server, _):
        options = ("--server", server.address, "--inflight", "1", "--seconds", "3", "--warmup", "0.5")
        said = last_json(run_module("loadtest.load", *options).stdout)
    jobs, counters = said["jobs"], said["counters"]
    beats = counters["sweeps"]

    assert jobs > 20
    assert (counters["batches"] - beats) / jobs <= 4.1
    assert (counters["puts"] - beats) / jobs <= 30.1
    assert counters["log_bytes"] / jobs <= 4096
