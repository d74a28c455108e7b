"""The benchmark, and the shape that speed needs: counted by the server, so no machine changes it."""

import json
import time
from pathlib import Path

import pytest

from tests.loadtest.stand import last_json, run_module, stand

SHORT = ("--seconds", "1", "--warmup", "0.2", "--inflight", "8", "--yardstick-seconds", "0.2")
THREE = ("--nodes", "3")


@pytest.mark.parametrize("mode", ["run", "python-client"])
def test_bench_measures_and_checks_itself(tmp_path: Path, mode: str) -> None:
    """A short run from start to end; its figures are plausible and sound."""
    figures = tmp_path / "figures.json"
    options = ("--mode", mode, *SHORT, "--data", str(tmp_path))
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
        began = time.monotonic()
        said = last_json(run_module("loadtest.load", *options).stdout)
        took_s = time.monotonic() - began

    # The first is begun before the measured seconds, and the last behind them.
    assert 50 * said["seconds"] - 1 <= said["begun"] <= 50 * took_s
    assert said["answered"] == said["begun"]


@pytest.mark.parametrize(
    ("shape", "options", "told"),
    [
        ("compensate", (), {"steps_percent_of_trips", "cpu_ms_per_step", "trip_cpu_ms_per_step"}),
        ("deep", ("--links", "20"), {"cpu_ms_per_step"}),
        ("wide", ("--links", "300"), {"wide_steps_per_s", "cost_ratio", "p99_ratio"}),
        ("idle-agents", (*THREE, "--agents", "60"), {"heartbeats_per_s", "cpu_percent_server", "connected"}),
        ("backlog", (*THREE, "--finished", "300", "--waiting", "600"), {"restart_to_ready_s", "leader_own_memory_mb"}),
        ("failover", (*THREE, "--rate", "40"), {"gap_s", "half_rate_after_gap_s", "slowest_job_s"}),
    ],
)
def test_each_shape_works_and_loses_nothing(
    tmp_path: Path, shape: str, options: tuple[str, ...], told: set[str]
) -> None:
    """So short that its figures say nothing about speed."""
    figures = tmp_path / "figures.json"
    command = ("--shape", shape, *SHORT, *options, "--data", str(tmp_path), "--json", str(figures))
    ended = run_module("loadtest.bench", *command)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    measured = json.loads(figures.read_text())
    assert (measured["lost"], measured["duplicated"], measured["failures"]) == (0, 0, {})
    assert measured["replicas_equal"]
    assert all(measured[name] > 0 for name in told), measured


def test_three_nodes_with_mutual_tls(tmp_path: Path) -> None:
    """All three hold the same batches at the end, and each process is told apart."""
    figures = tmp_path / "figures.json"
    options = (*THREE, "--tls", *SHORT, "--data", str(tmp_path))
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
    # One job may have begun before the measured seconds, or end behind them.
    assert (counters["batches"] - beats) / (jobs + 1) <= 4.1
    assert (counters["puts"] - beats) / (jobs + 1) <= 30.1
    assert counters["log_bytes"] / (jobs + 1) <= 4096
