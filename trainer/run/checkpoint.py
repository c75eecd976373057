"""Checkpoints: everything a run needs to go on exactly where it was, checked on the way back in.

A checkpoint is a folder ``step-000120`` with ``model.safetensors``, ``training.pt`` (optimiser, random states),
``progress.json`` and ``manifest.json`` (format, sizes, SHA-256 of all and of itself). It is written beside its place
and renamed, so that a name that exists is whole; nothing is ever overwritten. Loading runs no code of the file
(safetensors, ``weights_only``). Weights are written and read one tensor at a time: no second copy of the model exists
while saving.

Where the learner is in several ranks (:mod:`trainer.learner.snapshot`), each writes a file with its share of all
networks and optimisers, ``rank-00003.safetensors``; ``training.pt`` then has the optimisers' states without numbers.
Both layouts are read by any number of ranks of any backend.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roll_envs.errors import CheckpointError
from trainer.learner.snapshot import SavedFiles
from trainer.model.forward import load_weights
from trainer.model.network import LanguageModel, WeightSource, weight_file, write_weights
from trainer.run.folder import clean_unfinished, disk_errors, replacing

FORMAT, SHARED_FORMAT = 2, 3
"""With a file for each network, and with one for each rank."""
_NAME = re.compile(r"step-\d{6,}(-r\d+)?")
_ASIDE = "set-aside-"
_FILES = {
    FORMAT: ("model.safetensors", "training.pt", "progress.json"),
    SHARED_FORMAT: ("training.pt", "progress.json"),
}
_PACKAGES = ("torch", "transformers", "gymnasium", "roll-envs", "numpy")
_IN_TRAINING, _IN_PROGRESS = ("optimizer", "random"), ("step", "version", "cursor", "success", "progress")
"""The fields of a :class:`CheckpointState` that ``training.pt`` and ``progress.json`` hold."""


class _DamagedError(CheckpointError):
    """A file of the checkpoint is missing, or is not what was written."""


def capture_random() -> dict[str, Any]:
    """The states of the global generators of Python, numpy and torch: plain values and tensors, so that they load
    without running code."""
    # The legacy form has one array, which becomes a list: no code is needed to load it.
    legacy: Any = np.random.get_state()
    kind, keys, *rest = legacy
    return {
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointState:
    """Everything saved. ``model`` gives the policy's weights by parameter name, from disk when it was loaded."""

    step: int
    version: int
    """Weight version of the engine."""
    model: WeightSource
    optimizer: Mapping[str, Any]
    """Tensors and plain values, as ``Optimizer.state_dict()`` gives them."""
    cursor: int
    """The next task to draw."""
    random: Mapping[str, Any] = field(default_factory=capture_random)
    """The states of the global generators; those of this moment."""
    success: float | None = None
    """Held-out success of these weights; None where it was not measured."""
    others: Mapping[str, WeightSource] = field(default_factory=dict)
    """Further networks by name (letters only), such as ``critic`` and ``reference``."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else is JSON: the phase, results so far, seconds used."""
    files: SavedFiles | None = None
    """Where it was loaded from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The files that ranks write for a checkpoint: all networks, and the numbers of all optimisers' states."""

    folder: Path
    """Beside the checkpoints."""
    wait: Callable[[], dict[str, dict[str, Any]]]
    """Gives size and SHA-256 of each file in ``folder``, when all are whole. Raises OSError or :class:`RollError`."""


def save_checkpoint(
    folder: str | os.PathLike[str],
    state: CheckpointState,
    *,
    keep: int = sys.maxsize,
    keep_best: int = 0,
    shares: Shares | None = None,
) -> Path:
    """Write ``state`` as a new checkpoint in ``folder`` and return its path; then remove all but the newest one of
    the last ``keep`` steps and the ``keep_best`` with the highest ``success`` (the newer of equal ones).

    With ``shares``, their files have the numbers, and of ``state`` only the names of networks and the form of the
    optimisers' states are used.

    Raises RollError when the disk is full or cannot be written; every earlier checkpoint is then still there.
    """
    parent = Path(folder)
    if shares is None:
        prepare(parent)
    final = _free(parent / f"step-{state.step:06d}")
    with replacing(final, "every earlier checkpoint is still there") as temporary:
        temporary.mkdir()
        networks = {"model": state.model, **state.others}
        written = {} if shares is None else shares.wait()
        for name in written:
            assert shares is not None
            (shares.folder / name).rename(temporary / name)
        for name, source in networks.items() if shares is None else ():
            with (temporary / f"{name}.safetensors").open("wb") as file:
                write_weights(file, source)
        with (temporary / "training.pt").open("wb") as file:
            torch.save({name: getattr(state, name) for name in _IN_TRAINING}, file)
        # What could not be loaded without running code must not be saved: found now, not at the resume.
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(temporary / "training.pt")
        if unsafe:
            raise TypeError(f"the optimiser's state has {', '.join(unsafe)}; tensors and plain values only are saved")
        _write_json(temporary / "progress.json", {name: getattr(state, name) for name in _IN_PROGRESS})
        files = {**written, **{p.name: _measured(p) for p in temporary.iterdir() if p.name not in written}}
        manifest = {"format": SHARED_FORMAT if written else FORMAT, "files": files, "versions": versions()}
        manifest["networks"] = list(networks)
        _write_json(temporary / "manifest.json", {**manifest, "sha256": _digest(manifest)})
    newest = {_order(path)[0]: path for path in list_checkpoints(parent)}  # the last one of each step
    # The new one is kept even where later steps are there: a run that went on from an older checkpoint.
    kept = {final, *list(newest.values())[-keep:], *best_checkpoints(parent)[:keep_best]}
    for old in set(list_checkpoints(parent)) - kept:
        shutil.rmtree(old, ignore_errors=True)
    return final


def prepare(folder: Path) -> None:
    """Make the folder of checkpoints, and remove what a killed process left unfinished in it."""
    with disk_errors(folder, "every earlier checkpoint is still there"):
        folder.mkdir(parents=True, exist_ok=True)
    clean_unfinished(folder)


def load_checkpoint(path: str | os.PathLike[str]) -> CheckpointState:
    """Load the checkpoint at ``path``, or the newest one when ``path`` is a run folder or its ``checkpoints`` folder.

    Raises CheckpointError that names the file, the reason and the newest earlier checkpoint that is whole; what is
    asked for is read, or nothing. :func:`load_newest` falls back.
    """
    folder = _find(Path(path))
    try:
        return _load(folder)
    except CheckpointError as error:
        good = latest_good(folder.parent, before=folder)
        # Of no command: resume, export, replay and roll-eval all load by this.
        advice = "there is no earlier good one" if good is None else f"the newest good one before it is {good}"
        raise CheckpointError(f"{error}; {advice}") from error


def load_newest(folder: str | os.PathLike[str]) -> tuple[CheckpointState, Mapping[Path, str]]:
    """Load the newest checkpoint of a run folder that is not damaged; and what is wrong with each newer one.

    Raises CheckpointError where all are damaged (it names a whole one that was set aside, where there is one), there is
    none, or one is whole and cannot be read all the same (it is of another release, say).
    """
    damaged: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            return _load(path), damaged
        except _DamagedError as error:
            damaged[path] = str(error)
    if damaged:
        aside = next((path for path in reversed(list_set_aside(folder)) if _whole(path)), None)
        advice = "start the run anew"
        if aside is not None:
            advice = f"one that was set aside is: roll-train resume {shlex.quote(str(aside))}"
        raise CheckpointError("\n".join([*damaged.values(), f"no checkpoint of {folder} is whole; {advice}"]))
    return load_checkpoint(folder), {}  # which says that there is none


def _load(folder: Path) -> CheckpointState:
    names, networks = _checked_files(folder)
    tensors = [name for name in names if name.endswith(".safetensors")]
    for name in tensors:
        with _reading(folder, name) as file:
            weight_file(file)  # which checks its header
    # Older ones do not list their networks, which have files of their own.
    own = networks is None or "model.safetensors" in tensors
    files = SavedFiles(folder.resolve(), () if own else tuple(sorted(tensors)))
    weights: dict[str, WeightSource] = {
        name: partial(files.weights, name) for name in networks or [Path(name).stem for name in tensors]
    }
    with _reading(folder, "training.pt"):
        saved = files.training()
        training = {name: saved[name] for name in _IN_TRAINING}
    with _reading(folder, "progress.json") as file:
        progress = json.loads(file.read_bytes())
    return CheckpointState(model=weights.pop("model"), others=weights, files=files, **training, **progress)


def vocabulary_of(tokenizer: Any) -> str:
    """A digest of what each id of ``tokenizer`` means, for ``progress``."""
    return _digest(tokenizer.get_vocab())


def load_policy(state: CheckpointState, model: LanguageModel) -> None:
    """Give ``model`` the weights of ``state``.

    Raises CheckpointError where they do not fit, or ids of the model's tokenizer mean something else than they did.
    """
    if state.progress.get("vocabulary") not in (None, vocabulary_of(model.tokenizer)):  # older ones do not say it
        raise CheckpointError(
            "the ids of the tokenizer mean something else than when the checkpoint was saved (one that is built here "
            "follows from the words of the environments)"
        )
    load_weights(model.network, state.model())


def latest_good(folder: str | os.PathLike[str], *, before: Path | None = None) -> Path | None:
    """The newest checkpoint whose files are all whole, of a run folder or a ``checkpoints`` folder; None if none is.

    ``before``: only those older than this checkpoint.
    """
    for candidate in reversed(list_checkpoints(folder)):
        if (before is None or _order(candidate) < _order(before)) and _whole(candidate):
            return candidate
    return None


def _whole(checkpoint: Path) -> bool:
    try:
        _checked_files(checkpoint)
    except CheckpointError:
        return False
    return True


def latest_before(folder: str | os.PathLike[str], step: int) -> Path:
    """The newest whole checkpoint that had done fewer than ``step`` training steps; where none of them is whole, the
    newest, of which loading says what is wrong. Raises CheckpointError for none."""
    steps: dict[Path, int] = {}
    for path in list_checkpoints(folder):
        with suppress(OSError, ValueError, KeyError, TypeError):  # damaged; another one does as well
            steps[path] = int(json.loads((path / "progress.json").read_bytes())["progress"]["steps"])
    before = [path for path, done in steps.items() if done < step]
    if not before:
        there = ", ".join(str(done) for done in sorted(set(steps.values()))) or "none"
        raise CheckpointError(
            f"no checkpoint of {folder} is from before training step {step} (there are those of step {there}); "
            "checkpoint.keep says how many a run keeps"
        )
    return next((path for path in reversed(before) if _whole(path)), before[-1])


def best_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """Checkpoints whose success was measured, best first, the newer of equal ones first."""
    scored: dict[Path, float] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            scored[path] = float(json.loads((path / "progress.json").read_bytes())["success"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not measured, or damaged; loading it tells
    return sorted(scored, key=lambda path: -scored[path])


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """Finished checkpoints of a run folder or its ``checkpoints`` folder, oldest first; unfinished and unknown folders
    are not listed."""
    parent = _checkpoints_folder(Path(folder))
    found = parent.iterdir() if parent.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name) and path.is_dir()), key=_order)


def set_aside_after(checkpoint: Path) -> list[Path]:
    """Rename every checkpoint newer than ``checkpoint`` to ``set-aside-...``: when a run goes on from an older one."""
    newer = [path for path in list_checkpoints(checkpoint.parent) if _order(path) > _order(checkpoint)]
    return [path.rename(_free(path.with_name(f"{_ASIDE}{path.name}"))) for path in newer]


def list_set_aside(folder: str | os.PathLike[str]) -> list[Path]:
    """What :func:`set_aside_after` has renamed in a run folder or its ``checkpoints`` folder, oldest first; nothing
    reads or removes them by itself."""
    return sorted((path for path in _checkpoints_folder(Path(folder)).glob(f"{_ASIDE}*") if path.is_dir()), key=_order)


def restore_random(states: Mapping[str, Any]) -> None:
    """Put the states back."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def versions() -> dict[str, str]:
    """Versions of Python and the packages that decide a result; a package that is missing is ``not installed``."""
    return {"python": platform.python_version(), **{package: _version(package) for package in _PACKAGES}}


@cache
def _version(package: str) -> str:
    """Read once: a checkpoint of a small model takes less time than the metadata of these packages."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _checked_files(folder: Path) -> tuple[list[str], list[str] | None]:
    """The names of all files, each checked against the manifest; and of the networks in them, where it lists them.

    Raises :class:`_DamagedError`, and CheckpointError for another format.
    """
    with _reading(folder, "manifest.json", _DamagedError) as path:
        manifest = json.loads(path.read_bytes())
        own = manifest.pop("sha256", None)  # older ones have none
        changed = own not in (None, _digest(manifest))
        found, saver = manifest["format"], manifest.get("versions", {}).get("roll-envs", "unknown")
        # Another format may list its files in another way; that it is another one is said below.
        listed = manifest["files"].items() if found in _FILES else ()
        files = {name: {"size": entry["size"], "sha256": entry["sha256"]} for name, entry in listed}
    if changed:
        raise _DamagedError(f"checkpoint {folder}: manifest.json is corrupt (its SHA-256 is not the one written)")
    if found not in _FILES:
        raise CheckpointError(
            f"checkpoint {folder}: its format is {found!r}, this release reads {' and '.join(map(str, _FILES))}; "
            f"load it with the release that saved it (roll-envs {saver})"
        )
    # Those that every checkpoint has come first; critic and reference are listed by some.
    for name in dict.fromkeys((*_FILES[found], *files)):
        if name not in files:
            raise _DamagedError(f"checkpoint {folder}: manifest.json does not list {name}")
        with _reading(folder, name, _DamagedError) as path:
            measured, written = _measured(path), files[name]
        if measured != written:
            how = "is corrupt (its SHA-256 is not the one written)"
            if measured["size"] != written["size"]:
                how = f"has {measured['size']} bytes where {written['size']} were written"
            doubt = "" if own else "; or manifest.json is corrupt, which lists that and has no checksum of its own"
            raise _DamagedError(f"checkpoint {folder}: {name} {how}{doubt}")
    return list(files), manifest.get("networks")


@contextmanager
def _reading(folder: Path, name: str, raised: type[CheckpointError] = CheckpointError) -> Iterator[Path]:
    """A file of a checkpoint; ``raised`` where it is missing, cannot be read, or is not what was written."""
    try:
        yield folder / name
    except FileNotFoundError:
        raise raised(f"checkpoint {folder}: {name} is missing, so it is not whole") from None
    except Exception as error:  # libraries raise many kinds of errors for a file that they did not write
        kind = CheckpointError if isinstance(error, PermissionError) else raised  # which is no damage
        raise kind(f"checkpoint {folder}: {name} cannot be read ({type(error).__name__}: {error})") from error


def _measured(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": file.tell()}


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _find(path: Path) -> Path:
    if not path.exists():
        there = ", ".join(other.name for other in list_checkpoints(path.parent))
        hint = f"there are {there}" if there else "check the path"
        raise CheckpointError(f"no checkpoint or run folder {str(path)!r}; {hint}")
    if not path.is_dir():
        raise CheckpointError(f"{str(path)!r} is a file; give a checkpoint folder or a run folder")
    # One that was set aside has another name; one that lost its manifest has the name only, and loading tells.
    if _NAME.fullmatch(path.name) or (path / "manifest.json").exists():
        return path
    found = list_checkpoints(path)
    if not found:
        raise CheckpointError(
            f"no checkpoint in {_checkpoints_folder(path)}; the run stopped before its first one, start it anew"
        )
    return found[-1]


def _checkpoints_folder(path: Path) -> Path:
    return path / "checkpoints" if (path / "checkpoints").is_dir() else path


def _free(path: Path) -> Path:
    """``path``, or where it is taken ``path-r2``, ``path-r3`` and so on."""
    found, count = path, 1
    while found.exists():
        count += 1
        found = path.with_name(f"{path.name}-r{count}")
    return found


def _order(path: Path) -> list[int]:
    """Step and count: ``step-000120-r2`` comes after ``step-000120``, [120, 2] after [120]."""
    return [int(number) for number in re.findall(r"\d+", path.name)]
