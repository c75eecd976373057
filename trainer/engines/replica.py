"""One server of an engine: brought up, given the current weights, and proven to answer as they do.

What vLLM, SGLang and the like are asked, and how they answer, is in their :class:`Dialect`.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, ClassVar, Literal

from roll_envs.errors import EngineError
from roll_envs.types import Completion, SamplingParams, VersionSpan
from trainer.engines import Capabilities, server
from trainer.engines.preflight import RemoteSettings
from trainer.engines.router import Lane, Load
from trainer.engines.sent_weights import SentWeights
from trainer.engines.server import Server, ServerBusyError, ServerFaultError, ServerRefusalError

Ask = Callable[..., Awaitable[Any]]
"""Asks one server: :meth:`trainer.engines.server.ServerClient.ask` without the address."""

_STARTS = 3
"""So many starts in a row without an answer in between, and a replica is given up."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
"""Between two tries of a route at a server that is busy."""
_PROBES = 3
"""How often a probe is asked that gets no answer."""
_PROBE_TOKENS, _PROBED_TOKENS = 40, 8
"""Of the probe's prompt (more than one block of the prefix cache, so that old blocks would show), and its answer."""
_PROBE_TEMPERATURE = 2.0
"""Not 1, so that log-probabilities before temperature would show."""
_HEALTH_S, _LOAD_S = 5.0, 20.0
"""Longest waits for whether a server can work, and for its load while it has requests."""

_log = logging.getLogger(__name__)


class ReplicaLostError(EngineError):
    """A server that does not come up any more."""


class UnansweredProbeError(ServerFaultError):
    """A server has new weights, and did not answer when they were to be proven."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be asked of the model."""

    vocabulary: int
    """Its token ids are 0 to one less."""
    max_tokens: int
    """Longest prompt + completion."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The weights that every replica must answer with."""

    weights: SentWeights
    version: int
    owner: str
    """Of the label: another trainer's weights are told from ours by it."""
    update: int
    """Of the label: which update, since a version may be sent twice."""
    whole: SentWeights | None = None
    """The weights where servers can read them, if they cannot read those of ``weights``."""
    changes: SentWeights | None = None
    """What differs from the weights with the label ``before``."""
    before: str = ""

    @property
    def label(self) -> str:
        """What servers call these weights. It ends with the key of those that are kept there for adapters."""
        base = self.weights.base
        return f"{self.version}-{self.owner}-{self.update}" + (f"-{base.base_key}" if base else "")

    def since(self, label: str | None) -> tuple[SentWeights, ...]:
        """What a server needs that has the weights ``label``, in this order; None for one that may have a part only."""
        base = self.weights.base
        if self.changes is not None and label == self.before:
            return (self.changes,)
        if base is None:
            return (self.whole or self.weights,)
        there = str(label).split("-")[1::2] == [self.owner, base.base_key]
        return (self.weights,) if there else (base, self.weights)

    def close(self, instead: Sent | None = None) -> None:
        """Give back the memory of what ``instead``, which goes on, does not need."""
        for each in (self.weights, self.whole, self.changes):
            if each is not None:
                each.close()
        if self.weights.base is not None and (instead is None or self.weights.base is not instead.weights.base):
            self.weights.base.close()

    def version_of(self, label: Any) -> int:
        """The version that a label names. Raises ValueError for weights that this engine did not send."""
        version, owner, *_ = str(label).split("-")
        if owner != self.owner:
            raise ValueError(f"weights {label!r} are not of this engine")
        return int(version)


def joined_spans(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Spans of ids that follow each other, neighbours of one version joined."""
    joined: list[VersionSpan] = []
    for version, tokens in spans:
        if joined and joined[-1].version == version:
            tokens += joined.pop().tokens
        joined.append(VersionSpan(version, tokens))
    return tuple(joined)


class Dialect(abc.ABC):
    """What a kind of server is asked over HTTP, and how its answers are read."""

    name: ClassVar[str]
    """What errors call the server."""
    health: ClassVar[str] = "/health"
    """Path that answers when the server can work, also while it is paused."""
    generate: ClassVar[str]
    """Path that takes token ids and answers with token ids."""
    capabilities: Capabilities
    live: bool = False
    """Weights are read from the learner while they are sent, so that they need not leave its device."""
    merges_adapters: bool = False
    """Its workers keep weights, and merge adapters into them that are sent alone."""
    sends_changes: bool = False
    """Its workers keep weights, and are sent what differs from those."""
    continues_aborted: ClassVar[bool] = False
    """What a request that a pause ended has sampled is kept, and the rest asked for."""

    @abc.abstractmethod
    def body(self, prompt: Sequence[int], sampling: SamplingParams) -> dict[str, Any]:
        """What ``generate`` is sent."""

    @abc.abstractmethod
    def completion(self, reply: Any, sampling: SamplingParams, sent: Sent) -> Completion:
        """What ``generate`` answered to ``sampling``.

        Raises :class:`ServerFaultError` for anything that is not a whole, consistent answer by weights of ours.
        """

    @abc.abstractmethod
    async def label(self, ask: Ask) -> Any:
        """The label of the weights that the server has."""

    @abc.abstractmethod
    async def pause(self, ask: Ask) -> None:
        """Stop sampling. Requests are kept, or end with what they sampled where ``continues_aborted``."""

    @abc.abstractmethod
    async def send(self, ask: Ask, sent: Sent, label: str | None) -> None:
        """Replace the weights of a server that is paused, and forget what the old ones computed. It has those that
        ``label`` names; None: it may have none, or a part of some."""

    @abc.abstractmethod
    async def resume(self, ask: Ask) -> None:
        """Go on after :meth:`pause`."""

    @abc.abstractmethod
    async def abort(self, ask: Ask) -> None:
        """End every request with what it sampled."""

    @abc.abstractmethod
    async def undo(self, ask: Ask) -> None:
        """Let the server go on after :meth:`send` failed somewhere in the middle, as far as it can. Raises nothing."""

    async def sleep(self, ask: Ask) -> None:
        """Give back the memory of weights, keys and values, and keep the requests."""
        raise EngineError(f"{self.name} cannot sleep; ask its capabilities first")

    async def wake(self, ask: Ask, what: Literal["weights", "kv_cache"]) -> None:
        """Take the memory of one of them again. That of weights comes first, and has none in it until :meth:`send`."""
        raise EngineError(f"{self.name} cannot sleep; ask its capabilities first")

    async def load(self, ask: Ask) -> Load | None:
        """What the server says about its load; None where it does not."""
        return None


class Replica:
    """One server. Its methods run on the event loop of the engine."""

    def __init__(self, dialect: Dialect, settings: RemoteSettings, server: Server, ask: Ask, limits: Limits) -> None:
        """``limits`` bound what the probe may ask."""
        self.server, self.ask, self.lane = server, ask, Lane(settings.max_running)
        self.asking: set[asyncio.Timeout] = set()
        """Ends the wait for each request that is at the server."""
        self.starting = False
        """Whether it is waited for."""
        self.drained = False
        """Whether it is out of use until further notice."""
        self.revival: asyncio.Task[None] | None = None
        """Brings it back after something went wrong."""
        self._dialect, self._settings, self._limits = dialect, settings, limits
        self._control = asyncio.Lock()  # updates, pauses and starts, one after the other
        self._starts = 0  # without an answer in between
        self._unproved = self._asleep = self._torn = False
        self._failures = 0  # to take weights: what ran then is of no version

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, sent: Sent, *, patient: bool = True
    ) -> Completion:
        """One try of a request. Raises :class:`ServerFaultError` when it may be asked again: also where it may have met
        weights that are not those that were sent."""
        ask, failures = self.ask if patient else self._control_ask, self._failures
        reply = await ask(self._dialect.generate, self._dialect.body(prompt, sampling), patient=patient)
        completion = self._dialect.completion(reply, sampling, sent)
        if strange := [i for i in completion.ids if not 0 <= i < self._limits.vocabulary]:
            raise ServerFaultError(f"an answer has the id {strange[0]}; the model has {self._limits.vocabulary} ids")
        if patient:
            self._starts = 0
            if self._unproved:
                async with self._control:  # until they are proven
                    pass
            if self._failures != failures:
                raise ServerFaultError("an update failed meanwhile")
        return completion

    async def _control_ask(self, path: str, body: Any = None, **how: Any) -> Any:
        """:meth:`ask`, and again as long as the server only says that it is busy, within the time of a route."""
        deadline, pause_s = time.monotonic() + server.ROUTE_TIMEOUT_S, _FIRST_PAUSE_S
        while True:
            try:
                return await self.ask(path, body, **how)
            except ServerBusyError as busy:
                pause_s = max(busy.pause_s, pause_s)
                if time.monotonic() + pause_s > deadline:
                    raise
                await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def healthy(self) -> bool:
        """Whether it answers, and says that it can work."""
        with contextlib.suppress(EngineError):
            await self._ask_health()
            return True
        return False

    async def _ask_health(self) -> None:
        await self.ask(self._dialect.health, method="GET", limit_s=_HEALTH_S, form="text")
        if self.server.shares_port:
            raise ReplicaLostError(
                f"another server answers at {self.server.url} too; choose another engine.port, or 0 for a free one"
            )

    @property
    def may_answer(self) -> bool:
        """Whether it answers, or is being brought back."""
        return self.lane.open or (self.revival is not None and not self.revival.done())

    async def bring(self, current: Callable[[], Sent], *, paused: Callable[[], bool]) -> None:
        """See to it that the server runs and has the weights of ``current()``, which may change meanwhile.

        Raises :class:`ReplicaLostError` when it does not come up, :class:`EngineError` when it does not answer as the
        weights do, :class:`ServerFaultError` when something went wrong that may be tried again.
        """
        async with self._control:
            while True:
                if not await self.healthy():
                    await self._start()
                try:
                    sent = current()
                    whole = not (self._asleep or self._torn)
                    label = await self._dialect.label(self._control_ask) if whole else None
                    if label != sent.label:
                        await self._take(sent, label, paused=paused())
                    elif not self._unproved:
                        return
                    if not paused():  # weights that were not proven are proven now, not taken for good
                        await self._go_on(sent)
                    return
                except ServerFaultError:
                    if await self.healthy():
                        raise  # else it died meanwhile
                except ServerRefusalError as error:
                    if error.status != 404:
                        raise
                    raise EngineError(
                        f"{error}; start the server with the arguments that docs/engines.md lists for one that runs "
                        "already, or check engine.url"
                    ) from error

    async def _take(self, sent: Sent, label: str | None, *, paused: bool) -> None:
        """Replace the weights. Memory for keys and values comes last, when what was needed for the transfer is free."""
        asleep, dialect = self._asleep, self._dialect
        self._torn = True  # its label is still that of what it had
        if asleep:
            await dialect.wake(self._control_ask, "weights")
        await dialect.pause(self._control_ask)
        with self._counted_failure():
            await dialect.send(self._control_ask, sent, label)
        self.lane.sent_back += len(self.asking)
        self._torn, self._unproved = False, True
        if asleep:
            await dialect.wake(self._control_ask, "kv_cache")
            self._asleep = False
            if paused:
                await dialect.pause(self._control_ask)  # a server that is all awake goes on by itself

    async def sleep(self) -> None:
        """Give back the server's memory until it gets weights again."""
        async with self._control:
            if self._asleep:
                return
            self._unproved = True  # weights and keys may be gone though it says that it failed
            try:
                await self._dialect.sleep(self._control_ask)
                self._asleep = True
            except ServerFaultError:
                if await self.healthy():
                    raise
                self.server.stop()  # it died, or was being started: it must not take memory now

    async def hold(self, sent: Sent, *, paused: bool) -> None:
        """Pause, or go on."""
        async with self._control:
            try:
                await (self._dialect.pause(self._control_ask) if paused else self._go_on(sent))
            except ServerFaultError:
                if await self.healthy():
                    raise  # else it is paused, or not, when it comes back

    async def abort(self) -> None:
        """End the requests that are here now."""
        there = set(self.asking)
        while there & self.asking:  # one may still be on its way to the scheduler
            with contextlib.suppress(ServerFaultError):
                await self._dialect.abort(self.ask)
            await asyncio.sleep(0.02)

    async def recede(self) -> None:
        """After an update that failed: :meth:`silence` where some of the weights are new, or all and not proven. What
        runs there is ended, since the server may go on with it."""
        if self._torn or self._unproved:
            await self.silence()
            if self.asking:
                with contextlib.suppress(EngineError):
                    await self._dialect.abort(self.ask)

    async def silence(self, *, paused: bool = False) -> None:
        """After weights that did not arrive: it answers nothing, and no request waits for it."""
        if not self.server.stop() and not self._asleep:
            await self._dialect.undo(self.ask)
            if paused:
                with contextlib.suppress(EngineError):
                    await self._dialect.pause(self.ask)

    async def follow_load(self) -> bool:
        """Let as many requests in as the server's memory has room for; whether it answers at all."""
        try:
            if load := await self._dialect.load(partial(self.ask, limit_s=_LOAD_S)):
                self.lane.follow(load)
        except ServerFaultError:
            return await self.healthy()
        except ServerRefusalError:
            pass
        return True

    async def _start(self) -> None:
        """Start the server where it is ours, and wait until it answers."""
        timeout_s, name = self._settings.start_timeout_s, self._dialect.name
        if self._starts >= _STARTS:
            self._starts = 0
            raise ReplicaLostError(f"the {name} server died {_STARTS} times in a row. {self.server.last_words()}")
        self._starts += 1
        self.starting, self._asleep, self._torn = True, False, False
        for wait in self.asking:  # one that hangs would never answer them
            if not wait.expired():
                wait.reschedule(0)
        try:
            self.server.start()
            if self._settings.urls:
                _log.warning(
                    "the %s server %s does not answer; it is waited for until engine.start_timeout_s %g",
                    *(name, self.server.url, timeout_s),
                )
            async with asyncio.timeout(timeout_s):
                while True:
                    with contextlib.suppress(ServerFaultError):
                        await self._ask_health()
                        break
                    if not self.server.can_answer:
                        raise ReplicaLostError(f"the {name} server did not start. {self.server.last_words()}")
                    await asyncio.sleep(0.2)
        except ServerRefusalError as error:
            raise ReplicaLostError(
                f"what answers at {self.server.url} is no {name} server as it is needed: {error}; check engine.url "
                "(an address without a path) or engine.port"
            ) from error
        except TimeoutError:
            raise ReplicaLostError(
                f"the {name} server {self.server.url} did not answer within engine.start_timeout_s {timeout_s:g}. "
                f"{self.server.last_words()}"
            ) from None
        finally:
            self.starting = False

    async def _go_on(self, sent: Sent) -> None:
        await self._dialect.resume(self._control_ask)
        if self._unproved:
            with self._counted_failure():
                await self._probe(sent)
            self._unproved = False

    @contextlib.contextmanager
    def _counted_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._failures += 1
            raise

    async def _probe(self, sent: Sent) -> None:
        """Compare the server with the weights that were sent. Raises :class:`EngineError` where they differ."""
        answered = min(_PROBED_TOKENS, self._limits.max_tokens - 1)
        asked = min(_PROBE_TOKENS, self._limits.max_tokens - answered)
        prompt = tuple(7919 * i % self._limits.vocabulary for i in range(1, asked + 1))
        sampling = SamplingParams(temperature=_PROBE_TEMPERATURE, max_new_tokens=answered, seed=0)
        for left in reversed(range(_PROBES)):
            try:
                completion = await self.generate(prompt, sampling, sent, patient=False)
                break
            except ServerFaultError as error:  # a lost connection says nothing of the weights
                if not await self.healthy():
                    raise
                if not left:
                    problem = f"{self.server.url} did not answer the probe of an update: {error}"
                    raise UnansweredProbeError(problem) from error
        expected = await asyncio.to_thread(sent.weights.logprobs, prompt, completion.ids, _PROBE_TEMPERATURE)
        # The mean: bfloat16 can put a single unlikely token as far off as other weights put all of them.
        apart = fmean(abs(a - b) for a, b in zip(expected, completion.logprobs, strict=True))
        if not apart <= self._settings.tolerance:
            raise EngineError(
                f"with the weights of version {sent.version}, {self._dialect.name}'s log-probabilities differ from "
                f"those of the weights that were sent by {apart:.2g} on average; engine.probe_tolerance allows "
                f"{self._settings.tolerance:g}. Its answers must not be trained on: its code of this model may not "
                f"take updates, or it computes or samples otherwise than one that is started here (in "
                f"{self._settings.dtype}; docs/engines.md lists its arguments)"
            )
