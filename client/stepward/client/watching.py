"""What one watch of a job has seen, over all the streams that it takes.

Nothing is given out twice and nothing is left out. The events of one change may come in several messages, each with the
job as it is by then, and a stream may break between them, even within the events of one batch. So a stream resumes
just before the batch of the last event, and the events that were given out already are dropped by counting: the events
of a batch have one order for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepward.client import errors, reading
from stepward.client.errors import StepwardError
from stepward.client.failover import Attempts
from stepward.client.values import Job, JobChange, Step
from stepward.v1 import job_pb2, job_service_pb2


class Watch:
    """One watch. The clients hold the streams; this holds what they have brought."""

    def __init__(self, job_id: str, from_revision: int) -> None:
        self.job_id = job_id
        self.ended = False
        """Whether everything has been given out: the job in its final state, and all that led there."""
        self._final_seen = False
        self._resume_from = from_revision
        # What was given out: the job's revision, and that of the last event with how many events of it.
        self._job_revision = from_revision
        self._event_revision = from_revision
        self._events_of_revision = 0
        # How many events of that revision this stream has brought again.
        self._repeated = 0
        self._events_missing = False
        # Of a job with more steps than fit into a message: those that were told so far, as they were last.
        self._steps: dict[str, Step] = {}

    def request(self) -> job_service_pb2.WatchJobRequest:
        """What a new stream asks for."""
        self._repeated = 0
        return job_service_pb2.WatchJobRequest(job_id=self.job_id, from_revision=self._resume_from)

    def take(self, answer: job_service_pb2.WatchJobResponse) -> list[JobChange]:
        """The change to give out; none when all of it is old."""
        new = self._new_events(answer.events)
        job = self._with_steps(reading.job(answer.job))
        self._final_seen = job.state.final
        if new:
            self._resume_from = max(self._resume_from, self._event_revision - 1)
        elif not answer.events:
            # There are no more events up to this revision.
            self._resume_from = max(self._resume_from, job.revision)
        if not new and job.revision <= self._job_revision:
            return []
        return self._give(JobChange(job=job, events=tuple(reading.event(event) for event in new)))

    def stream_ended(self) -> None:
        """The server has closed a stream in good order."""
        self.ended = self._final_seen

    def take_job(self, job: Job, address: str) -> list[JobChange]:
        """The job as it was read because its stream ended without its end.

        It is given out only when it has ended, since the next stream brings anything else together with its events.

        Raises:
            Unreachable: The job goes on, so the stream was cut off.
        """
        if not job.state.final:
            raise errors.Unreachable(f"{address} ended the stream of job {self.job_id}, which goes on", address=address)
        self.ended = True
        return self._give(JobChange(job=job, events_missing=True)) if job.revision > self._job_revision else []

    def lost(self, error: StepwardError, attempts: Attempts, now_s: float) -> float:
        """The stream has failed: how long to wait until the next one.

        Raises:
            StepwardError: It is over.
        """
        if isinstance(error, errors.RevisionCompacted) and self._resume_from:
            self._resume_from = 0
            self._events_missing = True
            self._forget_behind(error.metadata.get("newest_revision", ""))
            return 0.0
        if isinstance(error, errors.WatchTooSlow):
            # It was we who did not read, and what was unread has been read by now.
            return 0.0
        if isinstance(error, errors.NoAnswerInTime):
            # Only streams of a bounded wait have a deadline, so the deadline was that bound.
            error = errors.WaitTimedOut(
                f"job {self.job_id} has not ended in the time that was given; it goes on",
                metadata={"job_id": self.job_id},
            )
        return attempts.failed(error, now_s)

    def _forget_behind(self, newest: str) -> None:
        """Take what comes for new if what was seen is not a part of the history that there is now."""
        if newest.isdecimal() and int(newest) < max(self._event_revision, self._job_revision):
            self._event_revision = self._events_of_revision = self._job_revision = 0

    def _with_steps(self, job: Job) -> Job:
        """The job with every step that was told so far, when the message has not all of them."""
        told = {step.step_id: step for step in job.steps}
        if len(told) >= job.steps_total:
            self._steps = told
            return job
        self._steps |= told
        return replace(job, steps=tuple(self._steps.values()))

    def _new_events(self, events: Sequence[job_pb2.HistoryEvent]) -> list[job_pb2.HistoryEvent]:
        new = []
        for event in events:
            if event.revision > self._event_revision:
                self._event_revision = event.revision
                self._events_of_revision = self._repeated = 1
                new.append(event)
            elif event.revision == self._event_revision:
                self._repeated += 1
                if self._repeated > self._events_of_revision > 0:
                    self._events_of_revision = self._repeated
                    new.append(event)
        return new

    def _give(self, change: JobChange) -> list[JobChange]:
        missing = change.events_missing or self._events_missing
        self._job_revision = max(self._job_revision, change.job.revision)
        self._events_missing = False
        return [replace(change, events_missing=missing)]
