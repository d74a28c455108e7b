"""Measures a cluster from outside: `python -m loadtest.bench` starts one, puts load on it and says what it cost.

`bench` is the command; it starts a `cluster` and an `agent`, is the load itself, and lets `echo` say what this machine
gives in this minute. `shapes` are the jobs, `submitters` the ways to submit them, `tally` begins them and keeps what
became of each. A `stage` is all that is played on. What is played are `rates` (trips, jobs that are undone, chains),
`fan` (very many steps at once), `idle` (agents that have nothing to do, as many as a `crowd`), `backlog` (very many
jobs) and `failover`. `meters` read what processes and servers used, `report` is the table and the JSON. `load` is the
load alone. `locustfile` is for mixes and soaks with locust.
"""
