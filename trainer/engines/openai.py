"""A server with OpenAI's API as an engine: its settings, and what is checked before anything starts.

For evaluation and teachers, since the weights of such a server are not ours to train.
"""

from __future__ import annotations

import os
import re
import sys
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from roll_envs.errors import ConfigError, MissingExtraError
from roll_envs.policy import CharRenderer
from roll_envs.settings import Settings
from trainer.config.parts import part_settings
from trainer.engines import Engine, EnginePart, Prompts

if TYPE_CHECKING:
    from trainer.config import RunConfig
    from trainer.model.network import LanguageModel

_OURS = ("model", "messages", "prompt", "stream", "n", "echo", "logprobs", "return_token_ids")
"""Fields that ``engine.body`` may not change: the answer would not be what is read."""


class OpenAISettings(Settings):
    """Settings of the OpenAI engine."""

    url: str
    """Address of the API, up to and with the version, e.g. https://api.openai.com/v1."""
    model: str = Field(min_length=1)
    """Name of the model at the server."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; null sends none."""
    max_running: int = Field(32, ge=1)
    """Requests that are at the server at the same time; the others wait here."""
    body: dict[str, Any] = Field(default_factory=dict)
    """More fields of each request, e.g. {top_p: 0.9}; null leaves one of ours out, e.g. {seed: null}."""
    token_ids: bool = False
    """Send and read ids of the tokenizer in model.path, in its chat template; the server must be vLLM."""

    @property
    def counts_tokens(self) -> bool:
        return self.token_ids


def _address_problem(address: str) -> str:
    """What is wrong with ``engine.url``; empty where nothing is."""
    if "@" in address:
        return "engine.url has a user or password in it; give a key in the variable of engine.api_key_env"
    try:
        url = urllib.parse.urlsplit(address)
        usable = url.scheme in ("http", "https") and url.hostname and url.port != 0 and not url.query + url.fragment
    except ValueError:
        usable = False
    if not usable:
        return f"engine.url is {address!r}; allowed: an address such as http://127.0.0.1:8000/v1"
    if url.path.rstrip("/").endswith("/completions"):
        return f"engine.url is {address!r}; it ends with the version, such as /v1, and no route"
    return ""


def _setting_problems(settings: OpenAISettings) -> list[str]:
    problems = [problem] if (problem := _address_problem(settings.url)) else []
    # Not shown: it may well be the key.
    if settings.api_key_env is not None and not re.fullmatch(r"[A-Za-z_]\w*", settings.api_key_env, re.ASCII):
        problems.append("engine.api_key_env is not the name of an environment variable, such as OPENAI_API_KEY")
    for name in settings.body:
        if name in _OURS:
            problems.append(f"engine.body may not change {name!r}")
    return problems


def _key(settings: OpenAISettings) -> str:
    """The API key. Raises :class:`ConfigError` where there is none, or one that no request can carry."""
    if settings.api_key_env is None:
        return ""
    key = os.environ.get(settings.api_key_env, "").strip()
    if not key:
        raise ConfigError("engine 'openai': the environment variable that engine.api_key_env names is not set")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            "engine 'openai': the key in the variable that engine.api_key_env names has strange characters"
        )
    return key


class OpenAIPart(EnginePart):
    """The OpenAI engine."""

    def problems(self, config: RunConfig) -> list[str]:
        settings = part_settings(config.engine, self)
        problems = _setting_problems(settings)
        if settings.token_ids and config.model.path is None:
            problems.append("engine.token_ids needs the server's tokenizer: give its folder as model.path")
        return problems

    def prompts(self, config: RunConfig) -> Prompts:
        if not part_settings(config.engine, self).token_ids:
            return Prompts(renderer=CharRenderer(), max_tokens=sys.maxsize)
        from trainer.model.hub import find_model
        from trainer.model.network import load_tokenizer
        from trainer.model.renderer import ChatRenderer

        assert config.model.path is not None
        tokenizer = load_tokenizer(find_model(config.model, weights=False).folder, config.model.path)
        renderer = ChatRenderer(tokenizer, variables=config.context.template)
        return Prompts(renderer=renderer, max_tokens=config.engine.max_tokens)


def _make(model: LanguageModel | Path | None, settings: OpenAISettings, *, max_tokens: int, device: str) -> Engine:
    problems = _setting_problems(settings)
    if problems:
        raise ConfigError("; ".join(problems))
    try:
        from trainer.engines.openai_engine import OpenAIEngine
    except ModuleNotFoundError as error:
        if error.name == "aiohttp":
            raise MissingExtraError("engine 'openai'", "openai") from error
        raise
    return OpenAIEngine(settings, key=_key(settings), max_tokens=max_tokens if settings.token_ids else sys.maxsize)


OPENAI = OpenAIPart(settings=OpenAISettings, make=_make)
"""A server with OpenAI's API, somewhere."""
