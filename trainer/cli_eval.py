"""The command ``roll-eval``: play held-out tasks, or judge recorded answers again."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_envs.errors import RollError
from trainer.command import OK, add_overrides, check_command, guarded, number

if TYPE_CHECKING:
    from trainer.run.evaluate import PhaseResult

_SHOWN = 10
"""Verdicts that changed and are printed."""


def main(argv: Sequence[str] | None = None) -> int:
    """``roll-eval RUN_OR_CHECKPOINT``, ``roll-eval CONFIG [key=value ...]`` or ``roll-eval rescore RUN``; returns the
    exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["rescore"]:
        options = _rescore_parser().parse_args(arguments[1:])
        return guarded("roll-eval", lambda: _rescore(options))
    return guarded("roll-eval", lambda: _evaluate(arguments))


def _eval_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-eval",
        description="Play held-out tasks with a trained agent, or with the engine of a YAML file as it is.",
        epilog="`roll-eval rescore RUN --verifier NAME` judges recorded answers again. "
        "example: roll-eval configs/frozenlake_tiny.yaml engine.name=openai engine.url=http://127.0.0.1:8000/v1 "
        "engine.model=NAME sampling.max_new_tokens=64",
    )
    parser.add_argument(
        "path", metavar="RUN_OR_CONFIG", help="run folder (its last checkpoint), a checkpoint, or a YAML file"
    )
    add_overrides(parser, "keys laid over the YAML file")
    parser.add_argument(
        "--tasks",
        type=number(int, 1),
        metavar="N",
        help="held-out tasks, of each environment of a mix (default: as configured)",
    )
    parser.add_argument("--seed", type=number(int, 0), metavar="S", help="seed of the sampling (default: the run's)")
    parser.add_argument("--env", metavar="ID", help="another environment (default: the run's)")
    parser.add_argument(
        "--temperature", type=number(float, 0), metavar="T", help="0 is greedy (default: as in training)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


def _rescore_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-eval rescore",
        description="Judge the recorded answers of a run on a data set (with or without tools) by another verifier.",
        epilog="""example: roll-eval rescore runs/NAME --verifier regex --verifier-args '{"pattern": "[0-9]+"}'""",
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--verifier", metavar="NAME", required=True, help="`roll-envs parts` lists them")
    parser.add_argument("--verifier-args", metavar="JSON", default="{}", help="its settings, as a JSON object")
    parser.add_argument("--step", type=number(int, 0), metavar="N", help="of this step only")
    return parser


def _evaluate(arguments: Sequence[str]) -> int:
    check_command(arguments, ["rescore"], "command, run or configuration file")
    options = _eval_parser().parse_intermixed_args(arguments)
    from trainer.run.report import Report

    chosen = {name: getattr(options, name) for name in ("tasks", "seed", "temperature")} | {"env_id": options.env}
    with contextlib.redirect_stdout(sys.stderr):  # for what environments print
        result = _evaluated(options, chosen)
    if options.json:
        print(json.dumps(asdict(result)))
    else:
        Report().print_evaluation_table([result])
    return OK


def _evaluated(options: argparse.Namespace, chosen: dict[str, Any]) -> PhaseResult:
    if Path(options.path).is_file() or options.path.endswith((".yaml", ".yml")):
        from trainer.config.load import load_config

        config = load_config(options.path, options.overrides)
        from trainer.run.evaluate import evaluate_config

        return evaluate_config(config, **chosen)
    if options.overrides:
        raise RollError(
            f"{options.overrides[0]!r}: keys are laid over a YAML file, and {options.path!r} is none; a run is "
            "evaluated as it was trained"
        )
    from trainer.run.folder import RunFolder

    RunFolder.open(options.path)  # what is no run is told before torch is loaded
    from trainer.run.evaluate import evaluate_run

    return evaluate_run(options.path, **chosen)


def _rescore(options: argparse.Namespace) -> int:
    from roll_envs.verifiers import Score
    from trainer.run.replay import rescore

    try:
        settings = dict(json.loads(options.verifier_args))
    except (ValueError, TypeError):
        raise RollError(f"--verifier-args {options.verifier_args!r} is no JSON object, such as {{}}") from None
    found = list(rescore(options.run, {**settings, "name": options.verifier}, options.step))
    scored = [(each, each.verdict) for each in found if isinstance(each.verdict, Score)]
    if not scored:
        of_step = "" if options.step is None else f" of step {options.step}"
        raise RollError(
            f"{options.run} has no recorded answers{of_step} of a data set that {options.verifier!r} could judge"
        )
    changed = [(each, verdict) for each, verdict in scored if each.changed]
    before = sum(each.before for each, _ in scored) / len(scored)
    after = sum(verdict.value for _, verdict in scored) / len(scored)
    print(f"{len(scored)} answers judged again, {len(found) - len(scored)} could not be")
    print(f"mean score {before:.4f} recorded, {after:.4f} by {options.verifier}")
    print(f"{len(changed)} verdicts changed ({len(changed) / len(scored):.2%})")
    for each, verdict in changed[:_SHOWN]:
        place = f"{each.phase} step {each.step}, row {each.row}"
        print(f"  {place}: {each.before:g} -> {verdict.value:g} for {each.answer[:200]!r} {verdict.detail}".rstrip())
    return OK
