"""The replicated chain of batches, which is the only truth; the only importer of pysyncobj.

Reading order:

1. `batch`: what a batch is, and when it continues the chain.
2. `identity`: who a node is, and how a cluster comes to be.
3. `journal` and `raft`: pysyncobj, held at its seams. `frames` is what nodes say to each other, `post` where it waits.
4. The guards, one for each hole: `contacts`, `quarantine`, `elections`, `receiving`, `sending`, `transfers`; and
   `engine`, which puts them in front of it.
5. `outbox`, `waiting`, `deciding` and `replica`: the actor that ties rules, rows and raft together, what goes in and
   out of it, whose turn it is, and how commands become a batch. `errors` is what can go wrong.
"""
