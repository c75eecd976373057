"""Where the files of a model are: in a folder of this machine, or in the cache of the Hugging Face hub, fetched there.

The cache is the one of transformers (``HF_HOME``, ``HF_HUB_CACHE``), and so are its switches: ``HF_HUB_OFFLINE`` asks
nobody, ``HF_ENDPOINT`` names a mirror, ``HF_TOKEN`` says who asks. Loading what was found is in
:mod:`trainer.model.network`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, errors, snapshot_download

from roll_envs.errors import ConfigError
from trainer.config import ModelConfig

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DESCRIPTION = ("*.json", "*.jinja", "*.model", "*.txt")
"""Everything but weights: a few MB."""
_WEIGHTS = (("model*.safetensors",), ("pytorch_model*.bin",))
"""The first of these of which there are files."""
_ELSEWHERE = "or download it where there is a network (`hf download {name}`) and give the folder as model.path"


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundModel:
    """A model's folder on this machine."""

    folder: Path
    commit: str | None = None
    """Of the hub's repository; None for a folder of the user's."""


def find_model(config: ModelConfig, *, weights: bool = True) -> FoundModel:
    """The folder of ``config.path``, or its repository of the hub in the cache, fetched where it is not there yet.

    Without ``weights`` only what describes the model is fetched: its configuration, tokenizer and chat template.

    Raises :class:`ConfigError` that says what was looked for where, and what to do.
    """
    assert config.path is not None
    name, folder = config.path, Path(config.path).expanduser()
    if folder.is_dir() or not _HUB_NAME.fullmatch(name):
        if config.revision is not None:
            raise ConfigError(
                f"model.revision is {config.revision!r}, but model.path '{name}' is a folder, which has no revisions; "
                "leave model.revision out"
            )
        check_model_folder(folder, weights=weights)
        return FoundModel(folder=folder)
    found = _fetch(name, config.revision, _DESCRIPTION)
    check_model_folder(found, name=name)
    if weights and not _weight_files(found):
        for patterns in _WEIGHTS:
            _fetch(name, found.name, patterns)
            if _weight_files(found):
                break
    check_model_folder(found, name=name, weights=weights)
    return FoundModel(folder=found, commit=found.name)


def check_model_folder(folder: Path, *, name: str | None = None, weights: bool = False) -> None:
    """Raise :class:`ConfigError` where there is no model in Hugging Face form, or no ``weights`` of it; ``name`` is
    that of a repository of the hub."""
    place = f"'{folder}'" if name is None else f"the hub's repository '{name}'"
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model.path: no Hugging Face model in {place} (config.json is missing); give a folder that has one or a "
            "name of the hub such as Qwen/Qwen2.5-0.5B-Instruct, or leave model.path out for a small model that is "
            "built here"
        )
    if weights and not _weight_files(folder):
        raise ConfigError(
            f"model.path: no weights in {place}; allowed: model.safetensors, or parts of it that "
            "model.safetensors.index.json lists (GGUF and other forms have to be converted first)"
        )


def _weight_files(folder: Path) -> list[Path]:
    return [path for (pattern,) in _WEIGHTS for path in folder.glob(pattern)]


def _fetch(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    """The repository's folder in the cache, with the files of ``patterns`` in it."""
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns), ignore_patterns=["*/*"]))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: {_reason(name, revision, error)}") from error


def _reason(name: str, revision: str | None, error: Any) -> str:
    """What went wrong when the hub was asked, and what to do."""
    elsewhere = _ELSEWHERE.format(name=name)
    here = f"there is no folder '{name}' here"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"'{name}' is a gated model of the hub; accept its terms on {constants.ENDPOINT}/{name}, then `hf auth "
            f"login` or set HF_TOKEN, {elsewhere}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the hub's '{name}' has no revision {revision!r} (model.revision); allowed: a branch, tag or commit"
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return (
            f"{here}, and {constants.ENDPOINT} has no model of this name (or a private one: set HF_TOKEN); "
            "check the spelling"
        )
    incomplete = getattr(errors, "IncompleteSnapshotError", errors.LocalEntryNotFoundError)
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled | incomplete):
        which = f"'{name}'" + (f" at revision {revision!r}" if revision else "")
        if constants.HF_HUB_OFFLINE:
            return (
                f"{here}, and with HF_HUB_OFFLINE set the hub is not asked; its cache {constants.HF_HUB_CACHE} does "
                f"not have {which}. Unset HF_HUB_OFFLINE, {elsewhere}"
            )
        return (
            f"{here}, and {constants.ENDPOINT} could not be asked for {which} ({_cause(error)}). Try again, name a "
            f"mirror in HF_ENDPOINT, {elsewhere}"
        )
    return f"'{name}' could not be fetched from {constants.ENDPOINT} ({_cause(error)}). Try again, {elsewhere}"


def _cause(error: BaseException) -> str:
    first = error.__cause__ or error
    return f"{type(first).__name__}: {str(first).splitlines()[0] if str(first) else 'no reason given'}"
