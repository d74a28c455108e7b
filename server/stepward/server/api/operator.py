"""OperatorService: for the people who look after jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.api import convert, lookup, validate
from stepward.server.core.commands import PauseJob, ResumeJob, RetryStep, SkipStep, TerminateJob, VerbDone
from stepward.server.core.rejections import Reason, Refused, Violation
from stepward.server.core.rows import NO_OUTPUT, Payload
from stepward.v1 import operator_service_pb2

if TYPE_CHECKING:
    from typing import Any

    from stepward.server.core.commands import AnyCommand
    from stepward.server.core.limits import Limits
    from stepward.server.gateway import Gateway
    from stepward.v1 import job_pb2

    _Request = (
        operator_service_pb2.TerminateJobRequest
        | operator_service_pb2.PauseJobRequest
        | operator_service_pb2.ResumeJobRequest
        | operator_service_pb2.RetryStepRequest
        | operator_service_pb2.SkipStepRequest
    )


class OperatorService:
    """See `stepward.v1.OperatorService`."""

    def __init__(self, gateway: Gateway, limits: Limits) -> None:
        self._gateway = gateway
        self._limits = limits

    async def terminate_job(
        self, request: operator_service_pb2.TerminateJobRequest, context: Any
    ) -> operator_service_pb2.TerminateJobResponse:
        """See the contract."""
        found = self._faults(request)
        if not request.reason:
            found += (Violation("reason", "is empty; say why nothing more is to be undone"),)
        validate.require(found)
        job, already = await self._act(TerminateJob(request.job_id, request.reason, request.actor), request.job_id)
        return operator_service_pb2.TerminateJobResponse(job=job, already=already)

    async def pause_job(
        self, request: operator_service_pb2.PauseJobRequest, context: Any
    ) -> operator_service_pb2.PauseJobResponse:
        """See the contract."""
        validate.require(self._faults(request))
        job, already = await self._act(PauseJob(request.job_id, request.reason, request.actor), request.job_id)
        return operator_service_pb2.PauseJobResponse(job=job, already=already)

    async def resume_job(
        self, request: operator_service_pb2.ResumeJobRequest, context: Any
    ) -> operator_service_pb2.ResumeJobResponse:
        """See the contract."""
        validate.require(self._faults(request))
        job, already = await self._act(ResumeJob(request.job_id, request.reason, request.actor), request.job_id)
        return operator_service_pb2.ResumeJobResponse(job=job, already=already)

    async def retry_step(
        self, request: operator_service_pb2.RetryStepRequest, context: Any
    ) -> operator_service_pb2.RetryStepResponse:
        """See the contract."""
        validate.require(self._step_faults(request))
        command = RetryStep(request.job_id, request.step_id, request.reason, request.actor)
        job, already = await self._act(command, request.job_id)
        return operator_service_pb2.RetryStepResponse(job=job, already=already)

    async def skip_step(
        self, request: operator_service_pb2.SkipStepRequest, context: Any
    ) -> operator_service_pb2.SkipStepResponse:
        """See the contract."""
        limits = self._limits
        found = [*self._step_faults(request)]
        too_large = validate.payload_size("output", request.output, limits)
        found += too_large or validate.payload("output", request.output, limits)
        if found:
            raise Refused(validate.refusal(found, Reason.PAYLOAD_TOO_LARGE if too_large else Reason.INVALID_ARGUMENT))
        output = Payload(request.output.data, request.output.encoding) if request.HasField("output") else NO_OUTPUT
        command = SkipStep(request.job_id, request.step_id, output, request.undone, request.reason, request.actor)
        job, already = await self._act(command, request.job_id)
        return operator_service_pb2.SkipStepResponse(job=job, already=already)

    def _faults(self, request: _Request) -> tuple[Violation, ...]:
        """What is wrong with why something is done by hand, and with who does it."""
        return validate.verb(request.reason, request.actor, self._limits)

    def _step_faults(
        self, request: operator_service_pb2.RetryStepRequest | operator_service_pb2.SkipStepRequest
    ) -> tuple[Violation, ...]:
        """The same of a step, which has a name."""
        return validate.text("step_id", request.step_id, self._limits.name_chars_max) + self._faults(request)

    async def _act(self, command: AnyCommand, job_id: str) -> tuple[job_pb2.Job, bool]:
        """Have a verb decided; the job as it is then, and whether there was nothing left to do.

        Raises:
            Refused: By the rules, or for want of a leader.
        """
        lookup.require_job_id(job_id)
        answer = await self._gateway.call(command, VerbDone)
        with self._gateway.own_rows() as reader:
            view = lookup.job_view(reader, job_id, self._limits, with_steps=False)
        return convert.ended_job(view), answer.already
