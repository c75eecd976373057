"""A checkpoint's model in Hugging Face form: a folder that transformers, vLLM and ``model.path`` read."""

from __future__ import annotations

import os
from pathlib import Path

from roll_envs.errors import RollError
from trainer.model.network import save_model
from trainer.rollout.source import Session
from trainer.run.checkpoint import load_checkpoint, load_policy
from trainer.run.folder import RunFolder, disk_errors, replacing


def export_model(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Write the model of a checkpoint, or of the last one of a run folder, to the new folder ``target``: safetensors,
    config and tokenizer, adapters merged. Returns the training steps it had.

    Raises:
        CheckpointError: The checkpoint cannot be read.
        RollError: ``target`` is there already, or cannot be written.
    """
    folder = Path(target)
    if folder.exists():
        raise RollError(f"{folder} is there already; name a new folder, or remove it")
    with RunFolder.open(path) as run:
        config = run.config
    state = load_checkpoint(path)
    with Session(config, plays=False) as session:
        load_policy(state, session.model)
        with disk_errors(folder), replacing(folder) as unfinished:
            save_model(session.model, unfinished)
    return int(state.progress["steps"])
