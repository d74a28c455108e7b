"""The rules, pure: committed rows, waiting commands and the clock go in, a batch of row changes comes out.

Nothing here reads a clock, draws a random number by itself, or does I/O. Reading order:

1. `rows`, `slice_rows` and `keys`: what is stored, and under which keys.
2. `commands` and `rejections`: what may be asked, and what may be refused.
3. `draft`: the overlay in which one batch is decided.
4. `decide`: the entry: one savepoint a command, then the offers.
5. `batch`: what every rule works on, and the only way in which a step changes.
6. `submission`, `advance`, `offers`, `reports`, `attempts`, `compensation`, `sessions`, `supervision`,
   `step_verbs`, `job_verbs`, `termination`: rules by noun.
   `passes` (walks over all steps of a job), `spreads` (an outcome that many wait for), `retention` and `patrol`.
7. `states`, `leases`, `clocks`, `policies`, `definition`, `graph`, `template`, `mapping`: tables and arithmetic.
8. `inputs`, `views`, `remainders`: what handlers are given and readers see, put together from rows.
9. `invariants`, `wide_jobs`: what must hold of the rows, for tests.
"""
