"""Pages of the shop as HTML, from the texts that an agent reads. The shop that people use is in ``serve``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SEARCH, SUB_PAGES

__all__ = ["draw"]

_BUTTONS = frozenset({SEARCH, BACK, NEXT, PREVIOUS, BUY, *SUB_PAGES})
_MARKED = re.compile(r"\s*\[((?:clicked )?button)\] (.*) \[\1_\]")
_PRODUCT = re.compile(r"[A-Z0-9]{10}")
_STYLE = """<style>body{font:14px/1.4 system-ui,sans-serif;background:#fff;color:#1b1f24;margin:0;padding:8px}
.goal{background:#fff7d6;border:1px solid #e6d68a;padding:4px 8px;border-radius:4px}
span{display:inline-block;border:1px solid #9aa3ae;border-radius:4px;padding:0 8px;margin:2px 4px 2px 0;
background:#f3f5f8}
span.buy{background:#f5b83d}span.clicked{background:#1a63c4;color:#fff}b{display:block;margin-top:10px;color:#1a63c4}
p{margin:3px 0}</style>"""


def draw(observation: str, arguments: Mapping[str, Any]) -> str | None:
    """A page in either form of its text: what can be clicked looks like it, as far as the text tells."""
    rich = arguments.get("observation_mode", "text") == "text_rich"
    pieces = list(_rich(observation) if rich else _plain(observation))
    if not any(text.strip() == "Instruction:" for _, text in pieces) and "Thank you for shopping" not in observation:
        return None
    parts, goal = [], False
    for kind, text in pieces:
        shown = escape(text.strip())
        if kind == "text":
            parts.append(f'<p class="goal">{shown}</p>' if goal else f"<p>{shown}</p>")
            goal = text.strip() == "Instruction:"
        elif kind == "product":
            parts.append(f"<b>{shown}</b>")
        else:
            parts.append(f'<span class="{"buy" if text == BUY else kind}">{shown}</span>')
    return _STYLE + "".join(parts)


def _plain(observation: str) -> Iterator[tuple[str, str]]:
    for text in observation.split(" [SEP] "):
        yield "button" if text in _BUTTONS else "product" if _PRODUCT.fullmatch(text) else "text", text


def _rich(observation: str) -> Iterator[tuple[str, str]]:
    for line in filter(str.strip, observation.split("\n")):
        marked = _MARKED.fullmatch(line)
        if marked is None:
            yield "text", line
        elif _PRODUCT.fullmatch(marked[2]):
            yield "product", marked[2]
        else:
            yield marked[1].split()[0], marked[2]
