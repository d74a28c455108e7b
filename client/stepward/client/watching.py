"""What one watch of a job has seen, over all the streams that it takes.

Nothing is given out twice and nothing is left out: a stream resumes behind the last revision given out, and what a
server sends again is dropped by its revision.
"""

from __future__ import annotations

from dataclasses import replace

from stepward.client import errors, reading
from stepward.client.errors import StepwardError
from stepward.client.failover import Attempts
from stepward.client.values import Job, JobChange
from stepward.v1 import job_service_pb2


class Watch:
    """One watch. The clients hold the streams; this holds what they have brought."""

    def __init__(self, job_id: str, from_revision: int) -> None:
        self.job_id = job_id
        self.ended = False
        """Whether the job was seen in its final state."""
        self._revision = from_revision
        self._resume_from = from_revision
        self._events_missing = False

    def request(self) -> job_service_pb2.WatchJobRequest:
        """What the next stream asks for."""
        return job_service_pb2.WatchJobRequest(job_id=self.job_id, from_revision=self._resume_from)

    def take(self, answer: job_service_pb2.WatchJobResponse) -> list[JobChange]:
        """The change to give out; none when it is an old one."""
        events = tuple(reading.event(event) for event in answer.events if event.revision > self._revision)
        return self._changes(JobChange(job=reading.job(answer.job), events=events))

    def take_job(self, job: Job, address: str) -> list[JobChange]:
        """The same for a job that was read because its stream ended without its end.

        It is given out only when it has ended, since the next stream brings anything else together with its events.

        Raises:
            Unreachable: The job goes on, so the stream was cut off.
        """
        if job.state.final:
            return self._changes(JobChange(job=job, events_missing=True))
        raise errors.Unreachable(f"{address} ended the stream of job {self.job_id}, which goes on", address=address)

    def lost(self, error: StepwardError, attempts: Attempts, now_s: float) -> float:
        """The stream has failed: how long to wait until the next one.

        Raises:
            StepwardError: It is over.
        """
        if isinstance(error, errors.RevisionCompacted) and self._resume_from:
            self._resume_from = 0
            self._events_missing = True
            return 0.0
        if isinstance(error, errors.NoAnswerInTime):
            # Only streams of a bounded wait have a deadline, so the deadline was that bound.
            error = errors.WaitTimedOut(
                f"job {self.job_id} has not ended in the time that was given; it goes on",
                metadata={"job_id": self.job_id},
            )
        return attempts.failed(error, now_s)

    def _changes(self, change: JobChange) -> list[JobChange]:
        self.ended = change.job.state.final
        if change.job.revision <= self._revision:
            return []
        missing = change.events_missing or self._events_missing
        self._revision = self._resume_from = change.job.revision
        self._events_missing = False
        return [replace(change, events_missing=missing)]
