"""Checkpoints: everything a run needs to go on exactly where it was, checked on the way back in.

A checkpoint is a folder ``step-000120`` with ``model.safetensors``, ``optimizer.pt``, ``random.pt``, ``progress.json``
and ``manifest.json`` (format, sizes, SHA-256). It is written beside its place and renamed, so that a name that exists
is whole; nothing is ever overwritten. Loading runs no code of the file (safetensors, ``weights_only``). Weights are
written and read one tensor at a time: no second copy of the model exists while saving.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from roll_envs.errors import CheckpointError
from trainer.model.network import WeightSource, weight_file, write_weights
from trainer.run.folder import SyncedFile, disk_errors, sync_folder
from trainer.run.results import versions

__all__ = [
    "CheckpointState",
    "RandomStates",
    "best_checkpoints",
    "capture_random_states",
    "clean_unfinished",
    "latest_good",
    "list_checkpoints",
    "load_checkpoint",
    "restore_random_states",
    "save_checkpoint",
    "set_aside_after",
]

FORMAT = 1
_NAME = re.compile(r"^step-(\d{6,})(?:-r(\d+))?$")
_TEMPORARY = ".unfinished-"
_FILES = ("model.safetensors", "optimizer.pt", "random.pt", "progress.json")
_PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor)
_CHUNK = 2**20
"""Bytes of a file that are read and hashed at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomStates:
    """States of the global generators of Python, numpy and torch."""

    python_state: Any
    numpy_state: Any
    torch_state: torch.Tensor
    cuda_states: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointState:
    """Everything saved. ``model`` gives the policy's weights by parameter name, from disk when it was loaded."""

    step: int
    version: int
    """Weight version of the engine."""
    model: WeightSource
    optimizer: Mapping[str, Any]
    """Tensors and plain values, as ``Optimizer.state_dict()`` gives them."""
    random: RandomStates
    cursor: int
    """The next task to draw."""
    others: Mapping[str, WeightSource] = field(default_factory=dict)
    """Further networks by name (letters only), such as ``critic`` and ``reference``."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else is JSON: the phase, results so far, seconds used."""


Score = Callable[[Mapping[str, Any]], float | None]
"""From a checkpoint's ``progress`` to how good it is; None where that was not measured."""


def save_checkpoint(
    folder: str | os.PathLike[str],
    state: CheckpointState,
    *,
    keep: int | None = None,
    keep_best: int = 0,
    score: Score | None = None,
) -> Path:
    """Write ``state`` as a new checkpoint in ``folder`` and return its path; then remove all but the newest ``keep``
    and the ``keep_best`` with the highest ``score`` (the newer of equal ones).

    Raises RollError when the disk is full or cannot be written; every earlier checkpoint is then still there.
    """
    parent = Path(folder)
    progress = _json(
        {"step": state.step, "version": state.version, "cursor": state.cursor, "progress": dict(state.progress)}
    )
    random_states = {name: getattr(state.random, name) for name in RandomStates.__dataclass_fields__}
    for name, value in (("optimizer", state.optimizer), ("random", random_states)):
        _check_plain(value, name)
    writers: dict[str, Callable[[SyncedFile], object]] = {
        f"{name}.safetensors": partial(write_weights, source=source)
        for name, source in {"model": state.model, **state.others}.items()
    }
    writers["optimizer.pt"] = partial(torch.save, state.optimizer)
    writers["random.pt"] = partial(torch.save, random_states)
    writers["progress.json"] = lambda file: file.write(progress)
    with disk_errors(parent, "every earlier checkpoint is still there"):
        parent.mkdir(parents=True, exist_ok=True)
        clean_unfinished(parent)
        temporary = parent / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
        temporary.mkdir()
        try:
            entries = {}
            for name, write in writers.items():
                with SyncedFile(temporary / name) as file:
                    write(file)
                entries[name] = {"size": file.size, "sha256": file.sha256}
            with SyncedFile(temporary / "manifest.json") as file:
                file.write(_json({"format": FORMAT, "step": state.step, "files": entries, "versions": versions()}))
            sync_folder(temporary)
            final = _free_name(parent, state.step)
            os.rename(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(parent)
    if keep is not None:
        best = best_checkpoints(parent, score)[:keep_best] if score is not None else []
        for old in list_checkpoints(parent)[: -max(1, keep)]:
            if old != final and old not in best:
                shutil.rmtree(old, ignore_errors=True)
    return final


def load_checkpoint(path: str | os.PathLike[str]) -> CheckpointState:
    """Load the checkpoint at ``path``, or the newest one when ``path`` is a run folder or its ``checkpoints`` folder.

    Raises CheckpointError that names the file, the reason and the newest earlier checkpoint that is whole. It never
    falls back by itself: going on from an older state is the user's choice.
    """
    folder = _find(Path(path))
    try:
        return _load(folder)
    except CheckpointError as error:
        good = latest_good(folder.parent, before=folder)
        advice = (
            f"the newest good one before it: roll-train resume {shlex.quote(str(good))}"
            if good
            else "there is no earlier good one"
        )
        raise CheckpointError(f"{error}; {advice}") from error


def latest_good(folder: str | os.PathLike[str], *, before: Path | None = None) -> Path | None:
    """The newest checkpoint whose files are all whole, of a run folder or a ``checkpoints`` folder; None if none is.

    ``before``: only those older than this checkpoint.
    """
    parent = _checkpoints_folder(Path(folder))
    for candidate in reversed(list_checkpoints(parent)):
        if before is not None and _order(candidate) >= _order(before):
            continue
        try:
            _check_files(candidate)
        except CheckpointError:
            continue
        return candidate
    return None


def best_checkpoints(folder: str | os.PathLike[str], score: Score) -> list[Path]:
    """Checkpoints that have a score, best first, the newer of equal ones first."""
    scored: list[tuple[float, int, Path]] = []
    for path in reversed(list_checkpoints(_checkpoints_folder(Path(folder)))):
        try:
            found = score(json.loads((path / "progress.json").read_bytes())["progress"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged; loading it tells
        if found is not None:
            scored.append((-found, len(scored), path))
    return [path for _, _, path in sorted(scored)]


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """Finished checkpoints in ``folder``, oldest first; unfinished and unknown folders are not listed."""
    parent = Path(folder)
    if not parent.is_dir():
        return []
    return sorted((p for p in parent.iterdir() if _NAME.match(p.name) and p.is_dir()), key=_order)


def clean_unfinished(folder: str | os.PathLike[str]) -> int:
    """Remove what a killed process left half-written in ``folder``; returns how many. One process writes a run."""
    stale = [p for p in Path(folder).glob(f"{_TEMPORARY}*") if p.is_dir()]
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return len(stale)


def set_aside_after(checkpoint: Path) -> list[Path]:
    """Rename every checkpoint newer than ``checkpoint`` to ``set-aside-...``: when a run goes on from an older one."""
    newer = [p for p in list_checkpoints(checkpoint.parent) if _order(p) > _order(checkpoint)]
    moved = []
    for path in newer:
        target = path.with_name(f"set-aside-{path.name}")
        while target.exists():
            target = target.with_name(target.name + "-again")
        moved.append(path.rename(target))
    return moved


def _load(folder: Path) -> CheckpointState:
    names = _check_files(folder)
    name = "progress.json"
    try:
        progress = json.loads((folder / name).read_bytes())
        weights: dict[str, WeightSource] = {}
        for name in (n for n in names if n.endswith(".safetensors")):
            weights[name.removesuffix(".safetensors")] = weight_file(folder / name)
        name = "optimizer.pt"
        optimizer = torch.load(folder / name, map_location="cpu", weights_only=True)
        name = "random.pt"
        saved = torch.load(folder / name, map_location="cpu", weights_only=True)
        states = RandomStates(**{name: saved[name] for name in RandomStates.__dataclass_fields__})
        return CheckpointState(
            step=progress["step"],
            version=progress["version"],
            model=weights.pop("model"),
            others=weights,
            optimizer=optimizer,
            random=states,
            cursor=progress["cursor"],
            progress=progress["progress"],
        )
    except Exception as error:  # the files are whole, yet not what this release wrote
        raise CheckpointError(
            f"checkpoint {folder}: {name} cannot be read ({type(error).__name__}: {error})"
        ) from error


def _check_files(folder: Path) -> list[str]:
    """The names of all files, each checked against the manifest."""
    files = _files_of_manifest(folder)
    names = list(dict.fromkeys((*_FILES, *files)))
    for name in names:
        if name not in files:
            raise CheckpointError(f"checkpoint {folder}: manifest.json does not list {name}")
        digest = hashlib.sha256()
        with _reading(folder, name) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            size, expected = file.tell(), files[name]["size"]
        if size != expected:
            raise CheckpointError(f"checkpoint {folder}: {name} has {size} bytes where {expected} were written")
        if digest.hexdigest() != files[name]["sha256"]:
            raise CheckpointError(f"checkpoint {folder}: {name} is corrupt (its SHA-256 is not the one written)")
    return names


@contextmanager
def _reading(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """A file of a checkpoint; raises :class:`CheckpointError` where it cannot be read."""
    try:
        with (folder / name).open("rb") as file:
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {folder}: {name} is missing, so it is not whole") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder}: {name} cannot be read ({error.strerror or error})") from error


def _files_of_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of each file."""
    try:
        with _reading(folder, "manifest.json") as file:
            manifest = json.load(file)
        version, files = manifest["format"], dict(manifest["files"])
        if not all(isinstance(e["size"], int) and isinstance(e["sha256"], str) for e in files.values()):
            raise ValueError("sizes and hashes")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {folder}: manifest.json is corrupt ({error})") from error
    if version != FORMAT:
        saver = manifest.get("versions", {}).get("roll-envs", "unknown")
        raise CheckpointError(
            f"checkpoint {folder}: its format is {version!r}, this release reads {FORMAT}; "
            f"load it with the release that saved it (roll-envs {saver})"
        )
    return files


def _find(path: Path) -> Path:
    if not path.exists():
        raise CheckpointError(f"no checkpoint or run folder {str(path)!r}; check the path")
    if not path.is_dir():
        raise CheckpointError(f"{str(path)!r} is a file; give a checkpoint folder or a run folder")
    if _NAME.match(path.name) or (path / "manifest.json").exists():
        return path
    parent = _checkpoints_folder(path)
    found = list_checkpoints(parent)
    if not found:
        raise CheckpointError(f"no checkpoint in {parent}; the run stopped before its first one, start it anew")
    return found[-1]


def _checkpoints_folder(path: Path) -> Path:
    return path / "checkpoints" if (path / "checkpoints").is_dir() else path


def _free_name(parent: Path, step: int) -> Path:
    path, count = parent / f"step-{step:06d}", 1
    while path.exists():
        count += 1
        path = parent / f"step-{step:06d}-r{count}"
    return path


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.match(path.name)
    return (int(match[1]), int(match[2] or 1)) if match else (2**62, 0)


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_plain(item, f"{where}[{i}]")
    elif type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} is a {type(value).__name__}; a checkpoint holds tensors and plain values only")


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def capture_random_states() -> RandomStates:
    """The states now. Only plain values and tensors, so that they load without running code."""
    return RandomStates(
        python_state=random.getstate(),
        numpy_state=_plain(np.random.get_state(legacy=False)),
        torch_state=torch.get_rng_state(),
        cuda_states=tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else (),
    )


def restore_random_states(states: RandomStates) -> None:
    """Put the states back."""
    random.setstate(states.python_state)
    np.random.set_state(_arrays(states.numpy_state))
    torch.set_rng_state(states.torch_state)
    if states.cuda_states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(list(states.cuda_states))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return value.item() if isinstance(value, np.generic) else value


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"array", "dtype"}:
            return np.array(value["array"], dtype=value["dtype"])
        return {key: _arrays(item) for key, item in value.items()}
    return value
