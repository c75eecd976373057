"""The tool ``search``: the best documents of a local corpus for a query, each with a snippet."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from roll_envs.errors import ConfigError
from roll_envs.tools.search_index import WORD, load_index, words_of_text
from roll_envs.tools.types import Tool, ToolResult, ToolSpec, object_schema

MAX_QUERY_CHARS = 2000
"""Of a query, the first so many characters are read."""


class SearchTool(Tool):
    """Search in a JSON-lines file (see :mod:`roll_envs.tools.search_index`); keeps nothing from call to call."""

    quick = True

    def __init__(
        self,
        *,
        corpus: str,
        index: str | None = None,
        results: PositiveInt = 3,
        most_results: PositiveInt = 10,
        snippet_chars: Annotated[int, Field(ge=20)] = 400,
        name: str = "search",
        about: str = "a collection of documents",
    ) -> None:
        """``results`` documents are shown where the call does not say how many, up to ``most_results``; ``about`` tells
        the model what it searches in. Raises :class:`ConfigError` for a corpus or number that cannot be used."""
        if results > most_results:
            raise ConfigError(f"results ({results}) must not be more than most_results ({most_results})")
        self.index = load_index(corpus, index)
        self._results, self._chars = results, snippet_chars
        how_many = f"How many documents (default {results})."
        self.spec = ToolSpec(
            name=name,
            description=f"Searches {about} and shows the best matches, each with its id, title and a snippet.",
            parameters=object_schema(
                "query",
                query={"type": "string", "description": "Words to look for."},
                k={"type": "integer", "minimum": 1, "maximum": most_results, "description": how_many},
            ),
        )

    def call(self, arguments: Mapping[str, Any], *, deadline_s: float) -> ToolResult:
        query = arguments["query"][:MAX_QUERY_CHARS]
        if not words_of_text(query):
            return ToolResult(text="Error: the query has no word to look for", ok=False)
        # 3.0 passes as an integer of JSON.
        found = self.index.search(query, int(arguments.get("k", self._results)))
        if not found:
            return ToolResult(text="No document holds any of these words.")
        entries = []
        for place, (number, _) in enumerate(found, 1):
            document = self.index.document(number)
            title = f" {document.title}" if document.title else ""
            entries.append(f"{place}. [{document.id}]{title}\n{snippet(document.text, query, self._chars)}")
        return ToolResult(text="\n\n".join(entries))


def snippet(text: str, query: str, chars: int) -> str:
    """The part of ``text`` of about ``chars`` characters with the most different words of ``query``, the first such."""
    flat = " ".join(text.split())
    if len(flat) <= chars:
        return flat
    wanted = set(words_of_text(query))
    hits = [(m.start(), w) for m in WORD.finditer(flat) for w in words_of_text(m.group()) if w in wanted]
    places = [place for place, _ in hits]

    def words_from(first: int) -> int:
        """Different words within three quarters of the snippet."""
        last = bisect.bisect(places, places[first] + chars * 3 // 4)
        return len({word for _, word in hits[first:last]})

    start = places[max(range(len(hits)), key=words_from)] if hits else 0
    # A little of the text before the first word found, and a full snippet at the end of the document.
    begin = max(0, min(start - chars // 8, len(flat) - chars))
    if begin:
        begin = flat.find(" ", begin, start) + 1 or begin
    end = min(len(flat), begin + chars)
    if end < len(flat):
        end = max(flat.rfind(" ", begin + chars // 2, end), 0) or end
    return ("... " if begin else "") + flat[begin:end] + (" ..." if end < len(flat) else "")
