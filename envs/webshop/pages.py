"""The content of a page as plain data, its text in the original's two forms, and its clickable elements.

A page is a list of pieces: texts, buttons, product links and option labels in the order they stand. Both text forms
and the list of clickables follow from the pieces alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from envs.webshop.types import Product

__all__ = [
    "BACK",
    "BUY",
    "NEXT",
    "PREVIOUS",
    "SEARCH",
    "SUB_PAGES",
    "Page",
    "Piece",
    "clickables",
    "pieces",
    "plain_text",
    "rich_text",
]

PageKind = Literal["search", "results", "item", "description", "features", "reviews", "attributes", "done"]

SEARCH, BACK, NEXT, PREVIOUS, BUY = "Search", "Back to Search", "Next >", "< Prev", "Buy Now"
SUB_PAGES: dict[str, PageKind] = {
    "Description": "description",
    "Features": "features",
    "Reviews": "reviews",
    "Attributes": "attributes",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One page as the shopper sees it."""

    kind: PageKind
    instruction: str
    query: str = ""
    page_number: int = 1
    page_size: int = 10
    total: int = 0
    """How many products the search found (50 at most)."""
    products: tuple[Product, ...] = ()
    """Those on this page of results."""
    product: Product | None = None
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Option name -> chosen value, in the order of the clicks."""
    seen: frozenset[str] = frozenset()
    """Numbers of the products that were opened since the last visit to the search page."""
    show_attributes: bool = False
    reward: float = 0.0
    """On the last page: the reward of the purchase."""


# Whitespace as HTML has it.
_BLANK = " \n\t\f\r"


class Piece(NamedTuple):
    """A run of text; ``link`` is a product, ``option`` a value of the option called ``name``."""

    kind: Literal["text", "button", "link", "option"]
    text: str
    name: str = ""


def _text(text: str) -> Piece:
    return Piece("text", text)


def _button(text: str) -> Piece:
    return Piece("button", text)


def pieces(page: Page) -> list[Piece]:
    """Everything on the page in reading order."""
    if page.kind == "search":
        return [_text("WebShop"), _text("Instruction: "), _text(page.instruction), _button(SEARCH)]
    if page.kind == "done":
        return _done(page)
    found = [_text("Instruction:"), _text(page.instruction), _button(BACK)]
    if page.kind == "results":
        found.append(_text(f"Page {page.page_number} (Total results: {page.total})"))
        if page.page_number > 1:
            found.append(_button(PREVIOUS))
        found.append(_button(NEXT))
        for hit in page.products:
            found += [Piece("link", hit.asin), _text(hit.title), _text(hit.price_tag)]
        return found
    found.append(_button(PREVIOUS))
    product = page.product
    assert product is not None
    if page.kind == "item":
        for name, values in product.options.items():
            found.append(_text(name))
            found += [Piece("option", value, name) for value in values]
        found += [_text(product.title), _text(f"Price: {product.price_tag}"), _text(f"Rating: {product.rating}")]
        found += [_button(text) for text in SUB_PAGES if page.show_attributes or text != "Attributes"]
        found.append(_button(BUY))
    else:
        found += [_text(text) for text in _details(page.kind, product)]
    return found


def _details(kind: PageKind, product: Product) -> list[str]:
    if kind == "description":
        return [product.description]
    if kind == "features":
        return [f" {point}" for point in product.bullet_points]
    if kind == "reviews":
        return [text for r in product.reviews for text in (f'"{r.title}"', r.score, r.body)]
    kinds = (product.category, product.query, product.product_category)
    return [f" {attribute}" for attribute in product.attributes] + list(kinds)


def _done(page: Page) -> list[Piece]:
    """The last page, with the fields that the original leaves empty or unset."""
    assert page.product is not None
    # As the template engine of the original writes JSON into a page: sorted, and safe inside HTML.
    chosen = json.dumps(dict(page.chosen), sort_keys=True)
    for mark in "<>&'":
        chosen = chosen.replace(mark, f"\\u{ord(mark):04x}")
    bought = ["asin", page.product.asin, "options", chosen, "attrs", "None", "category", "None", "query", "None"]
    target = ["asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query"]
    score = ["Reward", "Your score (min 0.0, max 1.0)", str(page.reward), "Reward Details ", "None"]
    head = ["Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"]
    texts = [*head, "Purchased", *bought, "product category", "None", "Target", *target, "Goal ", "None", *score]
    return [_text(text) for text in texts]


def clickables(found: list[Piece]) -> dict[str, Piece]:
    """What can be clicked: lower-case text -> piece, buttons first, then products, then options.

    Where two pieces have the same text the later one is meant, at the place of the first (as in the original).
    """
    by_text = {piece.text.lower(): piece for kind in ("button", "link") for piece in found if piece.kind == kind}
    for piece in found:
        if piece.kind == "option":
            # Values of options are lower case already.
            by_text[piece.text] = piece
    return by_text


def _visible(text: str) -> bool:
    """Whether the original's page reader keeps a text: it drops whitespace that contains a line break."""
    return bool(text.strip(_BLANK)) or (text != "" and "\n" not in text)


def plain_text(found: list[Piece]) -> str:
    """The page as one line, pieces joined by ``[SEP]``."""
    return " [SEP] ".join([piece.text.strip() for piece in found if _visible(piece.text)])


def rich_text(page: Page, found: list[Piece]) -> str:
    """The page with its buttons marked, one piece a line; what was clicked already is marked as such.

    The original finds out which options are chosen by looking for their quoted text in the page's address (query,
    page number and the chosen options as JSON), and so does this.
    """
    address = f"/{page.query.replace(' ', '+')}/{page.page_number}/{json.dumps(dict(page.chosen))}"
    clicked = ""
    lines: list[str] = []
    for piece in found:
        if not _visible(piece.text):
            continue
        if piece.kind == "button":
            line = f"[button] {piece.text} [button_]"
        elif piece.kind == "option" and f'"{piece.text}"' in address:
            line = f"  [clicked button] {piece.text} [clicked button_]"
            clicked = f"You have clicked {piece.text}.\n{clicked}"
        elif piece.kind == "option":
            line = f"  [button] {piece.text} [button_]"
        elif piece.kind == "link":
            mark = "clicked button" if piece.text in page.seen else "button"
            line = f"\n[{mark}] {piece.text} [{mark}_]"
        else:
            line = piece.text if piece.text.strip(_BLANK) else " "
        lines.append(line + "\n")
    return clicked + "".join(lines)
