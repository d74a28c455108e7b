"""The rules, pure: committed rows, waiting commands and the clock go in, a batch of row changes comes out.

Nothing here reads a clock, draws a random number by itself, or does I/O. Reading order:

1. `rows`, `slice_rows`, `epoch_rows`, `brake_rows`, `breaker_rows`, `ledger_rows`, `caller_rows` and `keys`: what is
   stored, and under which keys; `job_states`, `parts` and `event_types` name states, parts of steps, what goes wrong
   and what happens to them, `options` what a definition may choose.
2. `commands`, `rejections` and `limits`: what may be asked, what may be refused, and every bound; `system`: what is
   stepward's own among the jobs.
3. `states`: what a step may become, and what moves it on.
4. `reader` and `draft`: committed rows, and the overlay in which one batch is decided.
5. `decide`: the entry: one savepoint a command, then the offers.
6. `batch`: what every rule works on, and the only way in which a step changes; it keeps the `counts` of jobs, and
   for callers the ends of theirs (`caller_ends`).
7. `submission`, `advance`, `offers`, `reports`, `attempts`, `compensation`: a job from its beginning to its end;
   `breakers`, which offers heed; `remedies`, the table of what is done about trouble, which `remediation` asks and
   obeys.
8. `spreads` (an outcome that reaches other steps) and `passes` (a walk over all steps of a job).
9. `verifying`, `schedules`, `policies`, `deadlines`: questions, bounds in time, and waits.
10. `step_verbs`, `job_verbs`, `pauses`, `termination`: what people do.
11. `sessions`, `leases`, `clocks`: agents and time; `supervision`, its `brake`, `retention`, `patrol`, `old_timers`:
   what is due. `ledger`: what was done about trouble; `incidents`: what waits for a person; `resolving`: what he does;
   `notices`: who is told. `epochs`: leaderships that have lost their supervisor.
12. `definition_source`, `definition`, `definition_rules`, `definition_order`, `graph`, `ordinals`, `canonical`:
   definitions, and equality; `latencies`: how soon trouble is noticed.
13. `template`, `mapping`, `json_text`, `inputs`: payloads that are put together from others.
14. `views`, `remainders`, `lists`, `incident_lists`, `due`: what readers see. `explaining`, `crews`, `explain`: why a
   job does not move.
15. `invariants`, `wide_jobs`: what must hold of the rows, for tests.
"""
