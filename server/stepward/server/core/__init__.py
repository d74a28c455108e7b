"""The rules, pure: committed rows, waiting commands and the clock go in, a batch of row changes comes out.

Nothing here reads a clock, draws a random number by itself, or does I/O. Reading order:

1. `rows` and `keys`: what is stored, and under which keys.
2. `commands` and `rejections`: what may be asked, and what may be refused.
3. `draft`: the overlay in which one batch is decided.
4. `decide`: the entry: one savepoint a command, then the offers.
5. `submission`, `progress`, `offers`, `reports`, `compensation`, `sessions`, `supervision`: the rules by noun.
6. `policies`, `leases`, `clocks`, `states`, `definition`, `mapping`: the arithmetic and the tables under them.
"""
