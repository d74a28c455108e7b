"""What calls share, decided without a server: who goes with which call, who waits for what, what trouble comes to."""

from __future__ import annotations

from typing import Any

import pytest

from stepward.client import errors, gathering
from stepward.client.errors import StepwardError
from stepward.client.gathering import Bundle, Gathering, Place, Settled
from stepward.client.values import JobResult, JobState, SubmittedJob
from stepward.v1 import common_pb2, job_pb2, job_service_pb2

COMPLETED, RUNNING = common_pb2.JOB_STATE_COMPLETED, common_pb2.JOB_STATE_RUNNING
UNAVAILABLE = errors.NoLeader("no leader", metadata={"leader_id": "n1"}, address="a:1", retry_delay_s=2.0)


def place(key: str, *, waits: bool = True, size: int = 0) -> Place:
    payload = common_pb2.Payload(data=b"x" * size)
    return Place(job_service_pb2.JobSubmission(idempotency_key=key, input=payload), waits, 0.0)


def following(revision: int = 10) -> Gathering:
    """One whose stream stands, from a place on."""
    core = Gathering("me")
    tell(core, revision)
    return core


def tell(core: Gathering, revision: int, *job_ids: str, state: Any = COMPLETED) -> list[Settled]:
    answer = job_service_pb2.WatchJobsResponse(jobs=[job_pb2.Job(job_id=job_id, state=state) for job_id in job_ids])
    answer.revisions.add(revision=revision)
    return core.took(answer)


def sent(core: Gathering, *places: Place) -> Bundle:
    for one in places:
        core.add(one)
    bundle = core.bundle()
    assert bundle is not None
    return bundle


def granted(job_id: str, revision: int = 11, *, duplicate: bool = False) -> job_service_pb2.SubmitJobsResult:
    job = job_service_pb2.SubmitJobResponse(job_id=job_id, revision=revision, duplicate=duplicate, state=RUNNING)
    return job_service_pb2.SubmitJobsResult(job=job)


def refused(reason: str) -> job_service_pb2.SubmitJobsResult:
    return job_service_pb2.SubmitJobsResult(error=job_service_pb2.SubmissionError(reason=reason, message="no"))


def answered(core: Gathering, bundle: Bundle, *results: job_service_pb2.SubmitJobsResult) -> list[Settled]:
    return core.answered(bundle, job_service_pb2.SubmitJobsResponse(results=results))


def keys(settled: list[Settled]) -> dict[str, Any]:
    """What became of whom: the id of his job, the kind of his error, or None."""
    found: dict[str, Any] = {}
    for one in settled:
        value = one.value
        found[one.place.job.idempotency_key] = (
            value.job_id if isinstance(value, JobResult | SubmittedJob) else value and type(value)
        )
    return found


def test_who_comes_while_calls_are_on_their_way_shares_the_next() -> None:
    """So many are on their way at most; the next takes all who have come."""
    core = following()
    first = [sent(core, place(f"a{n}")) for n in range(gathering.BUNDLES_MAX)]
    for n in range(5):
        core.add(place(f"b{n}"))
    held = core.bundle()
    answered(core, first[0], granted("0-1"))
    later = core.bundle()

    assert [len(bundle.places) for bundle in first] == [1] * gathering.BUNDLES_MAX
    assert held is None
    assert later is not None
    assert [one.job.idempotency_key for one in later.places] == [f"b{n}" for n in range(5)]
    assert [job.caller_id for job in later.request().jobs] == ["me"] * 5


@pytest.mark.parametrize(
    ("count", "size", "in_first"),
    [
        # At the bound all go; one more waits.
        (gathering.BUNDLE_JOBS_MAX, 0, gathering.BUNDLE_JOBS_MAX),
        (gathering.BUNDLE_JOBS_MAX + 1, 0, gathering.BUNDLE_JOBS_MAX),
        # One that comes to the bound of bytes is the last.
        (10, gathering.BUNDLE_BYTES_MAX // 4, 4),
    ],
)
def test_a_call_is_bounded(count: int, size: int, in_first: int) -> None:
    """In submissions and in bytes."""
    core = following()
    bundle = sent(core, *(place(f"k{n}", size=size) for n in range(count)))

    assert len(bundle.places) == in_first


def test_a_large_submission_goes_alone() -> None:
    """Others would be refused with it."""
    core = following()
    around = len(place("k").job.SerializeToString()) + 8

    assert core.fits(place("k", size=gathering.BUNDLE_BYTES_MAX // 4 - around).job)
    assert not core.fits(place("k", size=gathering.BUNDLE_BYTES_MAX // 4).job)


def test_each_is_told_the_end_of_his_job() -> None:
    """In whatever order they end; two may wait for one job."""
    core = following()
    bundle = sent(core, place("a"), place("b"))
    assert answered(core, bundle, granted("0-1"), granted("0-2")) == []

    first = tell(core, 12, "0-2")
    second = tell(core, 13, "0-1")

    assert (keys(first), keys(second)) == ({"b": "0-2"}, {"a": "0-1"})
    assert isinstance(first[0].value, JobResult)
    assert first[0].value.state is JobState.COMPLETED
    assert tell(core, 14, "0-1", "0-2") == []


def test_an_end_may_come_before_the_answer() -> None:
    """It is kept while a call is on its way that may have submitted the job, and no longer."""
    core = following()
    bundle = sent(core, place("a"))
    other = sent(core, place("b"))
    tell(core, 12, "0-1", "0-9")
    early = answered(core, bundle, granted("0-1"))
    kept = len(core._early)
    answered(core, other, granted("0-2"))
    tell(core, 13, "0-8")

    assert keys(early) == {"a": "0-1"}
    assert kept == 1
    assert core._early == {}


@pytest.mark.parametrize(
    "result",
    [
        # His refusal is told by a call of his own, with all that belongs to it.
        refused("DEFINITION_NOT_FOUND"),
        refused("OVERLOADED"),
        # Perhaps a job of somebody else, whose end this stream does not tell.
        granted("0-1", duplicate=True),
        # Decided before the stream began to tell: its end may have been, too.
        granted("0-1", revision=10),
    ],
    ids=["refused", "overloaded", "duplicate", "too early"],
)
def test_what_is_not_plain_success_goes_the_plain_way(result: job_service_pb2.SubmitJobsResult) -> None:
    """And nobody else with it."""
    core = following(10)
    bundle = sent(core, place("a"), place("b"))
    settled = answered(core, bundle, result, granted("0-2", revision=11))

    assert keys(settled) == {"a": None}
    assert keys(tell(core, 12, "0-2")) == {"b": "0-2"}


def test_a_duplicate_whose_end_was_told_here_is_ours() -> None:
    """A call that was sent again after a broken connection finds its own jobs."""
    core = following()
    bundle = sent(core, place("a"))
    tell(core, 12, "0-1")

    settled = answered(core, bundle, granted("0-1", duplicate=True))

    assert keys(settled) == {"a": "0-1"}


def test_who_only_submits_is_told_at_once() -> None:
    """And his job has no caller, since nobody follows it."""
    core = Gathering("me")
    bundle = sent(core, place("a", waits=False))
    (settled,) = answered(core, bundle, granted("0-1", 7))

    assert bundle.request().jobs[0].caller_id == ""
    assert isinstance(settled.value, SubmittedJob)
    assert (settled.value.job_id, settled.value.revision, settled.value.idempotency_key) == ("0-1", 7, "a")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        # Of these each would have been told by a call of his own.
        (UNAVAILABLE, errors.NoLeader),
        (errors.CommitUnknown("who knows"), errors.CommitUnknown),
        (errors.Overloaded("too much"), errors.Overloaded),
        # One of them is to blame, or the call.
        (errors.InvalidArgument("jobs[1] is wrong"), None),
        (errors.InternalFault("a bug"), None),
        (errors.NotServed("no such call"), None),
    ],
)
def test_a_call_that_failed(error: StepwardError, told: type[StepwardError] | None) -> None:
    """Each gets an error of his own, with his key; or goes the plain way."""
    core = following()
    settled = core.failed(sent(core, place("a"), place("b")), error)

    assert keys(settled) == {"a": told, "b": told}
    if told is not None:
        values = [one.value for one in settled]
        assert values[0] is not values[1]
        assert [value.metadata["idempotency_key"] for value in values if isinstance(value, StepwardError)] == ["a", "b"]
    assert not core.busy


@pytest.mark.parametrize(
    "error",
    [errors.NotServed("not yet"), errors.UnknownAnswer("Method not found!", metadata={"code": "UNIMPLEMENTED"})],
)
def test_servers_without_such_calls_are_not_asked_again(error: StepwardError) -> None:
    """Whichever of the two they lack, and whoever says so."""
    by_call, by_stream = following(), following()
    by_call.failed(sent(by_call, place("a")), error)
    by_stream.lost(error)

    assert (by_call.is_off, by_stream.is_off) == (True, True)
    assert not by_call.fits(place("b").job)


def test_who_gives_up_harms_nobody() -> None:
    """Before his call is sent he is left out; behind it, and while he waits, his job is nobody's."""
    core = following()
    gone, sent_gone, waiting_gone, stays = (place(key) for key in ("a", "b", "c", "d"))
    core.add(gone)
    core.withdraw(gone)
    bundle = sent(core, sent_gone, waiting_gone, stays)
    core.withdraw(sent_gone)
    answered(core, bundle, granted("0-1"), granted("0-2"), granted("0-3"))
    core.withdraw(waiting_gone)

    assert bundle.places == [sent_gone, waiting_gone, stays]
    assert keys(tell(core, 12, "0-1", "0-2", "0-3")) == {"d": "0-3"}
    assert core.bundle() is None


def test_a_stream_resumes_behind_what_it_told() -> None:
    """Who waits waits on; whoever comes meanwhile goes the plain way."""
    core = following(10)
    answered(core, sent(core, place("a")), granted("0-1"))
    tell(core, 12)

    assert not core.lost(errors.Unreachable("broken"))
    assert not core.tells
    (resumed,) = getattr(core.request(), "from")
    assert (resumed.shard, resumed.revision) == (0, 12)
    assert keys(tell(core, 13, "0-1")) == {"a": "0-1"}
    assert core.tells


def test_a_place_that_is_gone_is_begun_anew_and_jobs_are_looked_up() -> None:
    """Once the stream stands: what ends from then on it tells."""
    core = following(10)
    bundle = sent(core, *(place(key) for key in "abcd"))
    answered(core, bundle, *(granted(f"0-{n}") for n in range(4)))

    assert core.lost(errors.RevisionCompacted("gone"))
    assert not getattr(core.request(), "from")
    assert core.to_check() == []
    tell(core, 500)
    assert core.to_check() == ["0-0", "0-1", "0-2", "0-3"]
    assert core.to_check() == []
    ended = core.checked("0-0", job_pb2.Job(job_id="0-0", state=COMPLETED))
    goes_on = core.checked("0-1", job_pb2.Job(job_id="0-1", state=RUNNING))
    escalated = core.checked("0-2", job_pb2.Job(job_id="0-2", state=common_pb2.JOB_STATE_ESCALATED))
    missing = core.checked("0-3", errors.JobNotFound("no such job"))

    assert keys(ended + goes_on + escalated + missing) == {"a": "0-0", "c": "0-2", "d": errors.JobNotFound}
    assert keys(tell(core, 501, "0-1")) == {"b": "0-1"}


def test_a_new_place_that_is_gone_too_is_an_error() -> None:
    """Else it would go round for ever."""
    core = Gathering("me")

    assert not core.lost(errors.RevisionCompacted("gone"))


def test_without_a_stream_all_who_wait_go_the_plain_way() -> None:
    """Also those whose call is answered only then."""
    core = following()
    late = sent(core, place("late"))
    answered(core, sent(core, place("a")), granted("0-1"))

    settled = core.stream_over()

    assert keys(settled) == {"a": None}
    assert keys(answered(core, late, granted("0-2"))) == {"late": None}


def test_at_the_end_of_a_client_nobody_is_forgotten() -> None:
    """Neither in the queue, nor on the way, nor who waits."""
    core = following()
    answered(core, sent(core, place("waits")), granted("0-1"))
    bundle = sent(core, place("sent"))
    core.add(place("queued"))

    assert [one.job.idempotency_key for one in core.over()] == ["queued", "sent", "waits"]
    assert core.dropped(bundle) == []


def test_a_call_of_which_nobody_tells_is_over() -> None:
    """Once."""
    core = following()
    bundle = sent(core, place("a"))

    assert keys(core.dropped(bundle)) == {"a": None}
    assert core.dropped(bundle) == []
    assert not core.busy


def test_a_stream_that_nobody_needs_is_idle() -> None:
    """Not while somebody waits, is on his way, or has come since it last said something."""
    core = following()
    idle = [core.is_idle]
    bundle = sent(core, place("a"))
    idle.append(core.is_idle)
    answered(core, bundle, granted("0-1"))
    idle.append(core.is_idle)
    tell(core, 12, "0-1")
    idle.append(core.is_idle)

    assert idle == [True, False, False, True]
