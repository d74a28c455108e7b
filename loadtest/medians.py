"""Several runs of one benchmark as one: of each figure the median, since one run says little."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from loadtest.report import Report

# Nodes that do not lead. Which one leads differs from run to run, and is `server` in each.
_FOLLOWER = re.compile(r"n\d+")
# What must be true of every run, or was counted over all of them.
_SUMMED = ("jobs", "lost", "duplicated", "elections")
_COUNTED = ("failures", "server_failures")
_BY_PROCESS = ("cpu_ms_per_job_by_process", "written_bytes_per_job", "peak_memory_mb")
_BY_NAME = ("counters_per_job", "figures")


def medians(runs: Sequence[Report]) -> Report:
    """One report of all of them, which were asked for the same.

    Rates, latencies and costs are the medians over the runs, each of its own. Jobs, elections, and all that is wrong,
    are those of all runs together; it is sound when each of them is. Nodes that do not lead become one `follower`,
    their mean.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    figures: dict[str, Any] = {
        field.name: statistics.median(getattr(run, field.name) for run in runs)
        for field in fields(Report)
        if field.type == "float"
    }
    figures |= {name: sum(getattr(run, name) for run in runs) for name in _SUMMED}
    figures |= {name: _together(getattr(run, name) for run in runs) for name in _COUNTED}
    figures |= {name: _of_each([_followers_as_one(getattr(run, name)) for run in runs]) for name in _BY_PROCESS}
    figures |= {name: _of_each([getattr(run, name) for run in runs]) for name in _BY_NAME}
    rates = tuple(sorted(run.jobs_per_s for run in runs))
    return replace(first, **figures, replicas_equal=all(run.replicas_equal for run in runs), rates=rates)


def _followers_as_one(by_process: Mapping[str, float]) -> dict[str, float]:
    others = [figure for name, figure in by_process.items() if _FOLLOWER.fullmatch(name)]
    kept = {name: figure for name, figure in by_process.items() if not _FOLLOWER.fullmatch(name)}
    return kept | ({"follower": statistics.fmean(others)} if others else {})


def _of_each(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: statistics.median(run[name] for run in runs if name in run) for name in names}


def _together(runs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum((Counter(run) for run in runs), Counter[str]()))
