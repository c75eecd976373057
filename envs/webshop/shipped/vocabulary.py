"""The vocabulary of the goals, options and attributes of the shipped shop."""

from __future__ import annotations

import re
from functools import cache

from envs.webshop.shipped.attributes import ATTRIBUTES
from envs.webshop.shipped.categories import CATEGORIES
from envs.webshop.shipped.phrases import REQUESTS, REQUESTS_WITH_CLAUSE

__all__ = ["vocabulary", "words_of"]

_WORD = re.compile(r"\w+(?:[.'-]\w+)*")
_JOINING_WORDS = "Find me with for made of in that is are and a an some pair set price lower than dollars"


def words_of(text: str) -> list[str]:
    """The words of ``text`` in lower case, without the signs around them (``5-inch`` and ``men's`` are one word)."""
    return _WORD.findall(text.lower())


@cache
def vocabulary() -> frozenset[str]:
    """Words of all goals, queries, attributes, option names and values; price caps as in ``30.00`` included."""
    texts = [_JOINING_WORDS, *ATTRIBUTES, *REQUESTS, *REQUESTS_WITH_CLAUSE]
    texts += [attribute.named for attribute in ATTRIBUTES.values()]
    for category in CATEGORIES:
        texts += [category.kind.query, category.noun]
        for option in category.options:
            phrases = option.phrases
            texts += [option.name, *option.values, *phrases.before, *phrases.after, *phrases.clause]
    words = {word for text in texts for word in words_of(text.replace("%s", " "))}
    return frozenset(words | {f"{cap}.00" for cap in range(10, 1000, 10)})
