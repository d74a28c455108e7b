"""What a run of bad days has shown, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.soak.days import Days

_FORMAT: Final = "{:32} {:>8} {:>9} {:>9} {:>9} {:>9}"


def table(days: Days) -> str:
    """By trouble: how many, how soon they were noticed after their bound, and what is stated."""
    judge, shard = days.judge, days.shard
    lines = [_FORMAT.format("noticed, ms after its bound", "how many", "p50", "p99", "max", "stated")]
    for name, found in sorted(judge.late_ms.items()):
        ordered = sorted(found)
        p50, p99 = (ordered[int((len(ordered) - 1) * share)] for share in (0.5, 0.99))
        lines.append(_FORMAT.format(name, len(ordered), p50, p99, ordered[-1], judge.stated_ms[name]))
    most = shard.limits.remediations_per_minute_max
    lines += [
        f"remediations in any minute: at most {judge.minute_most} of {most}",
        f"had to wait for the brake or for a leader: {judge.counts['held']}, {shard.blocked.longest_ms} ms at most",
        "remediations of what was well: 0",
        f"{shard.batches} batches, {shard.sweeps} sweeps, {shard.epoch} leaderships, {days.jobs} jobs",
        ", ".join(f"{name} {count}" for name, count in sorted(days.done.items())),
        ", ".join(f"{name} {count}" for name, count in sorted(judge.counts.items())),
    ]
    return "\n".join(lines)
