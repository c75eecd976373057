"""WebShop as text: the cards of the registered variants. The environment itself is in ``envs.webshop.env``."""

from __future__ import annotations

from roll_envs.env import EnvironmentCard

__all__ = ["WEBSHOP", "WEBSHOP_MINI"]

REWARDS = (
    "purchase: r_type * (attributes met + options met + [price within the cap]) / (number of both + 1), paid once, "
    "when something is bought; its parts are in info. format: the argument format_penalty (0 by default) for an answer "
    "that is no possible action."
)
SUCCESS = "A product was bought with the full reward of 1.0, and nothing less."
CITATION = "WebShop (Yao et al. 2022, arXiv:2207.01206)."
SPLITS_TEXT = (
    "Goals are numbered in the original's order (shuffled with seed 233): test 0-499, eval 500-1499, train from 1500. "
    "reset(options={'split': name}) draws from one of them, reset(options={'session': i}) takes goal i."
)
DIFFERENCES = (
    "Prices and price caps are drawn from the argument seed; the original draws them from an unseeded generator, so "
    "that its goals differ at every load.",
    "Success means a reward of 1.0; some forks count any purchase.",
    "reset(seed=s) takes goal s (counted round) of the split; the original draws by a goal's weight.",
    "An answer is stripped of whitespace before it is read.",
    "A search for '<r>' gives the same products every time, and a search operator without an argument finds nothing; "
    "the original draws anew, and crashes.",
    "A search for '<c>' reads all words after it; the original reads the first only, and cannot list a department of "
    "two words.",
    "Product numbers in lower case, prices without a number and texts that are missing are read; the original crashes.",
    "A query that contains the name of a page ('search_results') does not confuse '< Prev'; the original tells pages "
    "apart by looking for these names in an address that contains the query.",
    "The turn limit (100) truncates; the original has none.",
)

WEBSHOP = EnvironmentCard(
    id="roll/WebShop-v0",
    entry_point="envs.webshop.env:WebShopEnv",
    drawing="envs.webshop.drawing:draw",
    summary="Find and buy the product that an instruction asks for in an online shop.",
    tests="Search, reading long pages, and acting over several pages towards one decision.",
    turns="100 turns of one search or click; an answer that is no possible action takes a turn.",
    reward_range=(0.0, 1.0),
    rewards=REWARDS,
    success=SUCCESS,
    splits=SPLITS_TEXT,
    versions={"v0": "First version."},
    citation=CITATION,
    differences=DIFFERENCES,
)

WEBSHOP_MINI = EnvironmentCard(
    id="roll/WebShopMini-v0",
    entry_point="envs.webshop.mini:WebShopMiniEnv",
    summary="The same shop on short pages with a fixed list of actions, for small policies.",
    tests="Comparing title, price and options with what is wanted, over several pages towards one decision.",
    turns="15 turns of one search or click; an answer that is no possible action takes a turn.",
    reward_range=(0.0, 1.0),
    rewards=REWARDS,
    success=SUCCESS,
    splits=(
        "Each goal has a shop of its own, and no listing occurs in two splits. Goals are numbered: test 0-499, eval "
        "500-1499, train from 1500. reset(options={'split': name}) draws from one of them, "
        "reset(options={'session': i}) takes goal i."
    ),
    versions={
        "v0": "First version. Until November 2026 all goals shared one catalogue of 160 products, which a player could "
        "know by heart: figures from before do not compare."
    },
    citation=CITATION,
)
