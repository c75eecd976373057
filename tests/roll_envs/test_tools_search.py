"""The search: BM25 worked by hand, the saved index, snippets."""

from __future__ import annotations

import json
import math
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from roll_envs.errors import ConfigError
from roll_envs.tools import make_tools
from roll_envs.tools import search_index as indexing
from roll_envs.tools.search import snippet
from roll_envs.tools.search_index import load_index, words_of_text

ROWS = [
    {"id": "d1", "title": "Frogs", "text": "green frogs live in ponds"},
    {"id": "d2", "title": "", "text": "ponds and lakes and ponds"},
    {"text": "nothing of the kind is said here at all"},
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def test_scores_are_bm25(corpus: Path) -> None:
    index = load_index(corpus)
    # Lengths with titles: 6, 5, 9; the mean is 20/3. "ponds" is in two of three documents.
    rarity = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))

    def score(count: int, length: int) -> float:
        return rarity * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length / (20 / 3)))

    assert index.search("PONDS ponds", 5) == [
        (1, pytest.approx(score(2, 5), abs=1e-8)),
        (0, pytest.approx(score(1, 6), abs=1e-8)),
    ]
    assert [doc for doc, _ in index.search("frogs and lakes", 5)] == [1, 0]
    assert index.search("whales", 5) == []
    assert len(index) == 3
    assert index.document(2).id == "3"


def test_equal_scores_are_in_the_order_of_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "same.jsonl"
    path.write_text('{"text": "same words"}\n' * 7)
    assert [doc for doc, _ in load_index(path).search("words", 4)] == [0, 1, 2, 3]


def test_the_index_is_saved_and_used_again(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_index(corpus).search("ponds", 3)
    saved = corpus.with_name("docs.jsonl.bm25.npz")
    assert saved.exists()
    indexing._load.cache_clear()
    monkeypatch.setattr(indexing, "build_arrays", lambda path: pytest.fail("built again"))
    assert load_index(corpus).search("ponds", 3) == first


def test_a_changed_corpus_or_a_damaged_index_is_indexed_anew(corpus: Path) -> None:
    load_index(corpus)
    saved = corpus.with_name("docs.jsonl.bm25.npz")
    with open(corpus, "a", encoding="utf-8") as file:
        file.write('{"text": "whales"}\n')
    assert [doc for doc, _ in load_index(corpus).search("whales", 3)] == [3]
    saved.write_bytes(saved.read_bytes()[:100])
    indexing._load.cache_clear()
    assert [doc for doc, _ in load_index(corpus).search("whales", 3)] == [3]
    assert np.load(saved)["places"].shape == (4,)


def test_the_place_of_the_index_can_be_chosen(corpus: Path, tmp_path: Path) -> None:
    load_index(corpus, tmp_path / "elsewhere.npz")
    assert (tmp_path / "elsewhere.npz").exists()
    indexing._load.cache_clear()
    load_index(corpus, tmp_path / "no folder" / "index.npz")  # cannot be written: kept in memory


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no documents"),
        ("\n\n", "no documents"),
        ("{\n", "document 1: no JSON object"),
        ('{"text": "a"}\n{"title": "b"}\n', "document 2: needs an object with 'text'"),
        ('{"text": "a", "title": 3}\n', "'title' must be a text"),
    ],
)
def test_a_bad_corpus_is_told(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=says):
        load_index(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_index(tmp_path / "none.jsonl")


def test_words() -> None:
    assert words_of_text("Größe, 2nd_try ﬁne!") == ["grösse", "2nd", "try", "fine"]
    assert words_of_text("東京タワー。Tokyo2020") == [*"東京タワー", "tokyo2020"]
    assert words_of_text("ジョン・レノン ｶﾅ 𠮷野") == [*"ジョンレノンカナ𠮷野"]
    for text in ("हिन्दी में पानी", "தமிழ் மொழி", "বাংলা ভাষা", "שָׁלוֹם עולם", "مُحَمَّد الكتاب"):
        assert words_of_text(text) == unicodedata.normalize("NFKC", text).split()


def test_a_snippet_shows_where_the_words_are() -> None:
    text = "filler " * 100 + "the green frog sat near green ponds " + "more " * 100
    found = snippet(text, "green pond ponds", 80)
    assert "green ponds" in found
    assert found.startswith("... ")
    assert found.endswith(" ...")
    assert len(found) <= 90
    assert snippet("a  short\ntext", "x", 80) == "a short text"
    assert snippet("word " * 50, "absent", 40).startswith("word word")
    found = snippet("あ" * 500 + "東京は首都です。" + "い" * 500 + " end" * 20, "東京", 80)
    assert "東京は首都です" in found
    assert len(found) == 88


def test_the_tool(corpus: Path) -> None:
    (tool,) = make_tools({"tool": "search", "corpus": str(corpus), "results": 1, "name": "look", "about": "ponds"})
    assert tool.spec.name == "look"
    assert "Searches ponds" in tool.spec.description
    assert tool.call({"query": "frogs"}, deadline_s=1).text == "1. [d1] Frogs\ngreen frogs live in ponds"
    two = tool.call({"query": "ponds", "k": 2}, deadline_s=1).text
    assert two.index("[d2]") < two.index("[d1] Frogs")
    assert tool.call({"query": "whales"}, deadline_s=1).text == "No document holds any of these words."
    assert not tool.call({"query": "?!"}, deadline_s=1).ok
    with pytest.raises(ConfigError, match="must not be more than most_results"):
        make_tools({"tool": "search", "corpus": str(corpus), "results": 20})
    with pytest.raises(ConfigError, match="snippet_chars"):
        make_tools({"tool": "search", "corpus": str(corpus), "snippet_chars": 1})


def test_a_corpus_that_changes_under_the_tool_is_a_fault(corpus: Path) -> None:
    (tool,) = make_tools({"tool": "search", "corpus": str(corpus)})
    corpus.write_text("x" * 10)
    with pytest.raises(ConfigError, match="has changed since it was indexed"):
        tool.call({"query": "ponds"}, deadline_s=1)
