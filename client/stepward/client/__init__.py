"""Submit jobs, watch them and operate a cluster, from Python or from the command line.

    from stepward.client import Client

    with Client("localhost:7654") as client:
        result = client.run("trip", {"who": "ann", "to": "Oslo"})
        print(result.output)

Reading order: `values` and `supervision` (what comes back), `errors` (what can go wrong), `payloads`, `calls` (every
call of the contract that the client makes, and whether it may be repeated), `failover` (pure: what is repeated when,
and where), `channels` and `tls`, `blocking_client` and `async_client` (the same methods twice; those about incidents
are in `blocking_incidents` and `async_incidents`, with `incident_values`, `incident_reading` and `incident_calls`),
`gathering` and `async_gathering` (what many callers of one client share), `definition` and `definition_file`
(definitions as Python and as files), `tree`, `cli`.

The names below are loaded when they are first used: the command line must not wait for gRPC to print its help.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepward.client.async_client import AsyncClient
    from stepward.client.blocking_client import Client
    from stepward.client.definition import DefinedStep, Definition
    from stepward.client.definition_options import Retry, Timeouts, Undo, Verify
    from stepward.client.errors import (
        DefinitionError,
        DefinitionFileError,
        InvalidDefinition,
        JobCancelled,
        JobCompensated,
        JobEscalated,
        JobFailed,
        JobNotCompleted,
        NotFound,
        StepwardError,
        Unavailable,
        WaitTimedOut,
    )
    from stepward.client.incident_values import Incident, LedgerEntry, ResolvedIncidents
    from stepward.client.payloads import Payload
    from stepward.client.references import Reference, input_, literal, text
    from stepward.client.tls import TlsFiles
    from stepward.client.values import Job, JobChange, JobResult, JobState, Step, StepState, SubmittedJob

__all__ = [
    "AsyncClient",
    "Client",
    "DefinedStep",
    "Definition",
    "DefinitionError",
    "DefinitionFileError",
    "Incident",
    "InvalidDefinition",
    "Job",
    "JobCancelled",
    "JobChange",
    "JobCompensated",
    "JobEscalated",
    "JobFailed",
    "JobNotCompleted",
    "JobResult",
    "JobState",
    "LedgerEntry",
    "NotFound",
    "Payload",
    "Reference",
    "ResolvedIncidents",
    "Retry",
    "Step",
    "StepState",
    "StepwardError",
    "SubmittedJob",
    "Timeouts",
    "TlsFiles",
    "Unavailable",
    "Undo",
    "Verify",
    "WaitTimedOut",
    "input_",
    "literal",
    "text",
]

_HOMES = {
    "AsyncClient": "async_client",
    "Client": "blocking_client",
    "Payload": "payloads",
    "TlsFiles": "tls",
    **dict.fromkeys(("DefinedStep", "Definition"), "definition"),
    **dict.fromkeys(("Retry", "Timeouts", "Undo", "Verify"), "definition_options"),
    **dict.fromkeys(("Reference", "input_", "literal", "text"), "references"),
    **dict.fromkeys(("Incident", "LedgerEntry", "ResolvedIncidents"), "incident_values"),
    **dict.fromkeys(("Job", "JobChange", "JobResult", "JobState", "Step", "StepState", "SubmittedJob"), "values"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
