"""The contract's messages as JSON: proto field names, and payloads as what they hold."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict

from stepward.client.payloads import Payload

if TYPE_CHECKING:
    from google.protobuf.message import Message

PAYLOAD = "stepward.v1.Payload"


def json_form(message: Message) -> dict[str, Any]:
    """The message as values for `json`. All fields are there, so that a script need not guess about absent ones."""
    form: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _show_payloads(message, form)
    return form


def pretty(value: Any) -> str:
    """JSON for a file or a person."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def compact(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def payload_form(payload: Payload) -> Any:
    """The value of a JSON payload; of any other its encoding and its bytes in base64."""
    if payload.is_json:
        try:
            return json.loads(payload.data) if payload.data else None
        except ValueError:
            # Somebody called it JSON and it is not: the bytes are all there is to show.
            pass
    return {"encoding": payload.encoding, "data": base64.b64encode(payload.data).decode()}


def _show_payloads(message: Message, form: dict[str, Any]) -> None:
    """Replace the form of every payload in a message by what it holds."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        name = descriptor.name
        if descriptor.message_type.full_name == PAYLOAD:
            form[name] = payload_form(Payload(value.data, value.encoding))
        elif descriptor.is_repeated:
            for item, item_form in zip(value, form[name], strict=True):
                _show_inner(item, item_form)
        else:
            _show_inner(value, form[name])


def _show_inner(message: Message, form: Any) -> None:
    # Times and durations are texts in JSON.
    if isinstance(form, dict):
        _show_payloads(message, form)
