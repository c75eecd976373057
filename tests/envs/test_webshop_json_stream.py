"""The reader of huge JSON files: the same elements as json.loads, and a place in the file for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.webshop.disk import CatalogueError
from envs.webshop.disk.json_stream import Record, iter_array, iter_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.dictionaries(st.sampled_from(["asin", "name", "é★😀", '"}],[{\\']), VALUES, max_size=4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json") / "items.json"


@given(
    records=st.lists(RECORDS, max_size=6),
    chunk=st.integers(1, 60),
    ascii_only=st.booleans(),
    indent=st.none() | st.just(1),
)
@settings(max_examples=200, deadline=None)
def test_arrays(path: Path, records: list[Any], chunk: int, ascii_only: bool, indent: int | None) -> None:
    raw = json.dumps(records, ensure_ascii=ascii_only, indent=indent).encode()
    path.write_bytes(raw + b"\n")
    found = list(iter_array(path, chunk_bytes=chunk))
    assert [record.value for record in found] == records
    assert [record.number for record in found] == list(range(len(records)))
    for record in found:
        assert json.loads(raw[record.start : record.end]) == record.value
        rest = list(iter_array(path, start=record.end, first_number=record.number + 1, chunk_bytes=chunk))
        assert rest == found[record.number + 1 :]


@given(content=st.dictionaries(st.text(max_size=8), RECORDS | st.lists(VALUES, max_size=3)), chunk=st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_objects(path: Path, content: dict[str, Any], chunk: int) -> None:
    path.write_text(json.dumps(content))
    assert list(iter_object(path, chunk_bytes=chunk)) == list(content.items())


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_a_file_cut_anywhere_is_an_error_at_its_record(tmp_path: Path, chunk: int) -> None:
    raw = '[{"asin": "A1", "n": [1, -2.5e3, true, null]}, {"asin": "Ü★\\u00e9\\n"}]'.encode()
    second = raw.index(b"}, {") + 3
    path = tmp_path / "cut.json"
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        seen: list[Record] = []
        with pytest.raises(CatalogueError) as caught:
            seen.extend(iter_array(path, chunk_bytes=chunk))
        message = str(caught.value)
        assert "cut.json" in message
        expected = 0 if length < second - 2 else 1 if length < len(raw) - 1 else 2
        assert f"record {expected} (from 0)" in message
        assert len(seen) == expected
        byte = int(message.partition("at byte ")[2].partition(",")[0])
        assert 0 <= byte <= length
        assert "truncated" in message or "UTF-8" in message or "not valid JSON" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"ends at its start, .* truncated, at byte 0, record 0"),
        ("{}", r"has '{' at its start, where one of \[ was expected, at byte 0"),
        ("[1]", r"has '1' where a record .* was expected, at byte 1, record 0"),
        ('[{"a": 1} {"b": 2}]', r"has '{' after a record, where one of , \] was expected, at byte 10"),
        ('[{"a": 1}, ]', r"has '\]' where a record .* was expected, at byte 11, record 1"),
        ('[{"é": 1}, {"b" 2, "cccccccccccccccc": 3}]', r"not valid JSON \(Expecting ':'.*\), at byte 17, record 1"),
        ('[{"a": 1}] x', "goes on with 'x' after the end of its JSON value, at byte 11"),
        ('[{"a": "' + "b" * 50, "ends in the middle of a record .* at byte 1, record 0"),
        ("[" + '{"a":' * 20000 + "1", "nested too deeply to be read, at byte 1"),
        (b'[{"a": "\xff and much more text here"}]', "holds bytes that are not UTF-8 .* at byte 8, record 0"),
    ],
)
@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str | bytes, message: str, chunk: int) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CatalogueError, match=message):
        list(iter_array(path, chunk_bytes=chunk))


def test_objects_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "ins.json"
    for text, message in (
        ("[]", r"has '\[' at its start, where one of { was expected"),
        ('{"a": 1}', "has '1' where the value of a key .* was expected, at byte 6"),
        ('{"a": {}, b', "has 'b' where a key was expected, at byte 10, record 1"),
        ('{"a": {}, "b"', "ends after a key, .* truncated"),
        ('{"a" {}}', "has '{' after a key, where one of : was expected"),
    ):
        path.write_text(text)
        with pytest.raises(CatalogueError, match=message):
            list(iter_object(path))
    with pytest.raises(CatalogueError, match=r"cannot read .*none.json"):
        list(iter_object(tmp_path / "none.json"))


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(b'\xef\xbb\xbf[{"a": 1}]')
    assert [(record.start, record.value) for record in iter_array(path)] == [(4, {"a": 1})]
