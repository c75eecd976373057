"""The command ``roll-train``.

Ctrl-C while training says how to go on. Nothing of torch is loaded before it is needed: ``--help``, ``--dry-run`` and
configuration errors are quick.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from roll_envs.errors import ConfigError, RollError
from trainer.command import INTERRUPTED, OK, add_overrides, check_command, guarded, number

if TYPE_CHECKING:
    from trainer.config import RunConfig
    from trainer.run.folder import RunFolder
    from trainer.run.preflight import Ready
    from trainer.run.report import Report


def main(argv: Sequence[str] | None = None) -> int:
    """``roll-train CONFIG [key=value ...]``, or one of the commands of :data:`_COMMANDS`; returns the exit
    status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in _COMMANDS:
        parser, work = _COMMANDS[arguments[0]]
        options = parser().parse_intermixed_args(arguments[1:])
        return guarded("roll-train", lambda: work(options))
    return guarded("roll-train", lambda: _train_or_dry_run(arguments))


def _train_or_dry_run(arguments: Sequence[str]) -> int:
    check_command(arguments, _COMMANDS, "command or configuration file")
    options = _train_parser().parse_intermixed_args(arguments)
    return _dry_run(options) if options.dry_run else _train(options)


def _train_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-train",
        description="Train an agent as a YAML file says; `roll-train resume RUN` goes on with a stopped run, "
        "`roll-train explain CONFIG` shows what a file learns by, `roll-train setup vllm` installs an engine, "
        "`roll-train episodes RUN` shows recorded episodes, `roll-train replay RUN --step N` learns from them again, "
        "`roll-train export RUN DIR` writes a checkpoint's model for transformers and engines, `roll-train track "
        "RUN --to wandb` sends a run to a tracker, `roll-train plan CONFIG` says what would be where on how many GPUs.",
        epilog="example: roll-train configs/frozenlake_tiny.yaml seed=1 optimizer.lr=3e-4",
    )
    parser.add_argument("config", metavar="CONFIG", help="YAML file (docs/configuration.md lists the keys)")
    add_overrides(parser, "keys laid over the file, e.g. steps=20")
    parser.add_argument("--output", metavar="DIR", help="where the run's folder is made (the same as output=DIR)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration and the plan, and stop"
    )
    return parser


def _resume_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll-train resume", description="Go on with a run from its last checkpoint.")
    parser.add_argument("run", metavar="RUN", help="run folder, or one checkpoint in it")
    parser.add_argument(
        "--steps", type=number(int, 0), metavar="N", help="train to N steps in all (default: as configured)"
    )
    return parser


def _explain_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-train explain",
        description="Print the formulas and settings that a configuration learns by, and where each comes from.",
    )
    parser.add_argument("config", metavar="CONFIG", help="YAML file")
    add_overrides(parser)
    return parser


def _setup_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-train setup", description="Make the virtual environment of an engine, once; needs the network."
    )
    parser.add_argument("engine", choices=["vllm"], help="docs/engines.md says what each is for")
    parser.add_argument("--venv", metavar="DIR", help="where (default: .venv-vllm beside the trainer's)")
    return parser


def _replay_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-train replay",
        description="Learn a training step again from its recorded episodes and the newest checkpoint before it, and "
        "print its numbers beside the recorded ones; writes nothing.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    add_overrides(parser, "keys laid over the run's config.yaml")
    parser.add_argument("--step", type=number(int, 1), metavar="N", required=True, help="training step, from 1")
    return parser


def _export_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-train export",
        description="Write a checkpoint's model in Hugging Face form: safetensors, config, tokenizer; adapters merged.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder (its last checkpoint), or one checkpoint in it")
    parser.add_argument("folder", metavar="DIR", help="folder to be made")
    return parser


def _track_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-train track",
        description="Send the numbers and sample episodes of a run, also one that goes on, to an experiment tracker; "
        "again sends what is new.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--to", choices=["wandb", "swanlab", "mlflow", "trackio"], required=True)
    parser.add_argument("--project", metavar="NAME", help="the tracker's project or experiment (default: roll)")
    parser.add_argument("--offline", action="store_true", help="write to RUN/trackers/ and use no network")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    return parser


def _plan_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-train plan",
        description="Show who would sit where on so many GPUs, the memory that each needs, and about how long a step "
        "takes. Nothing is started; a run that cannot fit is refused.",
    )
    parser.add_argument("config", metavar="CONFIG", help="YAML file")
    add_overrides(parser)
    whole, positive, share = number(int, 1), number(float, 0, above=True), number(float, 0, above=True, most=1)
    many = number(int, 1, most=10_000)
    parser.add_argument("--nodes", type=many, default=1, metavar="N", help="machines (default: 1)")
    parser.add_argument("--gpus", type=number(int, 1, most=100), default=8, metavar="N", help="GPUs of each")
    parser.add_argument("--cpus", type=many, default=64, metavar="N", help="processors of each (default: 64)")
    parser.add_argument("--gpu-gib", type=positive, default=80.0, metavar="G", help="memory of a GPU (default: 80)")
    parser.add_argument("--node-gib", type=positive, default=512.0, metavar="G", help="of a machine (default: 512)")
    parser.add_argument(
        "--tflops", type=positive, default=989.0, metavar="F", help="peak of a GPU (default: an H100's)"
    )
    parser.add_argument("--gib-s", type=positive, default=3100.0, metavar="B", help="its memory's bandwidth")
    parser.add_argument("--mfu", type=share, default=0.35, metavar="S", help="share of the peak that is reached")
    parser.add_argument("--tokens", type=whole, metavar="T", help="of a step (default: half of the longest episodes)")
    return parser


def _episodes_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-train episodes", description="List the recorded episodes of a step, or print one of them in full."
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--step", type=number(int, 0), metavar="N", help="step (default: the last recorded one)")
    parser.add_argument("--evaluation", action="store_true", help="of the evaluation at that step, not of training")
    parser.add_argument("--failed", action="store_true", help="only episodes that failed")
    parser.add_argument("--index", type=number(int, 0), metavar="I", help="print episode I of the list, from 0")
    parser.add_argument("--json", action="store_true", help="print JSON lines with token ids and log-probabilities")
    return parser


def _set_up(options: argparse.Namespace) -> int:
    from trainer.engines.vllm import set_up

    print(set_up(options.venv))
    return OK


def _explain(options: argparse.Namespace) -> int:
    from trainer.config.load import load_resolved
    from trainer.run.explain import explain

    sys.stdout.write(explain(load_resolved(options.config, options.overrides)))
    return OK


def _dry_run(options: argparse.Namespace) -> int:
    from trainer.config.load import dump_config
    from trainer.run.report import Report

    config = _load(options)
    notes = _check_trainable(config)
    sys.stdout.write(dump_config(config))
    sys.stdout.flush()
    report = Report()
    report.print_plan(config)
    for note in notes:
        report.say(note)
    if _needs_preflight(config):
        from trainer.run.preflight import preflight

        _print_ready(report, preflight(config))
    report.say("Dry run: nothing was started or written.")
    return OK


def _needs_preflight(config: RunConfig) -> bool:
    """Whether a dry run has more to check than a small model in one process, for which torch is not worth loading."""
    from trainer.config.placement import PlacementConfig

    learner = config.learner
    elsewhere = config.cluster != "local" or config.placement != PlacementConfig() or bool(config.judges)
    package = learner.backend != "torch" or bool(getattr(learner, "lora_rank", 0))
    return config.model.path is not None or elsewhere or package or config.engine.name not in ("hf", "scripted")


def _train(options: argparse.Namespace) -> int:
    from trainer.run.folder import RunFolder
    from trainer.run.report import Report

    config = _load(options)
    notes = _check_trainable(config)
    from trainer.run.loop import train
    from trainer.run.preflight import preflight

    report, ready = Report(spare=True), preflight(config)
    _print_ready(report, ready)
    for note in notes:
        report.say(note)
    with RunFolder.create(ready.config) as folder:
        return _finish(folder, report, lambda: train(ready.config, folder, report))


def _print_ready(report: Report, ready: Ready) -> None:
    report.print_memory(ready.plan, ready.warnings)
    report.print_placement(ready.config, ready.placement)


def _resume(options: argparse.Namespace) -> int:
    from trainer.run.folder import RunFolder
    from trainer.run.report import Report

    report = Report(spare=True)
    # Locked before the machine is looked at, which the process that trains there may fill.
    with RunFolder.open(options.run) as folder, folder.locked(report.say):
        from trainer.run.loop import resume
        from trainer.run.preflight import preflight

        ready = preflight(folder.config)
        _print_ready(report, ready)
        path = Path(os.path.abspath(options.run))
        if path.parent.name == "checkpoints":
            return _finish(folder, report, lambda: resume(folder, report, options.steps, checkpoint=path))
        return _finish(folder, report, lambda: resume(folder, report, options.steps))


def _replay(options: argparse.Namespace) -> int:
    from trainer.run.replay import replay

    for step in replay(options.run, int(options.step), options.overrides):
        differing = step.differing
        print(f"step {step.step}: {len(step.metrics)} numbers, {len(differing)} unlike the recorded ones")
        for name in step.metrics if step.step == options.step else ():
            recorded = step.recorded.get(name, "not recorded")
            print(f"  {name:<40} {step.metrics[name]!s:<24} {recorded}{'  <-' if name in differing else ''}")
    return OK


def _export(options: argparse.Namespace) -> int:
    from trainer.run.export import export_model

    steps = export_model(options.run, options.folder)
    print(f"{options.folder}: the model after {steps} training steps")
    return OK


def _track(options: argparse.Namespace) -> int:
    from trainer.run.trackers import send

    def say(line: str, out: TextIO = sys.stdout) -> None:
        print(line, file=out, flush=True)

    with contextlib.redirect_stdout(sys.stderr):  # for what trackers print
        send(options.run, options.to, project=options.project, offline=options.offline, follow=options.follow, say=say)
    return OK


def _plan(options: argparse.Namespace) -> int:
    from trainer.config.load import load_config
    from trainer.run.plan import Hardware, plan_cluster, plan_lines
    from trainer.run.preflight import model_config
    from trainer.run.report import Report

    config, model = model_config(load_config(options.config, options.overrides))
    rollout = config.rollout
    episodes = rollout.groups_per_step * rollout.group_size
    tokens = int(options.tokens or episodes * config.engine.max_tokens // 2)
    hardware = Hardware(
        nodes=int(options.nodes),
        gpus=int(options.gpus),
        cpus=int(options.cpus),
        gpu_gib=options.gpu_gib,
        node_gib=options.node_gib,
        tflops=options.tflops,
        gpu_gib_s=options.gib_s,
        mfu=options.mfu,
    )
    plan, report = plan_cluster(config, model, hardware, tokens=tokens), Report()
    per_node = hardware.gpus if hardware.nodes > 1 else None
    report.print_placement(config, plan.placement, gpus_of_node=per_node, always=True)
    report.say()
    for line in plan_lines(plan, hardware, tokens=tokens):
        report.say(line)
    return OK


def _episodes(options: argparse.Namespace) -> int:
    from trainer.rollout.records import episode_headline, episode_record, episode_text
    from trainer.rollout.stream import RecordReader
    from trainer.run.folder import RunFolder

    with RunFolder.open(options.run) as folder:
        reader = RecordReader(folder.stream_path)
    record = reader.find("evaluation" if options.evaluation else "train", options.step)
    if reader.cut:
        print(f"{reader.path}: the last {reader.cut} bytes are no whole record, and left out", file=sys.stderr)
    if options.index is not None and options.index >= len(record.episodes):
        raise RollError(f"--index {options.index}: the step has the episodes 0 to {len(record.episodes) - 1}")
    failed = [place for place, episode in enumerate(record.episodes) if episode.outcome.kind == "failed"]
    if options.failed and options.index is not None and options.index not in failed:
        raise RollError(f"--index {options.index} --failed: that episode did not fail; those that did: {failed}")
    if not (options.json or options.index is not None):
        shown = f", {len(failed)} of them failed" if options.failed else ""
        print(f"{record.phase} step {record.step}: {len(record.episodes)} episodes{shown}")
    for place, episode in enumerate(record.episodes):
        if options.index in (None, place) and (place in failed or not options.failed):
            if options.json:
                print(json.dumps(episode_record(episode)))
            else:
                headline = f"{place:5d}  {episode_headline(episode)}"
                print(headline if options.index is None else episode_text(episode))
    return OK


_COMMANDS: dict[str, tuple[Callable[[], argparse.ArgumentParser], Callable[[argparse.Namespace], int]]] = {
    "resume": (_resume_parser, _resume),
    "explain": (_explain_parser, _explain),
    "setup": (_setup_parser, _set_up),
    "replay": (_replay_parser, _replay),
    "episodes": (_episodes_parser, _episodes),
    "export": (_export_parser, _export),
    "plan": (_plan_parser, _plan),
    "track": (_track_parser, _track),
}


def _load(options: argparse.Namespace) -> RunConfig:
    from trainer.config.load import load_config

    output = [f"output={json.dumps(options.output)}"] if options.output is not None else []
    return load_config(options.config, [*options.overrides, *output])


def _check_trainable(config: RunConfig) -> list[str]:
    """Fail before a folder is made where an environment or context cannot be had, the engine has no model of ours, or
    nobody knows what a warm start is to show; what else a user should know of the warm start."""
    from roll_envs import env_registry as registry
    from roll_envs.env import TextEnv
    from roll_envs.managers import load_context
    from trainer.engines import find_engine, not_trained_here

    if find_engine(config.engine.name).prompts(config) is not None:
        raise not_trained_here(config.engine.name)
    load_context(config.context.kind, turns=config.context.turns, function=config.context.function)
    warm, notes, unsolved = config.warm_start, list[str](), list[str]()
    for entry in config.environments:
        env = registry.make_within(config.rollout.longest_make_s, entry.id, entry.kwargs)
        registry.discard(env)
        why = "" if isinstance(env, TextEnv) else "is no roll_envs.TextEnv"
        if isinstance(env, TextEnv) and type(env).oracle is TextEnv.oracle:
            unsolved.append(entry.id)
            shown = "random actions alone" if warm.learn_random else "nothing of it that is learnt"
            notes.append(f"{entry.id} has no oracle: the warm start shows {shown}.")
            if len(unsolved) == len(config.environments) and not warm.learn_random:
                why = "has no oracle, and random actions are not learnt"
        if why and warm.steps and not warm.teacher:
            raise ConfigError(
                f"warm_start.steps is {warm.steps}, but {entry.id} {why}, so that there are no answers to show; set it "
                "to 0, or give a model as warm_start.teacher"
            )
    return notes if warm.steps and not warm.teacher else []


def _finish(folder: RunFolder, report: Report, work: Callable[[], object]) -> int:
    """Do the work; whatever ends it, say where the run is and how to go on."""
    from trainer.run.checkpoint import list_checkpoints, list_set_aside

    try:
        with contextlib.redirect_stdout(sys.stderr):  # for what environments print; the report has its own
            work()
    except KeyboardInterrupt:
        if list_checkpoints(folder.checkpoints_path):
            report.print_closing(str(folder.path), finished=False, set_aside=list_set_aside(folder.checkpoints_path))
        else:
            report.say(f"Stopped before the first checkpoint; {folder.path} cannot be resumed, start the run anew.")
        return INTERRUPTED
    except RollError as error:
        said = [str(error), *getattr(error, "__notes__", ()), f"run folder: {folder.path}"]
        raise RollError("\n".join(said)) from error
    report.print_closing(str(folder.path), set_aside=list_set_aside(folder.checkpoints_path))
    return OK


if __name__ == "__main__":
    raise SystemExit(main())
