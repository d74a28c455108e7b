"""The public services, one module each, as `stepward.v1` describes them.

Reading order:

1. `errors`: the one table from reasons to gRPC codes and details.
2. `validate` and `convert`: from the contract's messages to the core's values, and back.
3. `lookup`, `pages`, `slices`, `waits`: what several services need.
4. `jobs`, with `job_steps`, `job_lists`, `history`, `explaining`, `watch` and `ends_watch`; `operator`, `definitions`,
   `agents`, `cluster`: the services. `supervision`, with `incident_lists`, `resolving` and `supervision_messages`.

A service refuses by raising `core.rejections.Refused`; the shell around every call (`stepward.server.interceptor`)
turns that into a status.
"""
