"""WebShopMiniEnv: the same shop on one short page a turn, with a closed vocabulary and a fixed list of actions.

Search engine and reward are those of WebShop; each goal has a small shop of its own and the pages are brief, so that a
model of a few hundred thousand parameters can learn to shop on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from envs.arguments import check_choice, check_int, check_penalty
from envs.webshop.env import WebShopEnv, set_generator
from envs.webshop.goals import SPLITS, chosen_goal, split_range
from envs.webshop.mini_catalogue import COLOURS, KINDS, NUM_GOALS, SIZES, mini_catalogue, mini_words
from envs.webshop.pages import Page
from roll_envs.env import AnyText, TextEnv
from roll_envs.errors import ConfigError
from roll_envs.parsing import ActionFormat, make_action_format

__all__ = ["WebShopMiniEnv"]

PAGE_SIZE = 4

SEARCHES = tuple(f"search[{kind}]" for kind in KINDS)
ROWS = tuple(f"click[{number}]" for number in range(1, PAGE_SIZE + 1))
OPTIONS = tuple(f"click[{value}]" for value in (*COLOURS, *SIZES))
WAYS = {"click[next]": "click[next >]", "click[back]": "click[< prev]", "click[buy]": "click[buy now]"}
ACTIONS = (*SEARCHES, *ROWS, *OPTIONS, *WAYS)

RULES = (
    "You are shopping. Buy what is wanted: the right kind with its quality and material, in the wanted color and size, "
    "for no more than the price. A search lists the products of a kind, four on a page with their prices, and marks "
    "those that you opened as seen; a click on a number opens a product; its page shows its options, the chosen ones "
    "in brackets. Not every product is offered in every color and size."
)


class WebShopMiniEnv(TextEnv):
    """WebShop for small policies (see the README beside this file)."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]
    action_format: ActionFormat
    splits: ClassVar[tuple[str, ...]] = WebShopEnv.splits

    def __init__(
        self,
        *,
        seed: int = 0,
        order: int = 0,
        split: str = "all",
        max_turns: int = 15,
        action_format: str = "answer",
        format_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """As :class:`~envs.webshop.env.WebShopEnv`; ``order`` other than 0 lists the products of each shop in another.

        Wrong arguments raise :class:`~roll_envs.errors.ConfigError`.
        """
        self.max_turns = check_int("max_turns", max_turns, 1)
        self.format_penalty = check_penalty(format_penalty)
        self.render_mode = check_choice("render_mode", render_mode, (None, "ansi"))
        self.action_format = make_action_format(action_format, ACTIONS)
        self._parse = self.action_format.parse
        self.action_space = AnyText(tuple(self.action_format.format([a]) for a in range(len(ACTIONS))))
        self.observation_space = AnyText()
        self.split = check_choice("split", split, tuple(SPLITS))
        self.seed, self.order = check_int("seed", seed, 0), check_int("order", order, 0)
        self.number, self.shop = 0, self._shop(0)

    def _shop(self, number: int) -> WebShopEnv:
        catalogue = mini_catalogue(self.seed, number, self.order)
        return WebShopEnv(catalogue=catalogue, page_size=PAGE_SIZE, max_turns=self.max_turns)

    @property
    def instructions(self) -> str:
        """The shop, the actions and how to answer."""
        lists = f"search[kind] with a kind of {', '.join(KINDS)}; {', '.join(ROWS)}; {', '.join(OPTIONS)}; "
        ways = "click[next] for more products, click[back] for the page before, click[buy] to buy and end the episode"
        return (
            f"{RULES}\nYour actions are: {lists}{ways}.\nYou have {self.max_turns} turns. "
            f"{self.action_format.instructions}"
        )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The words of the pages, each with the space before it, and the numbers of prices."""
        marks = (*(f" [{value}]" for value in (*COLOURS, *SIZES)), "want", "page", "item", " below", " of", " seen")
        return (*(f" {word}" for word in mini_words()), *marks, *(f" {n}" for n in range(100)))

    def split_size(self, split: str) -> int:
        """How many goals the split has."""
        return len(split_range(split, NUM_GOALS))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start on the search page of a shop; ``options`` as for WebShop."""
        episode = self.episode_seed(seed)
        self.number = chosen_goal(episode, options, split=self.split, count=NUM_GOALS, name="mini")
        self.shop = self._shop(self.number)
        self.shop.reset(options={"session": 0})
        return self.render(), {"success": False, "available_actions": self._available()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an answer; see the README for rewards and limits."""
        read = self._parse(action).actions
        meant = self._meaning(ACTIONS[read[0]]) if read and ACTIONS[read[0]] in self._available() else ""
        _, reward, terminated, truncated, info = self.shop.step(meant)
        penalty = 0.0 if info["action_is_valid"] else self.format_penalty
        # The shop's own actions are left out: this environment has others.
        kept = {name: value for name, value in info.items() if name[:2] in ("r_", "w_") or name == "title_score"}
        kept["reward_parts"] = {**info["reward_parts"], "format": penalty}
        for name in ("success", "action_is_valid", "action_is_effective"):
            kept[name] = info[name]
        return (
            self.render(),
            reward + penalty,
            terminated,
            truncated,
            {**kept, "format_penalty": penalty, "available_actions": self._available()},
        )

    def _meaning(self, action: str) -> str:
        """What an action that is available means to the shop on this page."""
        if action in ROWS:
            return f"click[{self.shop.page.products[ROWS.index(action)].asin.lower()}]"
        return WAYS.get(action, action)

    def _available(self) -> list[str]:
        page = self.shop.page
        if page.kind == "done":
            return []
        found = list(SEARCHES)
        if page.kind == "results":
            found += ROWS[: len(page.products)]
            found += ["click[next]"] if page.page_number * PAGE_SIZE < page.total else []
            found += ["click[back]"] if page.page_number > 1 else []
        elif page.product is not None:
            found += [f"click[{value}]" for values in page.product.options.values() for value in values]
            found += ["click[back]", "click[buy]"]
        return found

    def legal_answers(self) -> list[str]:
        """Answers that the page allows."""
        return [self.action_format.format([ACTIONS.index(action)]) for action in self._available()]

    def render(self) -> str:
        """The page as text: what is wanted, then what is shown."""
        if self.shop.page.instruction == "":
            return super().render()
        return f"{self._wanted()}\n{_shown(self.shop.page)}"

    def _wanted(self) -> str:
        goal = self.shop.goal
        assert isinstance(goal.options, Mapping)
        return f"want {goal.title} {' '.join(goal.options.values())} below {goal.price_upper:.0f}"

    def oracle(self) -> list[str] | None:
        """Answers that buy the goal's product from here; ``None`` when too few turns are left.

        It shops by what the pages show: what has the title and a price within the limit is opened in the order of the
        rows until it comes to the product that is offered as wanted. Only where this page is behind that product does
        it go back to it.
        """
        if self.shop.page.kind == "done":
            return None
        way = self._way()
        too_long = len(way) > self.max_turns - int(self.shop.snapshot()["turns"])
        return None if too_long else [self.action_format.format([ACTIONS.index(action)]) for action in way]

    def _way(self) -> list[str]:
        """Actions that buy the goal's product, and before that open what may be it."""
        page, goal, store = self.shop.page, self.shop.goal, self.shop.catalogue.store
        assert isinstance(goal.options, Mapping)
        wanted = store.find(goal.asin)
        assert wanted is not None
        kind = store[wanted].query
        if page.product is not None and page.product.asin == goal.asin:
            chosen = page.chosen
            return [*(f"click[{v}]" for name, v in goal.options.items() if chosen.get(name) != v), "click[buy]"]
        way: list[str] = []
        found = self.shop.catalogue.search(kind)
        target, number = found.index(wanted) // PAGE_SIZE + 1, 1
        if page.query == kind and page.kind in ("results", "item"):
            way += ["click[back]"] if page.kind == "item" else []
            number = page.page_number
        else:
            way.append(f"search[{kind}]")
        if target < number:
            way += ["click[back]"] * (number - target)
            number = target
        for place, doc in enumerate(found):
            on, row = place // PAGE_SIZE + 1, ROWS[place % PAGE_SIZE]
            if on < number or on > target:
                continue
            way += ["click[next]"] * (on - number)
            number = on
            if doc == wanted:
                break
            product = store[doc]
            fits = product.title == goal.title and store.price(doc) <= goal.price_upper
            if fits and product.asin not in page.seen:
                way += [row, "click[back]"]
        return [*way, row, *(f"click[{value}]" for value in goal.options.values()), "click[buy]"]

    def snapshot(self) -> Mapping[str, Any]:
        """That of the shop, with the number of its goal and this environment's generator."""
        return {**self.shop.snapshot(), "goal": self.number, "np_random": self.np_random.bit_generator.state}

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Continue from ``snapshot``; its ``np_random`` may be missing."""
        if not isinstance(snapshot, Mapping):
            raise ConfigError(f"a snapshot is a mapping, not {snapshot!r}")
        number = check_int("goal", snapshot.get("goal"), 0)
        if number >= NUM_GOALS:
            raise ConfigError(f"the snapshot is of goal {number}; there are {NUM_GOALS}")
        shop = self._shop(number)
        shop.restore({**{name: value for name, value in snapshot.items() if name != "np_random"}, "goal": 0})
        if "np_random" in snapshot:
            set_generator(self.np_random, snapshot["np_random"])
        self.number, self.shop = number, shop
        return self.render()


def _shown(page: Page) -> str:
    if page.kind == "search":
        return "page"
    if page.kind == "results":
        rows = [
            f"{n} {p.title} {p.pricing[0]:.0f}{' seen' if p.asin in page.seen else ''}"
            for n, p in enumerate(page.products, 1)
        ]
        pages = -(-page.total // PAGE_SIZE)
        return "\n".join([f"page {page.page_number} of {pages}", *rows])
    product = page.product
    assert product is not None
    lines = [
        " ".join(["", *(f"[{v}]" if page.chosen.get(name) == v else v for v in values)]).strip("\n")
        for name, values in product.options.items()
    ]
    if page.kind == "done":
        return f"bought {product.title}"
    return "\n".join([f"item {product.title} {product.pricing[0]:.0f}", *lines])
