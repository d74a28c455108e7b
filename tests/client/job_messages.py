"""Jobs as a server tells them, with no more in them than a test needs."""

from __future__ import annotations

from typing import Any

from stepward.v1 import common_pb2, job_pb2, job_service_pb2

SUBMITTED = job_service_pb2.SubmitJobResponse(job_id="0-1", state=common_pb2.JOB_STATE_RUNNING, revision=7)


def job(state: str = "RUNNING", **fields: Any) -> job_pb2.Job:
    number = common_pb2.JobState.Value(f"JOB_STATE_{state}")
    defaults: dict[str, Any] = {"job_id": "0-1", "definition_name": "trip", "definition_version": 2, "revision": 1}
    return job_pb2.Job(state=number, **defaults | fields)


def step(step_id: str, state: str, **fields: Any) -> job_pb2.JobStep:
    number = common_pb2.StepState.Value(f"STEP_STATE_{state}")
    return job_pb2.JobStep(step_id=step_id, state=number, action="book", queue="trip", **fields)


def watched(*jobs: job_pb2.Job) -> list[job_service_pb2.WatchJobResponse]:
    return [job_service_pb2.WatchJobResponse(job=one) for one in jobs]
