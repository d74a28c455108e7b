"""What calls of one client share: submissions a call, and waits one stream of ends. Pure: no I/O, no clock, no chance.

Whoever submits has a *place*; it is settled once, with what he asked for, with an error, or with nothing: then he goes
the plain way, by a call of his own with the same idempotency key. That is the answer to everything that is not plain
success: it gives every failure as a call of his own would, and twice is once.

An end comes on the stream alone. So a job is waited for here only if its end surely comes there: its submission was
made under our caller id (a known key may name a job of somebody else), and it was decided behind the place from which
the stream tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepward.client import errors, reading
from stepward.client.answers import CODE
from stepward.client.errors import StepwardError
from stepward.client.values import JobResult, JobState, SubmittedJob
from stepward.v1 import job_service_pb2

if TYPE_CHECKING:
    from stepward.v1 import job_pb2

# Submissions of one call, and their bytes: a server takes a thousand, and a message of 4 MiB. One that is larger than a
# call may be goes alone.
BUNDLE_JOBS_MAX = 500
BUNDLE_BYTES_MAX = 1 << 20
# Calls on their way at once. With one only, whatever comes shares the next; it would also hold up everybody.
BUNDLES_MAX = 2
# So many must run jobs at once before they share. Fewer make as many calls, and messages of the stream besides: four at
# once cost a fifth more processor time than with calls of their own, sixteen a quarter less.
RUNS_MIN = 8
# A stream that says nothing for this long is dead: the server says something each minute.
SILENT_S_MAX = 90.0


@dataclass(slots=True, eq=False)
class Place:
    """Somebody who submits, and perhaps waits for the end. The clients derive from it how he is told."""

    job: job_service_pb2.JobSubmission
    waits: bool
    since_s: float
    """When he came."""
    job_id: str = ""
    """Once the job is known."""
    duplicate: bool = False
    withdrawn: bool = False


@dataclass(slots=True, eq=False)
class Bundle:
    """One SubmitJobs call."""

    number: int
    places: list[Place]

    def request(self) -> job_service_pb2.SubmitJobsRequest:
        return job_service_pb2.SubmitJobsRequest(jobs=[place.job for place in self.places])


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a place. None: he goes the plain way."""

    place: Place
    value: JobResult | SubmittedJob | StepwardError | None


class Gathering:
    """All places of one client."""

    def __init__(self, caller_id: str) -> None:
        self.caller_id = caller_id
        self.is_off = False
        """Whether the servers have no such calls: everybody goes the plain way, for as long as this client lives."""
        self._queue: deque[Place] = deque()
        self._on_the_way: dict[int, Bundle] = {}
        self._bundles = 0
        # Who waits for which job, which is perhaps waited for twice.
        self._waiting: dict[str, list[Place]] = {}
        # Ends of jobs that nobody is known to wait for, with the newest call that was on its way when they came: their
        # submission may not have been answered yet.
        self._early: dict[str, tuple[int, job_pb2.Job]] = {}
        # Up to where the stream has told. None: there is none from which to resume.
        self._revision: int | None = None
        self._from_revision = 0
        self._is_told = False
        self._to_check = False
        # Whether somebody has come since the stream said something.
        self._is_used = False

    # Submissions.

    @property
    def tells(self) -> bool:
        """Whether the stream stands, so that who comes now may wait on it."""
        return self._is_told

    @property
    def busy(self) -> bool:
        """Whether a call is on its way, so that who comes now may share the next."""
        return bool(self._on_the_way)

    def fits(self, job: job_service_pb2.JobSubmission) -> bool:
        """Whether a submission may share a call."""
        return not self.is_off and job.ByteSize() <= BUNDLE_BYTES_MAX // 4

    def add(self, place: Place) -> None:
        """Let somebody in. He goes with the next bundle."""
        if place.waits:
            place.job.caller_id = self.caller_id
            self._is_used = True
        self._queue.append(place)

    def withdraw(self, place: Place) -> None:
        """Somebody waits no longer. What was sent for him goes on."""
        place.withdrawn = True
        waiting = self._waiting.get(place.job_id)
        if waiting is not None and place in waiting:
            waiting.remove(place)
            if not waiting:
                del self._waiting[place.job_id]

    def bundle(self) -> Bundle | None:
        """The next call to send, if there is one and not too many are on their way."""
        if len(self._on_the_way) >= BUNDLES_MAX:
            return None
        places: list[Place] = []
        size_bytes = 0
        while self._queue and len(places) < BUNDLE_JOBS_MAX and size_bytes < BUNDLE_BYTES_MAX:
            place = self._queue.popleft()
            if not place.withdrawn:
                places.append(place)
                size_bytes += place.job.ByteSize()
        if not places:
            return None
        self._bundles += 1
        bundle = Bundle(self._bundles, places)
        self._on_the_way[bundle.number] = bundle
        return bundle

    def answered(self, bundle: Bundle, answer: job_service_pb2.SubmitJobsResponse) -> list[Settled]:
        """A call was answered; who is settled by that."""
        self._on_the_way.pop(bundle.number, None)
        if len(answer.results) != len(bundle.places):
            settled = [Settled(place, None) for place in bundle.places]
        else:
            each = zip(bundle.places, answer.results, strict=True)
            settled = [one for place, result in each for one in self._answered(place, result)]
        self._forget_early()
        return settled

    def _answered(self, place: Place, result: job_service_pb2.SubmitJobsResult) -> Iterator[Settled]:
        if place.withdrawn:
            return
        if result.HasField("error"):
            # A call of his own says it with all that belongs to it, or repeats it until it is granted.
            yield Settled(place, None)
        elif not place.waits:
            yield Settled(place, reading.submitted_job(result.job, place.job.idempotency_key))
        else:
            yield from self._begin_to_wait(place, result.job)

    def _begin_to_wait(self, place: Place, submitted: job_service_pb2.SubmitJobResponse) -> Iterator[Settled]:
        place.job_id, place.duplicate = submitted.job_id, submitted.duplicate
        early = self._early.pop(submitted.job_id, None)
        if early is not None:
            yield Settled(place, JobResult(job=reading.job(early[1]), duplicate=place.duplicate))
        elif submitted.duplicate or self._revision is None or submitted.revision <= self._from_revision:
            yield Settled(place, None)
        else:
            self._waiting.setdefault(place.job_id, []).append(place)

    def failed(self, bundle: Bundle, error: StepwardError) -> list[Settled]:
        """A call failed, after all its attempts; who is settled by that.

        Want of a server is everybody's own trouble. Anything else may be the fault of one of them.
        """
        self._on_the_way.pop(bundle.number, None)
        self._forget_early()
        self._judge(error)
        there = [place for place in bundle.places if not place.withdrawn]
        if not isinstance(error, errors.Unavailable):
            return [Settled(place, None) for place in there]
        return [Settled(place, _own(error, place)) for place in there]

    def dropped(self, bundle: Bundle) -> list[Settled]:
        """Nobody will tell any more what became of a call; who is settled by that, if not by its answer."""
        if self._on_the_way.pop(bundle.number, None) is None:
            return []
        return [Settled(place, None) for place in bundle.places if not place.withdrawn]

    def _judge(self, error: StepwardError) -> None:
        if is_not_served(error):
            self.is_off = True

    def _forget_early(self) -> None:
        """Forget ends that came while no call was on its way that is still: nobody here waits for them."""
        oldest = min(self._on_the_way, default=self._bundles + 1)
        while self._early:
            job_id = next(iter(self._early))
            if self._early[job_id][0] >= oldest:
                break
            del self._early[job_id]

    # The stream.

    @property
    def is_idle(self) -> bool:
        """Whether nobody needs the stream."""
        return not (self._waiting or self._queue or self._on_the_way or self._is_used)

    def request(self) -> job_service_pb2.WatchJobsRequest:
        """What a new stream asks for."""
        request = job_service_pb2.WatchJobsRequest(caller_id=self.caller_id)
        if self._revision is not None:
            getattr(request, "from").add(revision=self._revision)
        return request

    def took(self, answer: job_service_pb2.WatchJobsResponse) -> list[Settled]:
        """The stream has told something; who is settled by that."""
        revision = max((one.revision for one in answer.revisions), default=0)
        if self._revision is None:
            self._from_revision = revision
        self._revision = revision
        self._is_told = True
        self._is_used = False
        settled = []
        for job in answer.jobs:
            settled += self._ended(job)
        return settled

    def _ended(self, job: job_pb2.Job) -> list[Settled]:
        places = self._waiting.pop(job.job_id, None)
        if places is not None:
            return [Settled(place, JobResult(job=reading.job(job), duplicate=place.duplicate)) for place in places]
        if self._on_the_way:
            self._early.pop(job.job_id, None)
            self._early[job.job_id] = (self._bundles, job)
        return []

    def lost(self, error: StepwardError) -> bool:
        """The stream has failed. True: what was wrong with it is not with the next one, which may begin at once."""
        self._is_told = False
        self._judge(error)
        if isinstance(error, errors.RevisionCompacted) and self._revision is not None:
            # From now on, then. What ended meanwhile has to be looked up.
            self._revision = None
            self._early.clear()
            self._to_check = True
            return True
        return isinstance(error, errors.WatchTooSlow)

    def to_check(self) -> list[str]:
        """Jobs to be looked up, since the stream does not tell what became of them before its place. Once."""
        if not (self._to_check and self._is_told):
            return []
        self._to_check = False
        return list(self._waiting)

    def checked(self, job_id: str, found: job_pb2.Job | StepwardError) -> list[Settled]:
        """A job was looked up; who is settled by that. One that goes on is told by the stream."""
        if isinstance(found, StepwardError):
            return [Settled(place, _own(found, place)) for place in self._waiting.pop(job_id, ())]
        state = reading.job_state(found.state)
        return self._ended(found) if state.final or state is JobState.ESCALATED else []

    def stream_over(self) -> list[Settled]:
        """There is no stream any more: whoever waits on it goes the plain way."""
        self._is_told = self._to_check = False
        self._revision = None
        self._early.clear()
        left = [place for places in self._waiting.values() for place in places]
        self._waiting.clear()
        return [Settled(place, None) for place in left]

    def over(self) -> list[Place]:
        """The client is closed: everybody who is not settled."""
        left: Iterable[Place] = [*self._queue, *(one for bundle in self._on_the_way.values() for one in bundle.places)]
        places = [place for place in left if not place.withdrawn]
        self._queue.clear()
        self._on_the_way.clear()
        return places + [settled.place for settled in self.stream_over()]


def is_not_served(error: StepwardError) -> bool:
    """Whether a server says that it has no such call: one of ours, or one that is older than the call."""
    return isinstance(error, errors.NotServed) or error.metadata.get(CODE) == "UNIMPLEMENTED"


def _own(error: StepwardError, place: Place) -> StepwardError:
    """An error of many as that of one: it names his own key, and raising it leaves no trace in theirs."""
    metadata = {**error.metadata, "idempotency_key": place.job.idempotency_key}
    return type(error)(
        error.message,
        metadata=metadata,
        violations=error.violations,
        retry_delay_s=error.retry_delay_s,
        address=error.address,
    )
