"""Lists and counts of jobs: work that may be much, so it goes in slices, and every answer is bounded.

A walk goes on behind an id, so a page of several slices promises what several pages do (`core.lists`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.api import convert, pages, slices, validate
from stepward.server.core import counts, lists, views
from stepward.server.core.lists import JobFilter
from stepward.server.core.rejections import Violation
from stepward.server.core.rows import JobState
from stepward.server.job_ids import is_job_id
from stepward.v1 import job_service_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from stepward.server.core.limits import Limits
    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading
    from stepward.v1 import job_pb2

# Rows that one page of a list looks at, at most: jobs, and the steps that tell what remains of one. The page token goes
# on behind them.
SCANNED_MAX: Final = 10_000
# Jobs that a count looks at, at most, when counters cannot tell: about a second's work.
COUNTED_MAX: Final = 100_000


class JobLists:
    """Lists and counts jobs for callers."""

    def __init__(self, gateway: Gateway, limits: Limits) -> None:
        self._gateway = gateway
        self._limits = limits

    async def page(self, request: job_service_pb2.ListJobsRequest) -> job_service_pb2.ListJobsResponse:
        """A page of jobs, the newest first, without steps and outputs.

        It may have fewer jobs than asked for, or none, and still not be the last.

        Raises:
            Refused: INVALID_ARGUMENT; PAGE_TOKEN_INVALID; NO_LEADER.
        """
        wanted = read_filter(
            request.namespace, request.filter, self._limits, states=request.states, definition=request.definition_name
        )
        count_max = pages.page_size(request.page_size, self._limits)
        page = _Page(wanted, count_max, self._limits, before_job_id=pages.position(wanted, request.page_token))
        if page.last and not is_job_id(page.last):
            raise pages.not_of_this_list()
        revision, staleness = await slices.look(self._gateway, request.consistency, page.look_on)
        return job_service_pb2.ListJobsResponse(
            jobs=page.jobs,
            next_page_token=pages.token(wanted, "" if page.ended else page.last),
            revision=revision,
            staleness=staleness,
        )

    async def count(self, request: job_service_pb2.CountJobsRequest) -> job_service_pb2.CountJobsResponse:
        """How many jobs a list with this filter would show, by state.

        Raises:
            Refused: INVALID_ARGUMENT; NO_LEADER.
        """
        wanted = read_filter(request.namespace, request.filter, self._limits)
        counting = _Count(wanted)
        revision, staleness = await slices.look(self._gateway, request.consistency, counting.look_on)
        return job_service_pb2.CountJobsResponse(
            counts=[
                job_service_pb2.JobStateCount(state=int(state), count=number)  # type: ignore[arg-type]  # the contract's numbers
                for state, number in sorted(counting.counts.items())
            ],
            truncated=counting.truncated,
            revision=revision,
            staleness=staleness,
        )


class _Page:
    """A page that is being made. `last` is the id behind which it goes on."""

    def __init__(self, wanted: JobFilter, count_max: int, limits: Limits, *, before_job_id: str) -> None:
        self.jobs: list[job_pb2.Job] = []
        self.last = before_job_id
        self.ended = False
        self._wanted = wanted
        self._count_max = count_max
        self._limits = limits
        self._scanned = 0
        self._size_bytes = 0

    def look_on(self, reader: Reading) -> bool:
        """Look at some more jobs; True when the page is made."""
        slice_ = slices.Slice()
        for met in lists.walk(reader, self._wanted, before_job_id=self.last):
            # Only another job shows that there is a page behind this one.
            if self._is_full:
                return True
            self.last = met.job_id
            self._scanned += 1
            if met.job is not None:
                view, rows_read = views.listed_job(reader, met.job_id, met.job, self._limits)
                job = convert.job(view, reader.head())
                self.jobs.append(job)
                self._scanned += rows_read
                self._size_bytes += job.ByteSize()
            if slice_.is_over:
                return False
        self.ended = True
        return True

    @property
    def _is_full(self) -> bool:
        return (
            len(self.jobs) == self._count_max
            or self._scanned >= SCANNED_MAX
            or self._size_bytes >= pages.PAGE_BYTES_MAX
        )


class _Count:
    """A count that is being made."""

    def __init__(self, wanted: JobFilter) -> None:
        self.counts: dict[JobState, int] = {}
        self.truncated = False
        self._wanted = wanted
        self._scanned = 0
        self._last = ""

    def look_on(self, reader: Reading) -> bool:
        """Count some more jobs; True when all are counted, or as many as one count looks at."""
        if self._wanted.is_of_states_only:
            self.counts = _counted(reader, self._wanted)
            return True
        slice_ = slices.Slice()
        for met in lists.walk(reader, self._wanted, before_job_id=self._last):
            if self._scanned == COUNTED_MAX:
                self.truncated = True
                return True
            self._last = met.job_id
            self._scanned += 1
            if met.job is not None:
                self.counts[met.state] = self.counts.get(met.state, 0) + 1
            if slice_.is_over:
                return False
        return True


def _counted(reader: Reading, wanted: JobFilter) -> dict[JobState, int]:
    """From the counters: no job is looked at."""
    known = counts.of_namespace(reader, wanted.namespace)
    return {state: number for state, number in known.items() if not wanted.states or state in wanted.states}


def read_filter(
    namespace: str,
    asked: job_service_pb2.JobFilter,
    limits: Limits,
    *,
    states: Sequence[int] = (),
    definition: str = "",
) -> JobFilter:
    """Which jobs are asked for. `states` and `definition` stand beside the filter in a list, and may be said in either.

    Raises:
        Refused: INVALID_ARGUMENT, with everything that is wrong.
    """
    found = [*validate.name("namespace", namespace, limits, may_be_empty=True)]
    found += validate.name("definition_name", definition, limits, may_be_empty=True)
    found += _states_violations("states", states)
    found += _filter_violations(asked, limits)
    if states and asked.states and set(states) != set(asked.states):
        found.append(_twice("filter.states", "states"))
    if definition and asked.definition_name and definition != asked.definition_name:
        found.append(_twice("filter.definition_name", "definition_name"))
    validate.require(found)
    return JobFilter(
        namespace=namespace or convert.DEFAULT_NAMESPACE,
        states=tuple(sorted({JobState(state) for state in (*states, *asked.states)})),
        definition_name=definition or asked.definition_name,
        labels=tuple(sorted(asked.labels.items())),
        submitted_from_wall_ms=bound_ms(asked.submitted_from) if asked.HasField("submitted_from") else None,
        submitted_before_wall_ms=bound_ms(asked.submitted_before) if asked.HasField("submitted_before") else None,
        queue=asked.queue,
    )


def _filter_violations(asked: job_service_pb2.JobFilter, limits: Limits) -> list[Violation]:
    found = _states_violations("filter.states", asked.states)
    found += validate.name("filter.definition_name", asked.definition_name, limits, may_be_empty=True)
    found += validate.labels("filter.labels", asked.labels, limits)
    found += validate.name("filter.queue", asked.queue, limits, may_be_empty=True)
    if asked.HasField("submitted_from"):
        found += validate.timestamp("filter.submitted_from", asked.submitted_from)
    if asked.HasField("submitted_before"):
        found += validate.timestamp("filter.submitted_before", asked.submitted_before)
    return found


def _states_violations(field: str, states: Sequence[int]) -> list[Violation]:
    return [
        violation
        for position, state in enumerate(states)
        for violation in validate.between(f"{field}[{position}]", state, min(JobState), max(JobState))
    ]


def _twice(field: str, other: str) -> Violation:
    return Violation(field, f"says something else than {other}; say it in one of them")


def bound_ms(moment: Timestamp) -> int:
    """The first whole millisecond at or after a moment: submissions are told apart by milliseconds."""
    return moment.seconds * 1_000 - (-moment.nanos // 1_000_000)
