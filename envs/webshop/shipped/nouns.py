"""Nouns of the shipped titles: their words are known, so those that are no nouns are listed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["OTHER_WORDS", "nouns_of_title"]

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")

OTHER_WORDS = frozenset(
    """
    a absorbent absorbing academic adjustable aged and anti arched assorted back backless backlit baked based beaded
    beige beveled biodegradable black blue boiling bold bound braided brown brushed built burgundy burning by c café
    cancelling capped carry carrying certified charcoal charging chewy chunky clarifying classic clean clear coiled
    cold colored compact compostable cool cooling coral cordless cozy creamy crisp cropped crunchy curly cutting
    daily dark darkening de deep deluxe dental dimmable dotted double dried driving dry drying dual e early easy eco
    electric embroidered engineered ergonomic essential everyday expandable extra fair fast faux filtering fine five
    fizzy flat flavored floating floral foaming foldable folding for forged four free french fresh friendly fringed
    ft full gb gentle genuine geometric giant glazed glossy golden gray green handed hanging hard heavy hidden high
    highly hinged hot hyaluronic hypoallergenic in inch included individually indoor industrial inflatable insulated
    ionic ivory junior khaki knit knitted kosher large lasting lavender lay lb learn led left light lined liquid
    liter long low made magnetic mah making matte mauve mechanical medium mid mild mini minimal mint mm modern
    mounted multi mustard narrow natural navy non nude numbered nutty of old older olive omelette on open optical
    orange organic orthopedic outdoor oval over oversized oz padded painted pc pink plain pleated plum poured
    powered pressed printed proof pure purple quick quiet quilted raised raw ready real rear rechargeable recycled
    red reducing refillable reflective regular relaxed remote removable resealable resistant retractable reversible
    ribbed rich right rimmed roasted robust rotating round rounded rugged rustic s safe salted scented seamless
    seeded self sensitive sharp shatter sheer short shutoff sided silent silver single six sleepy sleeved slim slow
    small smoked smoky smooth smoothing snug soft solar solid sparkling speckled spiral square squat stackable
    stacking stainless standing static stitched straight strappy striped surround synthetic tall tan teal telescopic
    tempered thermal thick thin three tiered tight tilting tinted tipped toasted toxic tropical tufted two undated
    unfiltered up upper urban v vented vertical vintage warm washable washed weekly weighted wet whipped white whole
    wicking wide wireless with wooden wrapped x x-large x-small xx-large yellow
    """.split()
)
"""Words of titles that are no nouns."""


def nouns_of_title(record: Mapping[str, Any]) -> list[str]:
    """The nouns of a shipped product's title in lower case, in order (numbers and adjectives left out)."""
    return [word for word in _WORD.findall(record["name"].lower()) if word not in OTHER_WORDS]
