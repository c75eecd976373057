"""Explains the reward of a purchase part by part, for the last page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from envs.webshop.env import WebShopEnv
from envs.webshop.reward import Purchase, purchase_reward
from envs.webshop.types import Goal, Product

__all__ = ["Check", "Outcome", "Part", "explain"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that the goal asked for."""

    text: str
    met: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of the reward: ``points`` of the ``most`` that it could have added, before the type factor."""

    name: str
    points: float
    most: float
    checks: tuple[Check, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A purchase compared with what was asked for."""

    reward: float
    bought: Product
    chosen: Mapping[str, str]
    price: float
    goal: Goal
    parts: tuple[Part, ...]
    type_factor: float
    type_reason: str


def explain(env: WebShopEnv) -> Outcome | None:
    """The outcome of the purchase that ``env`` shows; ``None`` on any other page."""
    page = env.page
    if page.kind != "done" or page.product is None:
        return None
    store, goal, product = env.catalogue.store, env.goal, page.product
    doc = store.find(product.asin)
    assert doc is not None
    price = store.price(doc)

    def against(wanted: Goal) -> Purchase:
        return purchase_reward(product, wanted, price=price, options=page.chosen, nouns_of=env.catalogue.nouns)

    whole = against(goal)
    # Each part is asked for alone, by the reward's own function, so that both always agree.
    attributes = tuple(Check(text=a, met=against(replace(goal, attributes=(a,))).r_att == 1.0) for a in goal.attributes)
    options = tuple(
        Check(text=text, met=against(replace(goal, options=one)).r_option == 1.0) for text, one in _single(goal)
    )
    cap = f"at most ${goal.price_upper:,.2f}" if goal.price_upper < 1_000_000 else "any price"
    slots = (
        ("Attributes", whole.w_att, whole.r_att, attributes),
        ("Options", whole.w_option or 0.0, whole.r_option or 0.0, options),
        ("Price", whole.w_price, float(whole.r_price), (Check(text=f"{cap}; paid ${price:,.2f}", met=whole.r_price),)),
    )
    return Outcome(
        reward=whole.reward,
        bought=product,
        chosen=page.chosen,
        price=price,
        goal=goal,
        parts=tuple(
            Part(name=name, points=weight * share, most=weight, checks=checks) for name, weight, share, checks in slots
        ),
        type_factor=whole.r_type,
        type_reason=_type_reason(whole, goal),
    )


def _single(goal: Goal) -> Iterator[tuple[str, Mapping[str, str] | tuple[str, ...]]]:
    """Each wanted option by itself, in the form that the goal has them."""
    if isinstance(goal.options, Mapping):
        for name, value in goal.options.items():
            yield f"{name}: {value}", {name: value}
    else:
        for value in goal.options:
            yield value, (value,)


def _type_reason(whole: Purchase, goal: Goal) -> str:
    score = f"{100 * whole.title_score:.0f}% of the nouns in the title of the wanted product"
    if whole.r_type < 0.5:
        return f"Another kind of product: its title has {score}."
    if whole.r_type < 1.0:
        return f"Only a similar product: of another kind and category, and its title has {score}."
    if whole.query_match:
        return f"The right kind of product ({goal.query})."
    if whole.category_match:
        return "The right kind of product: it is in two or more of the wanted categories."
    return f"The right kind of product: its title has {score}."
