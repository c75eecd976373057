"""Show an environment's card, the arguments it takes, and its instructions and first observation."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from roll_envs import env_registry as registry
from roll_envs.cli.common import add_kwargs, make_env, paint, print_json, seed_number
from roll_envs.env import EnvironmentCard, TextEnv
from roll_envs.errors import ConfigError, UnknownNameError
from roll_envs.settings import settings_model

SUMMARY = "the card of an environment, its arguments and an example"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``ID [--seed N] [--kwargs ...]``."""
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--seed", type=seed_number, default=0, help="seed of the example (default 0)")
    add_kwargs(parser)


def run(options: argparse.Namespace) -> int:
    """Print the card as text or JSON, with an example unless arguments are required that --kwargs does not give."""
    try:
        card = registry.card(options.id)
    except UnknownNameError:
        make_env(options.id, options.kwargs).close()  # where nobody knows the id, the error of that
        raise ConfigError(
            f"{options.id} has no card to show, since Gymnasium alone knows it; it can be played"
        ) from None
    model = settings_model(registry.environment_class(options.id))
    takes_any = model.model_config["extra"] == "allow"
    required = registry.settings_to_give(options.id)
    # The example is made with --kwargs; the card and the defaults are those of the id.
    example = _example(options) if options.kwargs or not required else None
    settings = {field.alias or name: field for name, field in model.model_fields.items()}
    defaults = {
        name: "(required)" if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in settings.items()
    } | dict(card.kwargs)
    if options.json:
        fields = {name: getattr(card, name) for name in card.__slots__}
        print_json({**fields, "accepted_kwargs": defaults, "any_kwargs": takes_any, "example": example})
        return 0
    print(f"{paint(card.id, 'bold')}\n{card.summary}")
    written = {name: "(required)" if name in required else repr(value) for name, value in defaults.items()}
    arguments = [f"{name} = {value}" for name, value in written.items()] + ["any"] * takes_any
    for name, texts in {**_entries(card), "arguments": arguments}.items():
        indent = "  " if name == "differences" else ""
        lines = [line for text in texts for line in textwrap.wrap(text, 96, subsequent_indent=indent)]
        for i, line in enumerate(lines):
            print(f"  {paint(f'{name if i == 0 else chr(32):13}', 'cyan')} {line}")
    if example is None:
        print(f"\nFor an example, give --kwargs {' '.join(f'{name}=...' for name in required)}")
        return 0
    if example["instructions"]:
        print(f"\n{paint('Instructions', 'bold')}\n{example['instructions']}")
    print(f"\n{paint(f'First observation of seed {options.seed}', 'bold')}\n{example['observation']}")
    return 0


def _example(options: argparse.Namespace) -> dict[str, Any]:
    env = make_env(options.id, options.kwargs)
    observation, _ = env.reset(seed=options.seed)
    instructions = env.instructions if isinstance(env, TextEnv) else ""
    env.close()
    return {"seed": options.seed, "instructions": instructions, "observation": observation}


def _entries(card: EnvironmentCard) -> dict[str, list[str]]:
    """The card's parts by their names, each as paragraphs."""
    low, high = card.reward_range
    return {
        "tests": [card.tests],
        "turns": [card.turns],
        "reward range": [f"{low:g} to {high:g}"],
        "rewards": [card.rewards],
        "success": [card.success],
        "splits": [card.splits],
        "versions": [f"{version}: {what}" for version, what in card.versions.items()],
        "citation": [card.citation],
        "differences": [f"- {each}" for each in card.differences],
    }
