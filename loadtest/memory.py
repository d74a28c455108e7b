"""How the memory of processes moves over a run: whether it grows, or is flat once it has settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest import meters

# What a process may still grow by behind its first minutes, as a share of what it has, or at least in MB: what is drawn
# from one sample to the next.
GROWN_SHARE_MAX = 0.1
GROWN_MB_MIN = 8.0
# Below so many samples there is no slope worth a word.
SAMPLES_MIN = 6


class Sample(NamedTuple):
    """The memory of a process at a moment."""

    at_s: float
    own_mb: float
    """Without the pages of files that it has mapped: what it cannot give back."""
    resident_mb: float


@dataclass
class Course:
    """One process, from its start to its end."""

    name: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    def look(self, now_s: float) -> None:
        """Take a sample; of a process that has just ended there is none."""
        try:
            sample = Sample(now_s, meters.own_memory_mb(self.pid), meters.resident_mb(self.pid))
        except (FileNotFoundError, ProcessLookupError, LookupError):
            return
        self.samples.append(sample)

    def settled(self, settle_s: float) -> list[Sample]:
        """The samples behind its first minutes."""
        return [sample for sample in self.samples if sample.at_s - self.samples[0].at_s >= settle_s]

    def growth(self, settle_s: float) -> Growth | None:
        """How its own memory moved behind its first minutes; None: it did not live long enough to say."""
        settled = self.settled(settle_s)
        return growth(settled) if len(settled) >= SAMPLES_MIN else None


class Growth(NamedTuple):
    """A straight line through samples."""

    begun_mb: float
    mb_per_h: float
    grown_mb: float
    """Over the time of the samples."""

    @property
    def flat(self) -> bool:
        """Whether it is no more than what is drawn from sample to sample."""
        return self.grown_mb <= max(GROWN_MB_MIN, GROWN_SHARE_MAX * self.begun_mb)


def growth(samples: Sequence[Sample]) -> Growth:
    """The line with the least squares. Takes two samples at least."""
    mean_s = sum(sample.at_s for sample in samples) / len(samples)
    mean_mb = sum(sample.own_mb for sample in samples) / len(samples)
    spread = sum((sample.at_s - mean_s) ** 2 for sample in samples)
    slope = sum((sample.at_s - mean_s) * (sample.own_mb - mean_mb) for sample in samples) / spread
    took_s = samples[-1].at_s - samples[0].at_s
    return Growth(mean_mb - slope * (mean_s - samples[0].at_s), slope * 3_600, slope * took_s)
