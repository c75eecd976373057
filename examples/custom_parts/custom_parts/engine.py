"""An engine: the built-in one, with a line in a file for every answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from roll_envs.settings import Settings
from roll_envs.types import Completion, SamplingParams
from trainer.config.parts import ENGINES
from trainer.engines import Engine, EnginePart


class LoggedSettings(Settings):
    """Keys of the section ``engine`` that this engine reads."""

    log: str = "answers.jsonl"
    """File that a line is added to for every answer."""


class LoggedEngine(Engine):
    """Passes everything on to ``inner``."""

    def __init__(self, inner: Engine, path: Path) -> None:
        self._inner, self._file, self._lock = inner, path.open("a", encoding="utf-8"), threading.Lock()
        self.capabilities = inner.capabilities

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        future = self._inner.submit(prompt_ids, sampling, timeout_s=timeout_s, session=session)
        future.add_done_callback(lambda done: self._write(len(prompt_ids), done))
        return future

    def _write(self, prompt_tokens: int, done: Future[Completion]) -> None:
        if not done.cancelled() and done.exception() is None:
            line = {"prompt_tokens": prompt_tokens, "ids": done.result().ids, "version": done.result().weight_version}
            with self._lock:
                self._file.write(json.dumps(line) + "\n")

    def update_weights(self, source: Iterable[tuple[str, Any]], version: int) -> None:
        self._inner.update_weights(source, version)
        self.version = version

    def pause(self) -> None:
        self._inner.pause()

    def resume(self) -> None:
        self._inner.resume()

    def abort(self) -> None:
        self._inner.abort()

    def health(self) -> None:
        self._inner.health()

    def close(self) -> None:
        self._inner.close()
        self._file.close()


def make_logged(model: Any, settings: LoggedSettings, *, max_tokens: int, device: str) -> Engine:
    """Start the built-in engine and wrap it."""
    hf = ENGINES.find("hf")
    return LoggedEngine(hf.make(model, hf.settings(), max_tokens=max_tokens, device=device), Path(settings.log))


LOGGED = EnginePart(make=make_logged, settings=LoggedSettings)
