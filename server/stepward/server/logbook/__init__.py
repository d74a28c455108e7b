"""The replicated chain of batches, which is the only truth; the only importer of pysyncobj.

Reading order:

1. `batch`: what a batch is, and when it continues the chain.
2. `identity`: who a node is, and how a cluster comes to be.
3. `journal` and `raft`: pysyncobj, held at its seams. `frames` is what nodes say to each other, `post` where it waits,
   `room` what the disk can take.
4. The guards, one for each hole: `contacts`, `quarantine`, `elections`, `receiving`, `sending`, `transfers`; and
   `engine`, which puts them in front of it.
5. `outbox`, `waiting` and `deciding`: what goes in and out of a step, whose turn it is, and how commands become a
   batch.
6. `reads`, `handover` and `questions`: what is asked beside commands. `gap`: how old the head is. `listening` sorts
   what came, and `installing` takes over the rows of another node.
7. `replica`: the actor that ties rules, rows and raft together. `errors` is what can go wrong.
"""
