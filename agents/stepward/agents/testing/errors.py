"""What can go wrong on a bench.

AgentError
└── BenchError       the test is wrong, or asks for what there is not
    ├── HandlerStuck     a handler has not come back within its bound of real time
    └── JobStuck         a job waits for what will not happen on this bench
"""

# ruff: noqa: N818 - they read as what happened; the root says that they are errors

from __future__ import annotations

from stepward.agents.errors import AgentError


class BenchError(AgentError):
    """The test is wrong, or asks for what there is not. The message says what to do."""


class HandlerStuck(BenchError):
    """A handler has not come back within its bound of real time."""


class JobStuck(BenchError):
    """A job waits for what will not happen on this bench."""
