"""Product files made by rule, for tests of what reads them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from envs.webshop.disk import build, build_index

COMMON = [f"common{n}" for n in range(12)]
RARE = [f"rare{n}" for n in range(700)]


def words(rng: random.Random, count: int) -> str:
    """Text in which some words are in most documents and others in few."""
    return " ".join(rng.choice(COMMON if rng.random() < 0.6 else RARE) for _ in range(count))


def make_data(folder: Path, count: int) -> Path:
    """Product files with all that the original's hold: ranges, no prices, repeated and unusable numbers, odd text."""
    rng = random.Random(7)
    records: list[dict[str, Any]] = []
    made: dict[str, Any] = {}
    human: dict[str, Any] = {}
    for number in range(count):
        asin = f"B{number * 7919 % 1_000_003:07d}"  # in another order than the documents
        options = {
            name.title(): [{"value": f"{name} {n}/{words(rng, 1)}"} for n in range(rng.randrange(1, 4))]
            for name in rng.sample(["size", "colour", "fit"], rng.randrange(3))
        }
        records.append(
            {
                "asin": asin,
                "name": words(rng, rng.randrange(3, 9)) + rng.choice(["", " café ★", " \ud800", ' "quoted" [x]']),
                "full_description": words(rng, rng.randrange(30)),
                "small_description": [words(rng, 4)] * rng.randrange(3),
                "pricing": rng.choice(["", "$12.5", "$995.00", f"$3.20${rng.randrange(4, 90)}.99", "$5,000.00"]),
                "category": rng.choice(["garden", "fashion"]),
                "query": rng.choice(["Console tables ", "shoes"]),
                "product_category": "A › B",
                "customization_options": options or "",
                "images": ["a.jpg", "b.jpg"],
            }
        )
        if rng.random() < 0.8:
            made[asin] = {"attributes": [words(rng, 1) for _ in range(3)]}
            if rng.random() < 0.7:
                made[asin] |= {"instruction": f"Find me {words(rng, 2)}", "instruction_attributes": [words(rng, 1)] * 2}
        if rng.random() < 0.3:
            human[asin] = [
                {"instruction": "i need it.", "instruction_attributes": attributes, "instruction_options": ["red"]}
                for attributes in ([], ["soft"], ["a", "b"])
            ]
    records[9] = {"asin": records[9]["asin"]}  # nothing to index
    records.insert(count // 2, {**records[3], "name": "the second of its number"})
    records.insert(count // 3, {**records[0], "asin": "nan"})
    records.insert(5, {**records[0], "asin": "B0000000000"})
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("items_shuffle", records), ("items_ins_v2", made), ("items_human_ins", human)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def build_in_segments(source: Path, out: Path, *, segment_products: int, **arguments: Any) -> Path:
    """Build a catalogue on disk from segments of another size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "SEGMENT_PRODUCTS", segment_products)
        return build_index(source, out, **arguments)
