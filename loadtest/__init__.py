"""Measures a cluster from outside: `python -m loadtest.bench` starts one, puts load on it and says what it cost.

`bench` is the command; it starts a server, an `agent` and a `load` process, and lets `echo` say what this machine gives
in this minute. `submitters` are the ways to submit, `meters` read what processes and the server used, `report` is the
table and the JSON. `locustfile` is for mixes and soaks with locust.
"""
