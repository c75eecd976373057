"""The reader of huge JSON files: the same elements as json.loads, and a place in the file for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.webshop.disk import CatalogueError
from envs.webshop.disk.json_stream import JsonFile

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
    found = list(JsonFile(path, "[]", chunk_chars=chunk))
    assert [(number, value) for number, value, _ in found] == list(enumerate(records))
    assert [json.loads(text) for _, _, text in found] == records


@given(content=st.dictionaries(st.text(max_size=8), RECORDS | st.lists(VALUES, max_size=3)), chunk=st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_objects(path: Path, content: dict[str, Any], chunk: int) -> None:
    path.write_text(json.dumps(content))
    found = list(JsonFile(path, "{}", chunk_chars=chunk))
    assert [(key, value) for key, value, _ in found] == list(content.items())
    assert [json.loads(text) for _, _, text in found] == list(content.values())


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_a_file_cut_anywhere_is_an_error_at_its_record(tmp_path: Path, chunk: int) -> None:
    raw = '[{"asin": "A1", "n": [1, -2.5e3, true, null]}, {"asin": "Ü★\\u00e9\\n"}]'.encode()
    second = raw.index(b"}, {") + 3
    path = tmp_path / "cut.json"
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        seen: list[Any] = []
        with pytest.raises(CatalogueError) as caught:
            seen.extend(JsonFile(path, "[]", chunk_chars=chunk))
        message = str(caught.value)
        assert "cut.json" in message
        expected = 0 if length < second - 2 else 1 if length < len(raw) - 1 else 2
        assert f"record {expected} (from 0)" in message
        assert len(seen) == expected
        character = int(message.partition("at character ")[2].partition(",")[0])
        assert 0 <= character <= length
        assert "truncated" in message or "UTF-8" in message or "not valid JSON" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"goes on with '', where the next of \[\] or its end .* truncated, at character 0, record 0"),
        ("{}", r"goes on with '{}', where the next of \[\] or its end is due.*, at character 0"),
        ("[1]", r"goes on with '\[1\]'.*, at character 0, record 0"),
        ("[null, " + "1, " * 50, r"goes on with '\[null, 1, .* its end is due, at character 0, record 0"),
        ('[{"a": 1} {"b": 2}]', r"goes on with ' {\"b\": 2}\]', .*, at character 9, record 1"),
        ('[{"a": 1}, ]', r"goes on with ', \]', .*, at character 9, record 1"),
        (
            '[{"é": 1}, {"b" 2, "cccccccccccccccc": 3}]',
            r"not valid JSON .*Expecting ':'.*, at character 16",
        ),
        ('[{"a": 1}] x', r"goes on with '\] x', .*, at character 9"),
        ('[{"a": "' + "b" * 50, "is truncated in a record .* at character 1, record 0"),
        ("[" + '{"a":' * 20000 + "1", "nested too deeply to be read, at character 1"),
        (b'[{"a": "\xff and much more text here"}]', "holds bytes that are not UTF-8, at character 8, record 0"),
    ],
)
@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str | bytes, message: str, chunk: int) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CatalogueError, match=message):
        list(JsonFile(path, "[]", chunk_chars=chunk))


def test_objects_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "ins.json"
    for text, message in (
        ("[]", r"goes on with '\[\]', where the next of {} or its end is due"),
        ('{"a": 1}', "goes on with .*, at character 0, record 0"),
        ('{"a": {}, b', "goes on with ', b', .*, at character 8, record 1"),
        ('{"a": {}, "b"', "goes on with .* truncated"),
        ('{"a": {}, "b"}', "goes on with .*, at character 8"),
        ('{"a": {}, "\\x": {}}', "goes on with .*, at character 8"),
        ('{"a" {}}', "goes on with .*, at character 0"),
        (b'{"\xff": {}}', "goes on with .*, at character 0"),
    ):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(CatalogueError, match=message):
            list(JsonFile(path, "{}"))


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(b'\xef\xbb\xbf[{"a": 1}]')
    assert list(JsonFile(path, "[]")) == [(0, {"a": 1}, '{"a": 1}')]
