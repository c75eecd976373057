"""The reward of a purchase: type, attributes, options and price compared with the goal, as in the original.

Source: Yao et al. 2022 (arXiv:2207.01206), section 3.2 and the reference implementation's ``goal.py``. With m goal
attributes of which a are met, n goal options of which o are met, and p = 1 when the price is within the cap, the
reward is ``r_type * (a + o + p) / (m + n + 1)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from envs.webshop.types import Goal, Product

__all__ = ["COLOURS", "Purchase", "alike", "normalize_colour", "purchase_reward"]

COLOURS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream "
    "crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather "
    "indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal "
    "rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise "
    "violet walnut wheat white wine yellow"
).split()
"""Colour words of the original, in its order: the first that occurs in an option's text stands for the text."""

ALIKE = 85
# thefuzz, with which the original compares, removes these characters first.
_LATIN_1 = dict.fromkeys(range(128, 256))
_CAP_CHARS = 2_000
"""Longer texts are compared up to here, so that a very long option name does not cost quadratic time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    """A purchase compared with a goal. ``r_``: share of the part that was met; ``w_``: its weight in the reward."""

    reward: float
    r_type: float
    r_att: float
    w_att: float
    query_match: bool
    category_match: bool
    title_score: float
    r_option: float | None
    """``None`` when the goal asks for no option."""
    w_option: float | None
    r_price: bool
    w_price: float
    parts: Mapping[str, float]
    """``attributes``, ``options`` and ``price`` in units of the reward; they sum to it."""

    def as_info(self) -> dict[str, float | bool]:
        """The parts under the original's names; option parts only where the goal asks for options."""
        info: dict[str, float | bool] = {
            "r_type": self.r_type,
            "r_att": self.r_att,
            "w_att": self.w_att,
            "query_match": self.query_match,
            "category_match": self.category_match,
            "title_score": self.title_score,
        }
        if self.r_option is not None and self.w_option is not None:
            info |= {"r_option": self.r_option, "w_option": self.w_option}
        return info | {"r_price": self.r_price, "w_price": self.w_price}


@lru_cache(maxsize=65_536)
def _plain(text: str) -> str:
    """Lower case, letters and digits only; characters of Latin-1 beyond ASCII are dropped (as the original does)."""
    return default_process(text[:_CAP_CHARS].translate(_LATIN_1))


def alike(one: str, other: str) -> bool:
    """Whether two texts count as the same: token set ratio above 85, rounded to a whole number first.

    >>> alike("red", "dark red"), alike("red", "blue")
    (True, False)
    """
    return round(token_set_ratio(_plain(one), _plain(other))) > ALIKE


@lru_cache(maxsize=65_536)
def normalize_colour(text: str) -> str:
    """The first colour word found in ``text``, else the text itself."""
    return next((colour for colour in COLOURS if colour in text), text)


def purchase_reward(
    product: Product,
    goal: Goal,
    *,
    price: float,
    options: Mapping[str, str],
    nouns_of: Callable[[str], Sequence[str]],
) -> Purchase:
    """Compare buying ``product`` at ``price`` dollars with these ``options`` (name -> value) with the goal."""
    query_match = product.query == goal.query
    category_match = len(_categories(product.product_category) & _categories(goal.product_category)) >= 2
    title_score = _title_score(nouns_of(product.title), nouns_of(goal.title))
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    # Titles that share hardly a noun outweigh an equal kind or category, as in the original.
    if title_score < 0.1:
        r_type = 0.0 if title_score == 0.0 else 0.1

    attributes = _attributes_met(product, goal.attributes)
    chosen = _options_met(options.values(), _wanted_options(goal))
    in_price = price <= goal.price_upper
    whole = len(goal.attributes) + len(goal.options) + 1
    parts = {"attributes": attributes, "options": chosen, "price": int(in_price)}
    return Purchase(
        reward=(attributes + chosen + in_price) / whole * r_type,
        r_type=r_type,
        r_att=attributes / len(goal.attributes) if goal.attributes else 1.0,
        w_att=len(goal.attributes) / whole,
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
        r_option=chosen / len(goal.options) if goal.options else None,
        w_option=len(goal.options) / whole if goal.options else None,
        r_price=in_price,
        w_price=1 / whole,
        parts={name: met / whole * r_type for name, met in parts.items()},
    )


@lru_cache(maxsize=4_096)
def _categories(path: str) -> frozenset[str]:
    return frozenset(part.strip() for part in path.split("›"))


def _title_score(bought: Sequence[str], wanted: Sequence[str]) -> float:
    """Shared nouns over the goal's nouns; 0.2 when its title has none."""
    return len(set(bought) & set(wanted)) / len(wanted) if wanted else 0.2


def _attributes_met(product: Product, wanted: Iterable[str]) -> int:
    texts: list[str] = []
    met = 0
    for attribute in wanted:
        if any(alike(own, attribute) for own in product.attributes):
            met += 1
            continue
        # Made only when needed: most attributes are found among the product's own.
        if not texts:
            texts = [product.title.lower(), " ".join(product.bullet_points).lower(), product.description.lower()]
        met += any(attribute in text for text in texts)
    return met


def _wanted_options(goal: Goal) -> list[str]:
    """The texts that chosen options are compared with.

    The original hands the options of a synthetic goal on as (name, value) pairs: a pair that contains a colour word
    becomes that word, any other is compared as the text of the pair, so that the option's name counts as a word too.
    """
    if not isinstance(goal.options, Mapping):
        return [normalize_colour(value) for value in goal.options]
    return [next((c for c in COLOURS if c in pair), str(pair)) for pair in goal.options.items()]


def _options_met(chosen: Iterable[str], wanted: Iterable[str]) -> int:
    chosen = [normalize_colour(value) for value in chosen]
    return sum(any(alike(value, goal) for value in chosen) for goal in wanted)
