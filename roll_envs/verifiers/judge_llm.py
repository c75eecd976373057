"""``llm_judge``: a language model behind any OpenAI-compatible API judges answers.

    judge = make_verifier("llm_judge", url="http://localhost:8000/v1", model="qwen", kind="correctness")
    judge("It is Paris.", "Paris", {"prompt": "What is the capital of France?"})

A server that cannot be reached, a deadline that ran out, replies that are cut or hold no clear verdict: each is
:class:`Failed`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from roll_envs.chat_api import conversation
from roll_envs.errors import ConfigError
from roll_envs.recent import Recent
from roll_envs.verifiers import judge_llm_forms as forms
from roll_envs.verifiers.extract import after_thinking
from roll_envs.verifiers.judge_llm_client import Endpoint, NoReplyError
from roll_envs.verifiers.matching import texts_of
from roll_envs.verifiers.types import Failed, Score, Verdict


class _JudgeResult(NamedTuple):
    """One verdict of the model, and its cost."""

    reading: forms.Reading
    cost: Mapping[str, float]


# Beyond the limits that the client keeps itself; only a stuck thread takes longer.
_SPARE_S = 30.0
_FREE = {"prompt_tokens": 0.0, "completion_tokens": 0.0, "requests": 0.0}


@dataclass(kw_only=True, eq=False)
class LlmJudge(Endpoint):
    """An endpoint that is asked for verdicts. The value is 0 to 1:

    - ``correctness``: 1 when the answer agrees with the reference (a text, or several of which any will do). With
      ``threshold`` it is right when the model's ``probability`` that it is right reaches that; else its verdict counts.
    - ``rubric``: the weighted mean of ``criteria`` (name -> description, or name -> ``{"description": ..., "weight":
      ...}``), each with points of ``scale``; passed from ``threshold`` on (0.5 where none is given). A reference may be
      shown along.
    - ``pairwise``: 1, 0.5 or 0 as the answer is better than the reference, as good, or worse; asked in both orders and
      averaged, so that a judge who always prefers the first one gives 0.5. Passed above 0.5.

    The question is ``context["prompt"]``, a text or chat messages; it may be missing. Thoughts before ``</think>``
    are not shown. An empty answer is worth 0 without a request. Parts: points by criterion, ``probability``,
    ``consistent`` and ``first_wins`` of ``pairwise``; and ``prompt_tokens``, ``completion_tokens``, ``requests`` and
    ``cached``.

    Further options are those of :class:`~roll_envs.verifiers.judge_llm_client.Endpoint`. ``cache_dir``: where replies
    are kept on disk; in memory the last ``cache_items`` verdicts are. ``guidance``: rules of your own for the judge.
    ``asks``: how often the judge is asked until a reply is whole and clear, each time after a cut one with more tokens.
    """

    kind: Literal["correctness", "rubric", "pairwise"] = "correctness"
    criteria: Mapping[str, str | Mapping[str, Any]] | None = None
    scale: Sequence[int] = (1, 5)
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    guidance: str = ""
    max_chars: Annotated[int, Field(ge=100)] = 20_000
    cache_dir: str | os.PathLike[str] | None = None
    cache_items: int = 10_000
    asks: Annotated[int, Field(ge=1, le=10)] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.criteria is not None and self.kind != "rubric":
            raise ConfigError(f"criteria belong to kind 'rubric', not to {self.kind!r}")
        if self.threshold is not None and self.kind == "pairwise":
            raise ConfigError("threshold is for kind 'correctness' or 'rubric', not for 'pairwise'")
        rubric = self.kind == "rubric"
        self.form = forms.rubric_form(self.criteria or {}, self.scale) if rubric else forms.ONE_WORD[self.kind]
        self._cache = None if self.cache_dir is None else ReplyCache(self.cache_dir)
        self._asked: Recent[str, _JudgeResult] = Recent(self.cache_items)
        self._running: dict[str, asyncio.Task[_JudgeResult]] = {}
        """What has been found, and what is being found, by request."""
        self.usage = dict(_FREE)
        """Totals so far: ``prompt_tokens``, ``completion_tokens``, ``requests``."""

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        most_s = self.queue_s + self.deadline_s + _SPARE_S
        try:
            return self.background.run(self._judge(answer, reference, context), most_s)
        except concurrent.futures.CancelledError:
            return Failed(reason="the judge was closed")
        except TimeoutError:
            return Failed(reason="the judge's own thread does not answer")

    async def ajudge(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        """Judge for asynchronous callers, on any event loop, without a thread for each call."""
        return await asyncio.wrap_future(self.background.submit(self._judge(answer, reference, context)))

    def close(self) -> None:
        """Close connections; requests under way are cancelled. Any number of times; asking starts anew."""
        self.background.stop()

    def _texts(self, answer: str, reference: Any, context: Mapping[str, Any] | None) -> list[dict[str, str]]:
        """The texts of each request to make; none where the answer is empty. Raises :class:`NoReplyError` for a
        reference that cannot be used."""
        shown: dict[str, str] = {}
        question = _question((context or {}).get("prompt"))
        if question:
            shown["question"] = forms.clip_middle(question, self.max_chars)
        wanted = ""
        if reference is not None or self.kind != "rubric":
            references = texts_of(reference)
            if isinstance(references, str):
                raise NoReplyError(references)
            wanted = forms.clip_middle("\n--- or ---\n".join(references), self.max_chars)
        said = forms.clip_middle(after_thinking(answer), self.max_chars)
        if not said.strip():
            return []
        if self.kind == "pairwise":
            orders = ((said, wanted), (wanted, said))
            return [{**shown, "answer A": first, "answer B": second} for first, second in orders]
        if wanted:
            shown["reference"] = wanted
        return [{**shown, "answer": said}]

    async def _judge(self, answer: str, reference: Any, context: Mapping[str, Any] | None) -> Verdict:
        try:
            asked = self._texts(answer, reference, context)
            told = await asyncio.gather(*map(self._judge_once, asked))
        except NoReplyError as error:
            return Failed(reason=str(error))
        if not told:
            return Score(value=0.0, passed=False, detail="the answer is empty", parts={**_FREE, "cached": 0.0})
        return self._score(told)

    async def _judge_once(self, texts: dict[str, str]) -> _JudgeResult:
        """One verdict: of an equal request, also one in progress, from the cache, or from a new request."""
        # Limits and the key do not change a reply, so they are not part of its cache key; neither is the random mark.
        key = request_key(
            {
                "endpoint": [self.url, self.model, self.structured, self.max_tokens, repr(self.extra)],
                "messages": forms.messages_for(self.form, {}, "MARK", self.guidance),
                "schema": self.form.schema,
                "texts": texts,
            }
        )
        cached = {**_FREE, "cached": 1.0}
        if known := self._asked.get(key):
            self._asked.keep(key, known)  # as the latest
            return known._replace(cost=cached)
        loop, task = asyncio.get_running_loop(), self._running.get(key)
        # After close() or a fork, one that runs may belong to a loop that has ended.
        first = task is None or task.get_loop() is not loop
        if task is None or first:
            task = self._running[key] = loop.create_task(self._find(key, texts))
            task.add_done_callback(functools.partial(self._keep, key))
        # Others may wait for the same task: a caller that is cancelled must not cancel it for them.
        found = await asyncio.shield(task)
        return found if first else found._replace(cost=cached)

    def _keep(self, key: str, task: asyncio.Task[_JudgeResult]) -> None:
        """Remember what was found, whoever still waits for it; a failure is forgotten."""
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled() and task.exception() is None:
            self._asked.keep(key, task.result())

    async def _find(self, key: str, texts: dict[str, str]) -> _JudgeResult:
        kept = None if self._cache is None else await asyncio.to_thread(self._cache.get, key)
        reading = None if kept is None else forms.read_reply(self.form, kept)
        if reading is not None:
            return _JudgeResult(reading, {**_FREE, "cached": 1.0})
        cost, longer = dict(_FREE), 1
        async with self.place():
            until = time.monotonic() + self.deadline_s
            for ask in range(1, self.asks + 1):
                messages = forms.messages_for(self.form, texts, forms.draw_mark(texts), self.guidance, again=ask > 1)
                answer, tries = await self.ask(messages, self.form.schema, until=until, longer=longer)
                spent = (answer.prompt_tokens, answer.completion_tokens, tries)
                for name, number in zip(_FREE, spent, strict=True):  # only the thread of the requests does this
                    cost[name] += number
                    self.usage[name] += number
                reading = None if answer.cut else forms.read_reply(self.form, answer.text)
                if reading is not None:
                    if self._cache is not None:
                        await asyncio.to_thread(self._cache.put, key, answer.text)
                    return _JudgeResult(reading, {**cost, "cached": 0.0})
                why = f"was cut ({answer.cut})" if answer.cut else "holds no clear verdict"
                longer *= 2 if answer.cut else 1
                if time.monotonic() >= until:
                    break
        raise NoReplyError(f"the judge's reply {why}, asked {ask} times; the last: {answer.text[-300:]!r}")

    def _score(self, told: list[_JudgeResult]) -> Score:
        parts = {name: sum(one.cost[name] for one in told) for name in _FREE}
        # Of a pair asked in both orders, both must come from the cache.
        parts["cached"] = min(one.cost["cached"] for one in told)
        first, value = told[0].reading, told[0].reading.value
        parts |= first.parts
        if self.kind == "pairwise":
            # In the second request the answer stood second, so a win of the first counts against it.
            other = told[1].reading.value
            parts["consistent"] = float(value == 1 - other)
            parts["first_wins"] = (value + other) / 2
            value = (value + 1 - other) / 2
            passed = value > 0.5
        elif self.kind == "rubric":
            passed = value >= (0.5 if self.threshold is None else self.threshold)
        else:
            passed = value == 1.0 if self.threshold is None else parts.get("probability", value) >= self.threshold
            value = float(passed)
        return Score(value=value, passed=passed, detail=first.reason, parts=parts)


def _question(prompt: Any) -> str:
    """A prompt as one text; chat messages are joined."""
    if isinstance(prompt, str):
        return prompt.strip()
    if isinstance(prompt, Sequence):
        return conversation([m for m in prompt if isinstance(m, Mapping) and m.get("content")], roles=True)
    return ""


def request_key(request: Mapping[str, Any]) -> str:
    """Cache key: the SHA-256 of all parts of a request."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class ReplyCache:
    """The replies below ``folder``, so that no request is paid for twice.

    Each reply is a file named by the SHA-256 of the whole request and written atomically; processes may share a folder.
    A file that cannot be read counts as missing. Only replies with a verdict are kept.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> str | None:
        """The reply to a request, if it is known."""
        try:
            found = json.loads(self._path(key).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        usable = isinstance(found, dict) and found.get("key") == key and isinstance(found.get("reply"), str)
        return str(found["reply"]) if usable else None

    def put(self, key: str, reply: str) -> None:
        """Keep a reply, unless the disk is full or read-only."""
        path = self._path(key)
        part = path.with_name(f".new-{secrets.token_hex(8)}")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                part.write_text(json.dumps({"key": key, "reply": reply}), encoding="utf-8")
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        # 256 folders, so that none holds too many files.
        return self.folder / key[:2] / f"{key}.json"
