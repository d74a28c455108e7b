"""Measures a cluster from outside: `python -m loadtest.bench` starts one, puts load on it and says what it cost.

`bench` is the command; it starts a `cluster` and an `agent`, is the load itself, and lets `echo` say what this machine
gives in this minute. `shapes` are the jobs, `submitters` the ways to submit them, `tally` begins them and keeps what
became of each. A `stage` is all that is played on. What is played are `rates` (trips, jobs that are undone, chains),
`fan` (very many steps at once), `idle` (agents that have nothing to do, as many as a `crowd`), `backlog` (very many
jobs) and `failover`. `meters` read what processes and servers used, `report` is the table and the JSON. `load` is the
load alone; `files` are the options for TLS.

`mix` is the other command: users of many kinds on three nodes, of which one is killed now and then. The users are
locust's: `locustfile` is what locust takes, and `mix_file` reads how many there are of each kind. They are those of
`users` and `bulk_user` with a `fake_agent` (its `fake_session` is what it knows), and an `observer` (its `watchman` is
what it makes of what it sees); `routes` and `stages` are small parts of them. They submit `mix_jobs`. `submissions` are
the ledger that they write and the judge that reads it, and `memory` judges that of processes. Nothing else may import
what imports locust: it changes the whole process.
"""
