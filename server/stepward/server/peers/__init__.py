"""What the nodes of a cluster say to each other: who speaks, over what, and what is taken.

Reading order:

1. `certificate`: what is wrong with the node's own files. `tls` shows them, and says which node another one's names.
   `handshake`: who may speak, decided before anything else is taken. `presence`: which nodes are
   there, `refusals`: who was not taken.
2. `channels`: connections to other nodes.
3. `pieces`, `link` and `links`: streams to other nodes, which carry the frames of the logbook.
4. `replicating`: such streams of other nodes. `service`: all calls that only nodes may make.
5. `founding` and `joining`: how nodes become a cluster, and how one joins it. `passing`: one call passed on.
6. `chunks`: rows as they travel. `exporting` gives all rows to a node that is too far behind, `fetching` gets them.
7. `encoding`: commands and answers as bytes. `errands`: those on their way to the leader; `forward_link`: the stream on
   which they go there; `readers`: who must see the newest rows; `contact`: whether there is a leader; `forwarding`: all
   of that. `forwarded`: what other nodes send. `errors`: what may go wrong with it.
8. `peering`: all of it, put together.
"""
