"""Input mapping: templates, and values put into them."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import Raw

from stepward.server.core import json_text
from stepward.server.core.limits import Limits
from stepward.server.core.mapping import MappingError, render, render_output
from stepward.server.core.rows import DefinitionBody, Effect, OnUnknown, Payload, RetrySpec, StartMode, StepSpec
from stepward.server.core.template import Reference, Source, TemplateError, compile_template
from tests.core.json_texts import JsonText, Path, json_texts, spaces, written

LIMITS = Limits()

SOURCES = {
    "": Payload(
        b' {"who": "Zo\\u00eb", "n": 1.10, "big": 1e400, "no": null, "list": [9007199254740993, [true]], "a.b": 3}\n'
    ),
    "flight": Payload(b'{"id": "f-1", "seats": ["1A", "1B"], "id": "f-2"}', "json/utf-8"),
    "book.car": Payload(b'"c-1"'),
    "nothing": Payload(),
    "photo": Payload(b"\x89PNG", "image/png"),
    "broken": Payload(b"{nope"),
    "deep": Payload(
        json.dumps(
            {"a": [{"b c": {}}], "eight": {str(n): n for n in range(8)}, "nine": {str(n): n for n in range(9)}}
        ).encode()
    ),
    "cut": Payload(b'{"text": "\\ud83d", "nul": "\\u0000"}'),
}


def lookup(source: Source) -> Payload:
    return SOURCES[source.step_id]


def rendered(template: bytes) -> bytes:
    return render(compile_template(template), lookup, LIMITS).data


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # No reference: as it was written.
        (b'{"a" : [1.10, "\\u00e9 $5"]}', b'{"a" : [1.10, "\\u00e9 $5"]}'),
        # A whole value has the bytes that it had.
        (b'{"n": "${input.n}"}', b'{"n": 1.10}'),
        (b'["${input.big}","${input.no}"]', b"[1e400,null]"),
        (b'"${input.list}"', b"[9007199254740993, [true]]"),
        (b'"${input.list[0]}"', b"9007199254740993"),
        (b'"${input.list[1][0]}"', b"true"),
        (b'"${input.who}"', b'"Zo\\u00eb"'),
        # Whitespace around a payload is not part of its value.
        (b'{"in": "${steps.flight.output}"}', b'{"in": {"id": "f-1", "seats": ["1A", "1B"], "id": "f-2"}}'),
        # Of a key that occurs twice the last value counts.
        (b'"${steps.flight.output.id}"', b'"f-2"'),
        # Names with odd characters.
        (b'"${input[\\"a.b\\"]}"', b"3"),
        (b'"${steps[\\"book.car\\"].output}"', b'"c-1"'),
        (b'"${steps[\\"flight\\"].output[\\"seats\\"][1]}"', b'"1B"'),
        # The text of a string, a number, a boolean. The string's escapes fit where they go.
        (b'"Dear ${input.who}, ${input.n} ${input.big} ${input.list[1][0]}"', b'"Dear Zo\\u00eb, 1.10 1e400 true"'),
        (b'"${input.n}${input.n}"', b'"1.101.10"'),
        (b'" ${input.n}"', b'" 1.10"'),
        # A reference may itself be written with escapes.
        (b'"\\u0024{input.n}"', b"1.10"),
        # Dollar signs: only before a brace do they mean anything, and there two are one.
        (b'"$${input.n}"', b'"${input.n}"'),
        (b'"$$${input.n}"', b'"$1.10"'),
        (b'"$$$${input.n} $ $$ $x"', b'"$${input.n} $ $$ $x"'),
        (b'"$${ ${input.n}"', b'"${ 1.10"'),
        (b'{"$${key}": 1, "$": 2}', b'{"${key}": 1, "$": 2}'),
        # A step that gave nothing gave null.
        (b'["${steps.nothing.output}"]', b"[null]"),
        # Single surrogates and NULs pass, whole and inside.
        (b'"${steps.cut.output.text}"', b'"\\ud83d"'),
        (b'"<${steps.cut.output.text}${steps.cut.output.nul}>"', b'"<\\ud83d\\u0000>"'),
        (b'"\\ud83d ${input.n}"', b'"\\ud83d 1.10"'),
    ],
)
def test_rendered(template: bytes, expected: bytes) -> None:
    """References become values, byte for byte, or the text of one inside a longer string."""
    assert rendered(template) == expected


@pytest.mark.parametrize(
    ("template", "source"),
    [
        (b"", ""),
        (b" \n", ""),
        (b'"${input}"', ""),
        (b' "${steps.photo.output}" ', "photo"),
        (b'"${steps.broken.output}"', "broken"),
        (b'"${steps.nothing.output}"', "nothing"),
    ],
)
def test_whole_source_passes_untouched(template: bytes, source: str) -> None:
    """A template that is nothing but one whole source gives that payload, whatever it is; an empty one the input."""
    assert render(compile_template(template), lookup, LIMITS) is SOURCES[source]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            b'"${input.whom}"',
            '"${input.whom}" was not found: the job\'s input is an object of "who", "n", "big", "no", "list", "a.b", '
            'with no member "whom"',
        ),
        (
            b'"${input.who.x}"',
            '"${input.who.x}" was not found: who of the job\'s input is a string, with no member "x"',
        ),
        (
            b'"${input.no.x}"',
            '"${input.no.x}" was not found: no of the job\'s input is null, with no member "x"',
        ),
        (
            b'"${steps.flight.output.seats[2]}"',
            '"${steps.flight.output.seats[2]}" was not found: seats of the output of step "flight" is an array of 2, '
            "with no element [2]",
        ),
        # The place on the path is told as it would be written; of many members only some are named.
        (
            b'"${steps.deep.output.a[0][\\"b c\\"].x}"',
            'a[0]["b c"] of the output of step "deep" is an empty object, with',
        ),
        (b'"${steps.deep.output.eight.x}"', 'an object of "0", "1", "2", "3", "4", "5", "6", "7", with no member "x"'),
        (b'"${steps.deep.output.nine.x}"', 'an object of "0", "1", "2", "3", "4", "5", "6", "7" and 1 more, with'),
        # An index is not a name, nor the other way round.
        (b'"${input.list.0}"', 'with no member "0"'),
        (b'"${input[0]}"', "with no element [0]"),
        (b'"${steps.nothing.output.id}"', 'the output of step "nothing" is null, with no member "id"'),
        # Only what has one obvious text may stand inside a string.
        (b'"a ${input.no}"', '"${input.no}" is null; inside a longer string only'),
        (b'"a ${input.list}"', '"${input.list}" is an array; inside a longer string only'),
        (b'"a ${input}"', '"${input}" is an object; inside a longer string only'),
        # What is not JSON can only be passed on whole.
        (b'["${steps.photo.output}"]', 'because the output of step "photo" has the encoding "image/png"'),
        (b'"${steps.photo.output.id}"', 'because the output of step "photo" has the encoding "image/png"'),
        (
            b'["${steps.broken.output}"]',
            'because the output of step "broken" is not JSON: expected a key or } at byte 1',
        ),
        # A message can always be stored and sent.
        (b'"${input[\\"\\ud83d\\"]}"', '"${input[\\"\\ud83d\\"]}" was not found'),
    ],
)
def test_not_found(template: bytes, message: str) -> None:
    """What the values cannot satisfy names the reference and what was found in its place."""
    with pytest.raises(MappingError) as raised:
        rendered(template)

    assert message in raised.value.message
    assert raised.value.message.encode()
    assert raised.value.kind == "INPUT_MAPPING"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (b"nope", 'it is not JSON: expected a value at byte 0, found "nope"'),
        (b"{", "it is not JSON: expected a key or } at byte 1, found the end"),
        (b"\xff", "it is not JSON: it is not UTF-8 at byte 0"),
        (b"[" * 65 + b"]" * 65, "it is not JSON: it is more than 64 levels deep"),
        (b'{"a": "${HOME}"}', 'in "${HOME}", at byte 6: a reference begins with ${input or ${steps.ID.output'),
        (b'"${}"', "a reference begins with"),
        (b'"${ input}"', "a reference begins with"),
        (b'"${inputs}"', "a reference begins with"),
        (b'"${input"', 'expected .name, [index], ["name"] or }; found the end'),
        (b'"a ${input.x"', 'expected .name, [index], ["name"] or }; found the end'),
        (b'"${input.}"', 'found ".}"'),
        (b'"${input.a b}"', 'found " b}"'),
        (b'"${input[01]}"', 'found "[01]}"'),
        (b'"${input[-1]}"', 'found "[-1]}"'),
        (b'"${input[9999999999]}"', 'found "[9999999999]}"'),
        (b'"${input[\\"a]}"', 'expected .name, [index], ["name"] or }'),
        (b'"${steps}"', "expected a step id, as in ${steps.ID.output}"),
        (b'"${steps[0].output}"', "expected a step id"),
        (b'"${steps.a}"', "expected .output behind the step id"),
        (b'"${steps.a.id}"', "expected .output behind the step id"),
        (b'"${steps.a.outputs}"', "expected .output behind the step id"),
        (b'"${steps.a.b.output}"', 'an id with dots is written ${steps["a.b"].output}; found ".b.output}"'),
        (b'{"${input.n}": 1}', "a key cannot hold a reference, at byte 1"),
    ],
)
def test_not_compiled(template: bytes, message: str) -> None:
    """A fault is told with its place, and with what was expected."""
    with pytest.raises(TemplateError) as raised:
        compile_template(template)

    assert message in raised.value.message


def test_references_are_listed() -> None:
    """Whoever checks a template learns all that it refers to."""
    template = compile_template(b'["${steps.a.output}", "x ${steps[\\"b.c\\"].output.d[0]} ${input}"]')

    assert template.references == (
        Reference("${steps.a.output}", Source("a"), (), inside=False, offset=1),
        Reference('${steps["b.c"].output.d[0]}', Source("b.c"), ("d", 0), inside=True, offset=22),
        Reference("${input}", Source(), (), inside=True, offset=22),
    )


@pytest.mark.parametrize(("read_bytes_max", "fits"), [(200, True), (199, False)])
def test_what_is_looked_into_is_bounded(read_bytes_max: int, *, fits: bool) -> None:
    """Small parts of many large payloads make a small outcome, and cost what the payloads cost. Each counts once."""
    template = compile_template(b'["${steps.a.output.n}","${steps.a.output.n}","${steps.b.output.n}"]')
    large = Payload(b'{"n":1,"text":"' + b"x" * 83 + b'"}')
    assert len(large.data) == 100
    limits = Limits(mapping_read_bytes_max=read_bytes_max)
    if fits:
        assert render(template, lambda _: large, limits).data == b"[1,1,1]"
        return

    with pytest.raises(MappingError, match="looks into more than 199 bytes") as raised:
        render(template, lambda _: large, limits)

    assert raised.value.kind == "INPUT_TOO_LARGE"


@pytest.mark.parametrize(("room_bytes", "fits"), [(10, True), (9, False)])
def test_size_is_bounded(room_bytes: int, *, fits: bool) -> None:
    """References can multiply a payload, so the outcome has a bound of its own."""
    template = compile_template(b'["${input.n}","${input.n}"]')
    limits = Limits(payload_bytes_max=room_bytes + 1)
    if fits:
        assert render(template, lookup, limits).data == b"[1.10,1.10]"
        return

    with pytest.raises(MappingError, match="more than 10 bytes") as raised:
        render(template, lookup, limits)

    assert raised.value.kind == "INPUT_TOO_LARGE"


def test_many_references_take_a_source_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand references into a large payload cost one look at it, not a thousand."""
    calls = []
    taken_apart = []
    members = json_text.members

    def watched(text: bytes) -> dict[str, Raw]:
        taken_apart.append(text)
        return members(text)

    monkeypatch.setattr(json_text, "members", watched)

    def counted(source: Source) -> Payload:
        calls.append(source)
        return lookup(source)

    render(compile_template(b'["${input.n}"' + b',"${input.who}"' * 1_000 + b"]"), counted, LIMITS)

    assert calls == [Source()]
    assert len(taken_apart) == 1


def notation(path: Path) -> str:
    """A path as a template writes it."""
    return "".join(f"[{segment}]" if isinstance(segment, int) else f"[{json.dumps(segment)}]" for segment in path)


@given(json_texts, st.data())
def test_whole_value_is_the_slice(text: JsonText, data: st.DataObject) -> None:
    """Whatever JSON a payload is and wherever a reference leads: the bytes are those of the source."""
    path, slice_ = data.draw(st.sampled_from(sorted(text.slices.items(), key=str)))
    value = data.draw(written({"key": f"${{input{notation(path)}}}"}))
    around = data.draw(spaces)
    payload = Payload((around + text.text + around).encode())

    outcome = render(compile_template(value.data), lambda _: payload, LIMITS).data

    assert outcome == value.data.replace(value.slices["key",].encode(), slice_.encode())
    json.loads(outcome)


@given(json_texts)
def test_text_without_references_stays(text: JsonText) -> None:
    """What refers to nothing is not touched, whatever its escapes."""
    assume("${" not in json.dumps(json.loads(text.text)))

    assert compile_template(text.data).parts == (text.data.strip(),)


def body_of(output: bytes, **dependents: tuple[int, ...]) -> DefinitionBody:
    steps = tuple(
        StepSpec(
            id=step_id,
            action=step_id,
            queue="default",
            needs=(),
            dependents=positions,
            input=b"",
            retry=RetrySpec(),
            start_to_close_ms=1,
            queue_ms=1,
            effect=Effect.IDEMPOTENT,
            start=StartMode.ON_OFFER,
            on_unknown=OnUnknown.ESCALATE,
        )
        for step_id, positions in dependents.items()
    )
    return DefinitionBody("trip", steps, output, b"")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (body_of(b'{"id": "${steps.flight.output.id}"}', flight=()), Payload(b'{"id": "f-2"}')),
        # Without a template: the only step that nothing needs, untouched.
        (body_of(b"", flight=(1,), photo=()), SOURCES["photo"]),
        # Several of them: an object.
        (
            body_of(b"", flight=(1,), cut=(), nothing=()),
            Payload(b'{"cut":' + SOURCES["cut"].data + b',"nothing":null}'),
        ),
    ],
)
def test_output_of_a_job(body: DefinitionBody, expected: Payload) -> None:
    """The definition's template, or what the last steps gave."""
    assert render_output(body, lookup, LIMITS) == expected


def test_output_that_cannot_be_put_together() -> None:
    """Bytes that are not JSON cannot be a member of an object; the failure says whose output it is about."""
    with pytest.raises(MappingError, match="photo") as raised:
        render_output(body_of(b"", photo=(), cut=()), lookup, LIMITS)

    assert raised.value.kind == "OUTPUT_MAPPING"
