"""Measure a model on an environment: a local one, or one behind OpenAI's API. The same command goes on after a stop.

roll-envs eval roll/FrozenLake-v0 --model models/smollm2-135m --tasks 128
roll-envs eval reasoning_gym/chain_sum-v0 --model http://127.0.0.1:8000/v1 --name NAME --samples 8 --temperature 1
roll-envs eval roll/FrozenLake-v0 --model oracle
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_envs.cli.common import add_kwargs, parse_kwargs, print_json, seed_number, table
from roll_envs.errors import ConfigError
from trainer.command import add_overrides
from trainer.config import RunConfig
from trainer.config.load import load_config, parse_config
from trainer.config.yaml_text import dump_yaml

if TYPE_CHECKING:
    from trainer.run.measure import Measured

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "play an environment's held-out tasks with a model: success, intervals, pass@k, records"

PLAYERS = ("random", "oracle")
"""Who plays without a model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``ENV --model MODEL [--name NAME] [--tasks N] [--samples K] ... [key=value ...]``."""
    parser.add_argument("env", metavar="ENV", help="id of the environment")
    add_overrides(parser, "keys of a configuration, such as context.system_prompt=...")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        required=True,
        help="http(s)://.../v1, a folder in Hugging Face form, a run; random and oracle play without a model",
    )
    parser.add_argument("--name", metavar="NAME", help="the model's name at the URL")
    parser.add_argument("--tasks", type=int, default=128, metavar="N", help="held-out tasks (default 128)")
    parser.add_argument("--samples", type=int, default=1, metavar="K", help="episodes of each task (default 1)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default 0: greedy")
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="of an answer (default: 256, or as the run was trained)"
    )
    parser.add_argument("--concurrency", type=int, default=32, metavar="N", help="episodes at once (default 32)")
    parser.add_argument("--seed", type=seed_number, default=0, metavar="S", help="of the sampling (default 0)")
    parser.add_argument("--output", metavar="DIR", help="folder of the records (default: evals/ENV-MODEL-seedS)")
    add_kwargs(parser)


def run(options: argparse.Namespace) -> int:
    """Play what is not recorded yet and print the numbers."""
    for name in ("tasks", "samples", "max_new_tokens", "concurrency"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more, not {getattr(options, name)}")
    if options.samples > 1 and options.temperature == 0 and options.model != "random":
        raise ConfigError("--samples above 1 with --temperature 0 plays the same episode again; give a temperature")
    config = _configured(options)
    from trainer.run.measure import measure

    name = _slug(f"{options.env}-{options.name or options.model}-seed{options.seed}")
    folder = Path(options.output or Path("evals") / name)
    with contextlib.redirect_stdout(sys.stderr):  # for what environments print
        measured = measure(
            config,
            folder,
            player=options.model if options.model in PLAYERS else None,
            temperature=0.0 if options.temperature == 0 else None,
        )
    if options.json:
        print_json(asdict(measured))
    else:
        _print(measured)
    return 0


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")


def _configured(options: argparse.Namespace) -> RunConfig:
    remote = options.model.startswith(("http://", "https://"))
    if remote and not options.name:
        raise ConfigError(f"--name says which model of {options.model} to ask; it is missing")
    if options.name and not remote:
        raise ConfigError("--name is for a model behind a URL; a folder holds one")
    sampling = {"temperature": options.temperature or 1.0, "max_new_tokens": options.max_new_tokens or 256}
    base: dict[str, Any] = {
        "format": 1,
        "name": "eval-greedy" if options.temperature == 0 else "eval",
        "steps": 0,
        "seed": options.seed,
        "env": {"id": options.env, "kwargs": parse_kwargs(options.kwargs)},
        "sampling": sampling,
        "evaluation": {"tasks": options.tasks},
        "advantage": {"name": "reinforce"},  # nothing is learnt: one that takes groups of any size
        "rollout": {"group_size": options.samples, "max_running": options.concurrency, "max_failed_share": 1.0},
    }
    if remote:
        base["engine"] = {"name": "openai", "url": options.model, "model": options.name}
        return parse_config(dump_yaml(base), options.overrides, source="roll-envs eval")
    if options.model in PLAYERS:
        base |= {"name": f"eval-{options.model}", "engine": {"name": "scripted"}}
        return parse_config(dump_yaml(base), options.overrides, source="roll-envs eval")
    folder = Path(options.model)
    if (folder / "config.yaml").is_file():  # a run: the model sees what it was trained to see
        trained = load_config(folder / "config.yaml")
        if not (folder / "model").is_dir():
            raise ConfigError(
                f"{folder} has no model yet, since the run is not finished; roll-eval {folder} plays its last "
                f"checkpoint, and roll-train export {folder} DIR makes a folder of it to give here"
            )
        same = {name: getattr(trained, name).model_dump(mode="python") for name in ("context", "engine")}
        base |= {**same, "model": {"path": str(folder / "model")}}
        sampling["max_new_tokens"] = options.max_new_tokens or trained.sampling.max_new_tokens
        if trained.env is not None and trained.env.id == options.env and not options.kwargs:
            base["env"] = trained.env.model_dump(mode="python")
    else:
        base |= {"model": {"path": options.model}, "engine": {"max_tokens": 4096, "max_running": options.concurrency}}
    return parse_config(dump_yaml(base), options.overrides, source="roll-envs eval")


def _print(measured: Measured) -> None:
    found = measured.result
    rows = [
        ("success", f"{found.success:.3f}", f"95%: {found.interval_low:.3f} to {found.interval_high:.3f}"),
        *((f"pass@{k}", f"{value:.3f}", "") for k, value in measured.pass_at.items() if measured.samples > 1),
        ("return", f"{found.mean_return:.3f}", "mean"),
        ("turns", f"{found.turns:.2f}", f"mean; {found.valid_action_rate:.1%} of them valid"),
        (
            "episodes",
            str(found.tasks),
            f"in {found.seconds:.0f} s" + (f"; {found.failed} failed" if found.failed else ""),
        ),
    ]
    print(table(rows))
    print(f"records: {measured.folder} (roll-envs view {measured.folder})")
