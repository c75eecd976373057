"""WebShopEnv: buy the product that an instruction asks for, by searching and clicking through a shop's pages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import numpy as np

from envs.arguments import check_choice, check_int, check_penalty
from envs.webshop.actions import read_action
from envs.webshop.catalogue import Catalogue, load_catalogue
from envs.webshop.goals import SPLITS, chosen_goal, split_range
from envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SUB_PAGES, Page, Piece, pieces, plain_text, rich_text
from envs.webshop.pages import clickables as clickables_of
from envs.webshop.reward import Purchase, purchase_reward
from envs.webshop.types import Goal, Product
from roll_envs.env import AnyText, TextEnv
from roll_envs.errors import ConfigError
from roll_envs.parsing import FreeFormat, make_free_format

__all__ = ["PAGE_SIZE", "WebShopEnv", "set_generator"]

PAGE_SIZE = 10

RULES = (
    "You are shopping in an online shop. Find the product that the instruction asks for, with its attributes, options "
    "and price, and buy it."
)
ACTIONS = (
    "search[words] searches the shop; click[text] clicks a button, a product number or an option of the page that is "
    "shown; click[Buy Now] buys the product as it is set and ends the episode."
)


class WebShopEnv(TextEnv):
    """The shop (see the README beside this file for pages, rewards and every argument)."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]
    action_format: FreeFormat
    splits: ClassVar[tuple[str, ...]] = tuple(SPLITS)

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        num_products: int | None = None,
        human_goals: bool = True,
        seed: int = 0,
        split: str = "all",
        observation_mode: str = "text",
        show_attrs: bool = False,
        page_size: int = PAGE_SIZE,
        max_turns: int = 100,
        action_format: str = "word",
        format_penalty: float = 0.0,
        render_mode: str | None = None,
        catalogue: Catalogue | None = None,
    ) -> None:
        """The arguments are explained in the README; wrong ones raise :class:`~roll_envs.errors.ConfigError`."""
        if num_products is not None:
            check_int("num_products", num_products, 1)
        self.split = check_choice("split", split, tuple(SPLITS))
        self.observation_mode = check_choice("observation_mode", observation_mode, ("text", "text_rich"))
        self.max_turns = check_int("max_turns", max_turns, 1)
        self.page_size = check_int("page_size", page_size, 1)
        self.show_attrs = bool(show_attrs)
        self.format_penalty = check_penalty(format_penalty)
        self.render_mode = check_choice("render_mode", render_mode, (None, "ansi"))
        self.action_format = make_free_format(action_format, example="click[Buy Now]")
        self.action_space = AnyText(
            tuple(map(self.action_format.write, ("search[red shoes]", "click[back to search]", "click[buy now]")))
        )
        self.observation_space = AnyText()
        self._source = (data_dir, num_products, bool(human_goals), check_int("seed", seed, 0))
        self._given = catalogue
        self.catalogue = catalogue if catalogue is not None else self._load()
        self._page = Page(kind="search", instruction="")
        self._goal: Goal | None = None
        self._goal_number = -1
        self._turns, self._over = 0, True
        self._show()

    def _load(self) -> Catalogue:
        data_dir, num_products, human, seed = self._source
        return load_catalogue(data_dir, num_products=num_products, human=human, seed=seed)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but a catalogue that can be loaded again by name."""
        return {**self.__dict__, "catalogue": None} if self._given is None else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.catalogue is None:
            self.catalogue = self._load()

    @property
    def instructions(self) -> str:
        """What the shop is, the two actions and how to answer."""
        return f"{RULES}\n{ACTIONS}\nYou have {self.max_turns} turns. {self.action_format.instructions}"

    @property
    def page(self) -> Page:
        """The page that is shown, as data."""
        return self._page

    @property
    def goal(self) -> Goal:
        """The goal of this episode (hidden from the shopper but for its instruction)."""
        if self._goal is None:
            raise gymnasium.error.ResetNeeded("there is no goal before reset()")
        return self._goal

    def split_size(self, split: str) -> int:
        """How many goals the split has."""
        return len(split_range(split, len(self.catalogue.goals)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start on the search page with goal number ``seed`` of the split (counted round).

        ``options``: ``{"split": name}`` chooses the split of this episode, ``{"session": i}`` goal ``i`` of all.
        Raises :class:`ConfigError` for other options, a split without goals and a session that does not exist.
        """
        episode = self.episode_seed(seed)
        goals = self.catalogue.goals
        self._start(chosen_goal(episode, options, split=self.split, count=len(goals), name=self.catalogue.name))
        self._turns, self._over = 0, False
        return self.render(), {"success": False, **self._actions_info()}

    def _start(self, number: int) -> None:
        self._goal_number = number
        self._goal = self.catalogue.goals[number]
        self._page = Page(kind="search", instruction=self._goal.instruction, show_attributes=self.show_attrs)
        self._show()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an answer; see the README for pages, rewards and limits."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over, or none has begun: call reset() first")
        read = self.action_format.read(action)
        name, argument = read_action(read) if read is not None else ("", "")
        self._turns += 1
        before = self._page
        purchase: Purchase | None = None
        valid = True
        if name == "search" and argument:
            self._search(argument, 1)
        # The search button is listed and cannot be clicked, as in the original: a search needs words.
        elif name == "click" and argument != "search" and argument in self._clickables:
            purchase = self._click(argument)
        else:
            valid = False
        if self._page is not before:
            self._show()
        penalty = 0.0 if valid else self.format_penalty
        parts = purchase.parts if purchase is not None else {}
        bought = purchase.reward if purchase is not None else 0.0
        terminated = purchase is not None
        truncated = not terminated and self._turns >= self.max_turns
        self._over = terminated or truncated
        info: dict[str, Any] = {
            "success": bought == 1.0,
            "action_is_valid": valid,
            "action_is_effective": self._page is not before and self._page != before,
            "format_penalty": penalty,
            "reward_parts": {**parts, "format": penalty} if purchase is not None else {"format": penalty},
            **self._actions_info(),
        }
        if purchase is not None:
            info |= purchase.as_info()
        return self.render(), bought + penalty, terminated, truncated, info

    def _search(self, query: str, number: int) -> None:
        found = self.catalogue.search(query)
        first = (number - 1) * self.page_size
        self._page = replace(
            self._page,
            kind="results",
            query=query,
            page_number=number,
            page_size=self.page_size,
            total=len(found),
            products=tuple(self.catalogue.store[doc] for doc in found[first : first + self.page_size]),
            product=None,
            chosen={},
        )

    def _click(self, text: str) -> Purchase | None:
        """Follow a link; the order of the cases is the original's, where a button's text wins over an option's."""
        page = self._page
        if text == BUY.lower():
            return self._buy()
        if text == BACK.lower():
            self._page = Page(kind="search", instruction=page.instruction, show_attributes=self.show_attrs)
        elif text in (NEXT.lower(), PREVIOUS.lower()) and page.kind == "results":
            self._search(page.query, page.page_number + (1 if text == NEXT.lower() else -1))
        elif text == PREVIOUS.lower() and page.kind == "item":
            self._search(page.query, page.page_number)
        elif text == PREVIOUS.lower() and page.product is not None and page.kind != "done":
            self._page = replace(page, kind="item")
        elif page.kind == "item" and text in _SUB_PAGES:
            self._page = replace(page, kind=_SUB_PAGES[text])
        else:
            self._open(self._clickables[text])
        return None

    def _open(self, piece: Piece) -> None:
        page = self._page
        if piece.kind == "link":
            product = next(p for p in page.products if p.asin == piece.text)
            self._page = replace(page, kind="item", product=product, seen=page.seen | {product.asin})
        elif piece.kind == "option":
            self._page = replace(page, chosen={**page.chosen, piece.name: piece.text})

    def _buy(self) -> Purchase | None:
        product = self._page.product
        assert product is not None
        assert self._goal is not None
        purchase = self._purchase(product, self._page.chosen)
        self._page = replace(self._page, kind="done", reward=purchase.reward)
        return purchase

    def _purchase(self, product: Product, chosen: Mapping[str, str]) -> Purchase:
        store = self.catalogue.store
        doc = store.find(product.asin)
        assert doc is not None
        return purchase_reward(
            product, self.goal, price=store.price(doc), options=chosen, nouns_of=self.catalogue.nouns
        )

    def _show(self) -> None:
        """Work out the page's text and what can be clicked; both stay until the page changes."""
        found = pieces(self._page)
        self._clickables = clickables_of(found)
        rich = self.observation_mode == "text_rich"
        self._text = rich_text(self._page, found) if rich else plain_text(found)

    def _actions_info(self) -> dict[str, Any]:
        searching = self._page.kind == "search"
        clicks = list(self._clickables)
        return {
            "available_actions": [
                *(["search[<content>]"] if searching else []),
                *(f"click[{text}]" for text in clicks if not searching or text != "search"),
            ],
            "clickables": clicks,
            "has_search_bar": searching,
        }

    def legal_answers(self) -> list[str]:
        """A search for the instruction's words, and every click that the page offers."""
        clicks = [f"click[{text}]" for text in self._clickables if text != "search" and "\n" not in text]
        words = self.goal.instruction.replace("\n", " ") if self._goal is not None else "anything"
        return [self.action_format.write(action) for action in (f"search[{words}]", *clicks)]

    def render(self) -> str:
        """The page as text."""
        if self._goal is None:
            return super().render()
        return self._text

    def oracle(self) -> list[str] | None:
        """Answers that buy the goal's product with the options that pay most; ``None`` where that is not 1.0.

        It searches for the product's title, turns pages until the product is there, opens it, chooses and buys.
        """
        if self._over or self._goal is None:
            return None
        doc = self.catalogue.store.find(self.goal.asin)
        if doc is None:
            return None
        product = self.catalogue.store[doc]
        chosen = self._best_options(product)
        if self._purchase(product, chosen).reward != 1.0:
            return None
        way = self._way_to(product, doc)
        if way is None:
            return None
        already = self._page.chosen if self._page.product is product else {}
        actions = [*way, *(f"click[{v}]" for n, v in chosen.items() if already.get(n) != v), f"click[{BUY.lower()}]"]
        if len(actions) > self.max_turns - self._turns:
            return None
        return [self.action_format.write(action) for action in actions]

    def _way_to(self, product: Product, doc: int) -> list[str] | None:
        """Clicks from here to the product's page."""
        page = self._page
        here = page.product is not None and page.product.asin == product.asin
        if here and page.kind == "item":
            return []
        if here:
            return [f"click[{PREVIOUS.lower()}]"]
        if page.kind == "results" and product in page.products:
            return [f"click[{product.asin.lower()}]"]
        # The list of its kind is for a product whose title cannot be searched for, or finds others first.
        for query in (product.title.lower(), f"<q> {product.query}"):
            found = self.catalogue.search(query)
            usable = query.strip() and "[" not in query and "\n" not in query
            if usable and doc in found:
                pages = found.index(doc) // self.page_size
                return [
                    f"search[{query}]",
                    *[f"click[{NEXT.lower()}]"] * pages,
                    f"click[{product.asin.lower()}]",
                ]
        return None

    def _best_options(self, product: Product) -> dict[str, str]:
        """The values to choose, by trying: for each option that value that pays most with the others unset."""
        chosen = dict(self._page.chosen) if self._page.product is product else {}
        best = self._purchase(product, chosen).reward
        options = self.goal.options
        wanted = set(options.values() if isinstance(options, Mapping) else options)
        for name, values in product.options.items():
            # Wanted values first: one of them usually pays most.
            for value in sorted(dict.fromkeys(values), key=lambda value: value not in wanted):
                if best == 1.0:
                    break
                reward = self._purchase(product, {**chosen, name: value}).reward
                if reward > best and self._reachable(product, name, value):
                    best, chosen = reward, {**chosen, name: value}
        return chosen

    def _reachable(self, product: Product, name: str, value: str) -> bool:
        """Whether clicking the value's text chooses it (a later option or a button may have the same text)."""
        item = replace(self._page, kind="item", product=product)
        piece = clickables_of(pieces(item)).get(value)
        taken = {BUY.lower(), BACK.lower(), NEXT.lower(), PREVIOUS.lower(), *_SUB_PAGES}
        return piece is not None and piece.kind == "option" and piece.name == name and value not in taken

    def snapshot(self) -> Mapping[str, Any]:
        """Goal number, page, choices, counters and generator."""
        if self._goal is None:
            raise gymnasium.error.ResetNeeded("there is nothing to take a snapshot of before reset()")
        page = self._page
        return {
            "goal": self._goal_number,
            "kind": page.kind,
            "query": page.query,
            "page": page.page_number,
            "asin": page.product.asin if page.product is not None else None,
            "chosen": dict(page.chosen),
            "seen": sorted(page.seen),
            "reward": page.reward,
            "turns": self._turns,
            "over": self._over,
            "np_random": self.np_random.bit_generator.state,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Continue from ``snapshot``; its ``np_random`` may be missing (the generator then stays as it is).

        Raises :class:`ConfigError` for one that :meth:`snapshot` of an environment with this catalogue cannot give.
        """
        if not isinstance(snapshot, Mapping):
            raise ConfigError(f"a snapshot is a mapping, not {snapshot!r}")
        number = check_int("goal", snapshot.get("goal"), 0)
        if number >= len(self.catalogue.goals):
            raise ConfigError(f"the snapshot is of goal {number}; this catalogue has {len(self.catalogue.goals)}")
        kind: Any = check_choice(
            "kind", snapshot.get("kind"), ("search", "results", "item", "done", *SUB_PAGES.values())
        )
        asin = snapshot.get("asin")
        doc = self.catalogue.store.find(str(asin)) if asin is not None else None
        # Only search and result pages show no product.
        if (kind not in ("search", "results")) != (doc is not None):
            raise ConfigError(f"a snapshot of a page {kind!r} cannot show the product {asin!r} in this catalogue")
        product = self.catalogue.store[doc] if doc is not None else None
        turns, shown = check_int("turns", snapshot.get("turns", 0), 0), check_int("page", snapshot.get("page", 1), 1)
        query, reward, seen = snapshot.get("query", ""), snapshot.get("reward", 0.0), snapshot.get("seen", ())
        if not isinstance(query, str):
            raise ConfigError(f"the query of a snapshot is a text, not {query!r}")
        if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not 0 <= reward <= 1:
            raise ConfigError(f"the reward of a snapshot is a number from 0 to 1, not {reward!r}")
        if not isinstance(seen, (list, tuple)) or not all(isinstance(asin, str) for asin in seen):
            raise ConfigError(f"'seen' of a snapshot is a list of product numbers, not {seen!r}")
        chosen = _known_choices(snapshot.get("chosen", {}), product)
        if "np_random" in snapshot:
            set_generator(self.np_random, snapshot["np_random"])
        self._start(number)
        if kind != "search":
            self._search(query, shown)
            self._page = replace(
                self._page,
                kind=kind,
                product=product,
                chosen=chosen,
                seen=frozenset(seen),
                reward=float(reward),
            )
            self._show()
        self._turns = turns
        self._over = kind == "done" or turns >= self.max_turns or bool(snapshot.get("over", False))
        return self.render()


def set_generator(generator: np.random.Generator, state: Any) -> None:
    """Set the state of a snapshot's ``np_random``. Raises :class:`ConfigError` for what is no such state."""
    try:
        generator.bit_generator.state = state
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ConfigError(f"'np_random' of a snapshot is the state of a generator, not {state!r} ({error})") from None


def _known_choices(chosen: Any, product: Product | None) -> dict[str, str]:
    """The chosen options of a snapshot, which the product must have."""
    options = product.options if product is not None else {}
    if not isinstance(chosen, Mapping) or any(value not in options.get(name, ()) for name, value in chosen.items()):
        raise ConfigError(f"the choices of a snapshot must be among the product's {dict(options)!r}, not {chosen!r}")
    return dict(chosen)


_SUB_PAGES = {text.lower(): kind for text, kind in SUB_PAGES.items()}
