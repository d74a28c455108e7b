"""A machine with its address, volume, keys and name, provisioned step by step and given back when it cannot be had.

Reading order: `machine.yaml` (the definition; `definition` is the same in Python), `agent` (the handlers),
`cloud` (the rules of the outside world, pure), `cloud_service` (that world as a process), `cloud_record` (judges what
it recorded). `machine.json` is an input.
"""
