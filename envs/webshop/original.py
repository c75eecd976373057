"""Reads listings in the original's format: ``items_shuffle*.json``, ``items_ins_v2*.json``, ``items_human_ins.json``.

The fields of a record mean what the original's loader makes of them. What that loader would crash on (a price without
a number, a missing text) is read as absent; what cannot be a product at all is an error that names file and record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from envs.webshop.types import Product, Review
from roll_envs.errors import ConfigError

__all__ = ["Listing", "find_file", "join", "listings", "parse_product", "read_json", "read_listings", "usable_asin"]

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""What the original gives a product of which the attributes file knows nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A product with what goals are made from."""

    product: Product
    instruction: str | None = None
    """Text of its synthetic goals, if it has any."""
    instruction_attributes: tuple[str, ...] = ()
    human: tuple[Mapping[str, Any], ...] = ()
    """Instructions written by people (``items_human_ins.json``)."""
    nouns: tuple[str, ...] | None = field(default=None)
    """Nouns of the title where they are known."""


def usable_asin(asin: object) -> bool:
    """Whether the original would take a product of this number (at most 10 characters, not ``nan``)."""
    return isinstance(asin, str) and asin != "nan" and 0 < len(asin) <= 10


def parse_product(
    record: Mapping[str, Any],
    attributes: Mapping[str, Any] | None,
    reviews: Mapping[str, Any] | None = None,
    *,
    where: str = "record",
) -> Product:
    """One record as a :class:`Product`; ``attributes`` and ``reviews`` are its entries in the other files.

    Raises :class:`ConfigError` that begins with ``where`` for a record that is no product.
    """
    if not isinstance(record, Mapping) or not isinstance(record.get("asin"), str):
        raise ConfigError(f"{where} is no product: it must be an object with the text 'asin', not {_short(record)}")
    where = f"{where} ({record['asin']})"
    pricing = _pricing(_text(record, "pricing", where))
    bullets = record.get("small_description")
    images = record.get("images") or [""]
    found = reviews or {}
    return Product(
        asin=record["asin"],
        title=_text(record, "name", where),
        description=_text(record, "full_description", where),
        bullet_points=tuple(map(str, bullets)) if isinstance(bullets, list) else (str(bullets or ""),),
        category=_text(record, "category", where),
        query=_text(record, "query", where).lower().strip(),
        product_category=_text(record, "product_category", where),
        pricing=pricing,
        # A product without a price is shown at the 100 dollars that it is sold for (see goals.UNKNOWN_PRICE).
        price_tag=" to ".join(f"${price}" for price in pricing or (100.0,)),
        options=_options(record.get("customization_options"), where),
        attributes=_attributes(attributes, where),
        image=str(images[0]) if isinstance(images, list) else str(images),
        rating=str(found.get("average_rating", "N.A.")),
        reviews=tuple(map(_review, found.get("reviews") or ())),
    )


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key!r} must be a text, not {_short(value)}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _pricing(text: str) -> tuple[float, ...]:
    """The first two prices in a text such as ``$10.52$40.50``.

    >>> _pricing("$10.52$40.50"), _pricing("")
    ((10.52, 40.5), ())
    """
    prices: list[float] = []
    for part in text.split("$")[1:]:
        try:
            # Thousands are separated by commas; a text without a digit raises InvalidOperation.
            prices.append(float(Decimal(re.sub(r"[^\d.]", "", part))))
        except InvalidOperation:
            continue
    return tuple(prices[:2])


def _options(given: Any, where: str) -> dict[str, tuple[str, ...]]:
    if not given:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: 'customization_options' must be an object, not {_short(given)}")
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in given.items():
        if contents is None:
            continue
        try:
            # The slash is replaced as in the original, whose addresses hold the chosen values.
            values = tuple(str(c["value"]).strip().replace("/", " | ").lower() for c in contents)
        except (TypeError, KeyError):
            raise ConfigError(
                f"{where}: option {name!r} must be a list of objects with a 'value', not {_short(contents)}"
            ) from None
        options[name.lower()] = values
    return options


def _attributes(entry: Mapping[str, Any] | None, where: str) -> tuple[str, ...]:
    if entry is None or "attributes" not in entry:
        return NO_ATTRIBUTES
    found = entry["attributes"]
    if not isinstance(found, list):
        raise ConfigError(f"{where}: 'attributes' must be a list of texts, not {_short(found)}")
    return tuple(map(str, found))


def _review(entry: Mapping[str, Any]) -> Review:
    score = entry.get("score", entry.get("stars", ""))
    return Review(title=str(entry.get("title", "")), score=str(score), body=str(entry.get("review", "")))


def find_file(data_dir: Path, stem: str, num_products: int | None = None) -> Path | None:
    """The file ``stem.json`` or ``stem_<n>.json`` in ``data_dir``: the one for ``num_products``, else the largest."""
    wanted = data_dir / f"{stem}_{num_products}.json"
    if num_products is not None and wanted.is_file():
        return wanted
    whole = data_dir / f"{stem}.json"
    if whole.is_file():
        return whole
    sized = [(int(m[1]), p) for p in data_dir.glob(f"{stem}_*.json") if (m := re.fullmatch(r".*_(\d+)", p.stem))]
    return max(sized)[1] if sized else None


def read_json(path: Path, kind: type) -> Any:
    """The JSON file at ``path``, which must hold a ``kind``. Raises :class:`ConfigError` that names what is wrong."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        size = path.stat().st_size
        # An error at the very end of the text means that the rest is missing.
        hint = "the file is cut off" if error.pos >= len(error.doc.rstrip()) - 1 else "the file is damaged"
        raise ConfigError(
            f"{path} is not valid JSON: {error.msg} at character {error.pos} of a file of {size} bytes ({hint}); "
            "fetch it again"
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}; fetch it again") from error
    if not isinstance(content, kind):
        raise ConfigError(f"{path} must hold a JSON {'array' if kind is list else 'object'}, not {_short(content)}")
    return content


def read_listings(data_dir: Path, num_products: int | None = None) -> Iterator[Listing]:
    """Every product of the files in ``data_dir`` in order, the first of those that share a number.

    ``items_shuffle*.json`` must be there; the others are used when they are. Raises :class:`ConfigError`.
    """
    if not data_dir.is_dir():
        raise ConfigError(f"no folder {data_dir}; data_dir must be the folder that holds items_shuffle*.json")
    path = find_file(data_dir, "items_shuffle", num_products)
    if path is None:
        held = ", ".join(sorted(p.name for p in data_dir.iterdir())[:8]) or "nothing"
        raise ConfigError(
            f"no items_shuffle*.json in {data_dir} (it holds {held}); envs/webshop/README.md lists the original's files"
        )
    records = read_json(path, list)
    attributes = _side_file(data_dir, "items_ins_v2", num_products)
    human = _side_file(data_dir, "items_human_ins", None)
    nouns = _side_file(data_dir, "title_nouns", None)
    reviews = _reviews(data_dir)
    # The first records of the file, counted before repeated ones are left out.
    return listings(records[:num_products], attributes, human, reviews, nouns, where=str(path))


def listings(
    records: Iterable[Mapping[str, Any]],
    attributes: Mapping[str, Any],
    human: Mapping[str, Any],
    reviews: Mapping[str, Any],
    nouns: Mapping[str, Any],
    *,
    where: str,
) -> Iterator[Listing]:
    """Records joined with the entries of the other files, by product number."""
    seen: set[str] = set()
    for number, record in enumerate(records):
        asin = record.get("asin") if isinstance(record, Mapping) else None
        if isinstance(asin, str) and (not usable_asin(asin) or asin in seen):
            continue
        key = str(asin)
        found = join(
            record,
            attributes=attributes.get(key),
            human_instructions=human.get(key),
            reviews=reviews.get(key),
            title_nouns=nouns.get(key),
            where=f"{where}, record {number}",
        )
        seen.add(found.product.asin)
        yield found


def join(
    record: Any,
    *,
    attributes: Any = None,
    human_instructions: Any = None,
    reviews: Any = None,
    title_nouns: Any = None,
    where: str,
) -> Listing:
    """A record with its entries in the other files.

    Raises :class:`ConfigError` that names the file and the product number of an entry that is malformed.
    """
    asin = record.get("asin") if isinstance(record, Mapping) else None
    made = _side(attributes, dict, f"items_ins_v2: the entry of {asin}") or {}
    reviews = _side(reviews, dict, f"reviews: the entry of {asin}") or {}
    reviewed = _side(reviews.get("reviews"), list, f"reviews: 'reviews' of {asin}") or ()
    for review in reviewed:
        _side(review or 0, dict, f"reviews: a review of {asin}")
    instructions = _side(human_instructions, list, f"items_human_ins: the entry of {asin}") or ()
    for written in instructions:
        what = f"items_human_ins: an instruction of {asin}"
        _side(_side(written or 0, dict, what).get("instruction"), str, f"{what}, its 'instruction',")
        for name in ("instruction_attributes", "instruction_options"):
            _side(written.get(name), list, f"{what}, its {name!r},")
    what = f"items_ins_v2: {{}} of {asin}"
    wanted = _side(made.get("instruction_attributes"), list, what.format("'instruction_attributes'"))
    known = (_side(title_nouns, dict, f"title_nouns: the entry of {asin}") or {}).get("name")
    _side(known, list, f"title_nouns: 'name' of {asin}")
    return Listing(
        product=parse_product(record, made or None, reviews, where=where),
        instruction=_side(made.get("instruction"), str, what.format("'instruction'")),
        instruction_attributes=tuple(wanted or ()),
        human=tuple(instructions),
        nouns=None if known is None else tuple(known),
    )


_JSON: dict[type, str] = {dict: "an object", list: "an array", str: "a text"}


def _side(value: Any, kind: type, what: str) -> Any:
    """``value``, which must be a ``kind`` or missing."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{what} must be {_JSON[kind]}, not {_short(value)}; mend the file or fetch it again")
    return value


def _side_file(data_dir: Path, stem: str, num_products: int | None) -> dict[str, Any]:
    path = find_file(data_dir, stem, num_products)
    found: dict[str, Any] = read_json(path, dict) if path is not None else {}
    return found


def _reviews(data_dir: Path) -> dict[str, Any]:
    path = find_file(data_dir, "reviews")
    entries = read_json(path, list) if path is not None else []
    for number, entry in enumerate(entries):
        _side(entry, dict, f"{path}: entry {number}")
    return {str(entry.get("asin")): entry for entry in entries}
