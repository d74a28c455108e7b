"""A stored definition as the text of a definition file, which gives the same definition when it is read."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict
from ruamel.yaml import YAML

from stepward.client.cli.json_form import compact
from stepward.client.durations import format_duration, parse_duration

if TYPE_CHECKING:
    from stepward.v1.definition_pb2 import Definition

DURATIONS = {"retry": ("initial", "cap"), "timeouts": ("start_to_close", "queue")}
PREFIXES = {"effect": "EFFECT_", "start": "START_MODE_", "on_unknown": "ON_UNKNOWN_"}


def as_yaml(stored: Definition) -> str:
    """The definition as YAML."""
    # Any, because the stubs know this attribute by its default only.
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    stream = io.StringIO()
    yaml.dump(_file_form(stored), stream)
    return stream.getvalue()


def _file_form(stored: Definition) -> dict[str, Any]:
    form: dict[str, Any] = MessageToDict(stored, preserving_proto_field_name=True)
    if "output" in form:
        form["output"] = _template(form["output"])
    for step in form.get("steps", []):
        if "input" in step:
            step["input"] = _template(step["input"])
        for name, prefix in PREFIXES.items():
            if name in step:
                step[name] = step[name].removeprefix(prefix).lower()
        for holder in (step, step.get("undo", {})):
            _spell_durations(holder)
    return form


def _spell_durations(holder: dict[str, Any]) -> None:
    """Turn the "5400s" of the contract's JSON into "1h30m"."""
    for group, names in DURATIONS.items():
        for name in names:
            if name in holder.get(group, {}):
                holder[group][name] = format_duration(parse_duration(holder[group][name]))


def _template(text: str) -> Any:
    """What gives this text again when it is read; the text itself where nothing nicer does, as with 1.10."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, dict | list) and compact(value) == text:
        return value
    return value if isinstance(value, str) and value.startswith("$") else text
