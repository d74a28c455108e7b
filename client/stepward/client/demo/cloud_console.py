"""What a person does at the cloud of the machines example, past all agents."""

from __future__ import annotations

import http.client
import json

ANSWER_S_MAX = 10.0


def unlock(address: str, key: str) -> None:
    """Unlock what was created under a key, so that it can be deleted."""
    connection = http.client.HTTPConnection(address, timeout=ANSWER_S_MAX)
    try:
        connection.request("POST", "/volumes/unlock", json.dumps({"key": "a person", "of": key}))
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
    finally:
        connection.close()
