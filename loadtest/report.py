"""What a run came to: computed from what was played, printed as a table, kept as JSON.

`python -m loadtest.report FILE...` prints the kept runs side by side, as a table for a page.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loadtest.stage import Judged, Played

# Counters of the server that become figures a job, and the name of the figure.
COUNTERS = {
    "puts": "puts_per_job",
    "log_bytes": "log_bytes_per_job",
    "batches": "batches_per_job",
    "flushes": "flushes_per_job",
}


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """What this machine gave in the same minute."""

    calls_per_s: float
    """Unary calls between two processes that do nothing else."""
    flush_ms: float
    """Median time to write 4 KiB and flush it, where the server's data lies."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All figures of one run. Rates and latencies are of the measured seconds, without warm-up."""

    shape: str
    mode: str
    nodes: int
    through: str
    """Which of them were called: the one that leads, its followers, or all in turn."""
    agent_through: str
    tls: bool
    inflight: int
    rate: float
    """Jobs begun a second; 0: as many as go."""
    seconds: float
    jobs: int
    jobs_per_s: float
    steps_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_ms_per_job: float
    """Of all processes."""
    cpu_ms_per_job_by_process: Mapping[str, float]
    counters_per_job: Mapping[str, float]
    """Of the server: puts, bytes of log, batches and flushes."""
    written_bytes_per_job: Mapping[str, float]
    """To disk, by process, in whole pages: the log's bytes, those of the rows, and what is rewritten around both."""
    figures: Mapping[str, float]
    """Those that only this shape has."""
    peak_memory_mb: Mapping[str, float]
    lost: int
    """Jobs that were begun and whose end was not seen, or that the server does not hold as completed."""
    duplicated: int
    """Jobs that were answered or stored twice, and steps that ran twice."""
    elections: int
    """In which nodes have stood while it was measured: each is a pause that nobody wanted."""
    replicas_equal: bool
    """Whether all nodes held the same batches at the end."""
    failures: Mapping[str, int]
    """Jobs that failed for their caller, by kind."""
    server_failures: Mapping[str, int]
    """Where the server counted that it was wrong."""
    yardstick_calls_per_s: float
    yardstick_flush_ms: float
    machine: Mapping[str, str]
    rates: Sequence[float] = ()
    """Where this is several runs: the jobs/s of each, sorted."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`; the counters, and what only this shape has, stand at the top, too."""
        return {**asdict(self), **self.counters_per_job, **self.figures}

    @property
    def sound(self) -> bool:
        """Whether the figures may be believed: something was measured, and nothing was lost or done twice."""
        wrong = self.lost or self.duplicated or self.failures or self.server_failures
        return self.jobs > 0 and self.replicas_equal and not wrong

    def table(self) -> str:
        """For people."""
        rows = [
            ("jobs/s", f"{self.jobs_per_s:,.0f}{self._rates()}"),
            ("steps/s", f"{self.steps_per_s:,.0f}"),
            ("p50 / p99 / max", f"{self.p50_ms:.1f} / {self.p99_ms:.1f} / {self.max_ms:.1f} ms"),
            ("CPU a job", f"{self.cpu_ms_per_job:.2f} ms{_by_process(self.cpu_ms_per_job_by_process)}"),
            *(
                (name.replace("_per_job", " a job").replace("_", " "), f"{figure:,.1f}")
                for name, figure in self._counters()
            ),
            ("written a job", _by_process(self.written_bytes_per_job).strip(" ()") + " bytes"),
            ("peak memory", _by_process(self.peak_memory_mb).strip(" ()") + " MB"),
            *((name.replace("_", " "), _figure(figure)) for name, figure in self.figures.items()),
            ("lost / duplicated", f"{self.lost} / {self.duplicated}"),
            *([("elections", str(self.elections))] if self.nodes > 1 else []),
            *([] if self.replicas_equal else [("replicas", "DIFFER")]),
            *((f"failed: {name}", str(count)) for name, count in self.failures.items()),
            *((f"server: {name}", str(count)) for name, count in self.server_failures.items()),
            ("yardstick", f"{self.yardstick_calls_per_s:,.0f} calls/s, flush {self.yardstick_flush_ms:.2f} ms"),
        ]
        pace = f"{self.rate:g}/s begun" if self.rate else f"{self.inflight} in flight"
        nodes = f"{self.nodes} node{'s' if self.nodes > 1 else ''}{' with TLS' if self.tls else ''}"
        where = "" if (self.through, self.agent_through) == ("leader", "leader") else f" through {self.through}"
        where += f", agent at {self.agent_through}" if where else ""
        head = f"{self.shape}, {self.mode}{where}, {nodes}, {pace}, {self.seconds:.1f} s, {self.jobs:,} jobs"
        width = max(len(name) for name, _ in rows)
        return "\n".join([head, *(f"  {name:<{width}}  {figure}" for name, figure in rows)])

    def _rates(self) -> str:
        return f" (median of {len(self.rates)}: {self.rates[0]:,.0f} to {self.rates[-1]:,.0f})" if self.rates else ""

    def _counters(self) -> list[tuple[str, float]]:
        return list(self.counters_per_job.items())


def report(
    *, given: Mapping[str, Any], played: Played, judged: Judged, counted: Mapping[str, int], yardstick: Yardstick
) -> Report:
    """Make the report.

    Args:
        given: What the run was asked for, by the names of the report's first fields.
        played: What was measured.
        judged: What all of its jobs came to.
        counted: The agent's line: `runs` of handlers and `keys` that they had.
        yardstick: Of the same run.
    """
    window = played.window
    each = 1 / max(1, window.jobs)
    return Report(
        **given,
        seconds=window.seconds,
        jobs=window.jobs,
        jobs_per_s=window.jobs_per_s,
        steps_per_s=played.steps * window.jobs_per_s,
        p50_ms=window.latencies_ms["p50"],
        p99_ms=window.latencies_ms["p99"],
        max_ms=window.latencies_ms["max"],
        cpu_ms_per_job=window.cpu_ms_per_job,
        cpu_ms_per_job_by_process={name: used * each for name, used in window.cpu_ms.items()},
        counters_per_job={COUNTERS[name]: window.counters[name] * each for name in COUNTERS if name in window.counters},
        written_bytes_per_job={name: written * each for name, written in window.written_bytes.items() if written},
        figures=played.figures,
        peak_memory_mb=judged.peak_memory_mb,
        lost=lost(judged, counted),
        duplicated=duplicated(judged, counted),
        elections=window.elections,
        replicas_equal=judged.replicas_equal,
        failures=judged.failures,
        server_failures={name: n for name, n in window.counters.items() if name.endswith("_failures") and n},
        yardstick_calls_per_s=yardstick.calls_per_s,
        yardstick_flush_ms=yardstick.flush_ms,
        machine=machine(),
    )


def lost(judged: Judged, counted: Mapping[str, int]) -> int:
    """Jobs without an answer, answered ones that the server does not hold as ended so, and handlers that never ran."""
    unanswered = judged.begun - judged.answered
    gone = sum(max(0, wanted - judged.stored.get(state, 0)) for state, wanted in judged.wanted.items())
    return unanswered + gone + max(0, judged.handled - counted["keys"])


def duplicated(judged: Judged, counted: Mapping[str, int]) -> int:
    """Answers that named the same job, jobs beyond those that were begun, and keys whose handler ran twice."""
    answers = judged.answered - judged.distinct
    stored = max(0, sum(judged.stored.values()) - judged.begun)
    return answers + stored + counted["runs"] - counted["keys"]


def machine() -> dict[str, str]:
    """Where it ran."""
    return {
        "processors": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
    }


def _by_process(figures: Mapping[str, float]) -> str:
    parts = ", ".join(
        f"{name} {figure:.2f}" if figure < 10 else f"{name} {figure:.0f}" for name, figure in figures.items()
    )
    return f" ({parts})"


def _figure(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 or figure == int(figure) else f"{figure:,.2f}"


COLUMNS = (
    "shape, mode",
    "load",
    "jobs/s",
    "p50 / p99 ms",
    "CPU ms a job",
    "of which",
    "written a job by the leader",
    "batches a job",
    "yardstick",
)


def side_by_side(runs: Iterable[Mapping[str, Any]]) -> str:
    """Runs that were kept with `--json`, as a Markdown table."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(_line, runs)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _line(run: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{run['shape']}, {run['mode']}",
        f"{run['rate']:g}/s begun" if run["rate"] else f"{run['inflight']} in flight",
        f"{run['jobs_per_s']:,.0f}",
        f"{run['p50_ms']:.0f} / {run['p99_ms']:.0f}",
        f"{run['cpu_ms_per_job']:.2f}",
        ", ".join(f"{name} {ms:.2f}" for name, ms in run["cpu_ms_per_job_by_process"].items()),
        f"{run['written_bytes_per_job']['server'] / 1_000:,.0f} kB",
        f"{run['batches_per_job']:.2f}",
        f"{run['yardstick_calls_per_s']:,.0f} calls/s, flush {run['yardstick_flush_ms']:.2f} ms",
    )


if __name__ == "__main__":
    print(side_by_side(json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]))
