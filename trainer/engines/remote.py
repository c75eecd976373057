"""An engine in servers: requests that are asked again, several replicas, new weights for all of them.

The servers are processes of this engine, started again with the current weights when they die, or ones that somebody
else runs. :mod:`trainer.engines.replica` sees to one of them, :mod:`trainer.engines.router` chooses among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from roll_envs.errors import DeadlineExceededError, EngineError
from roll_envs.types import Completion, SamplingParams
from trainer.engines import Engine, check_request
from trainer.engines.buckets import Adapted, changes
from trainer.engines.preflight import RemoteSettings
from trainer.engines.replica import Dialect, Limits, Replica, ReplicaLostError, Sent, UnansweredProbeError, joined_spans
from trainer.engines.router import Router
from trainer.engines.sent_weights import SentWeights, skeleton_of
from trainer.engines.server import Server, ServerClient, ServerFaultError
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel

_LONGEST_PAUSE_S = 2.0
"""Between two tries of a request."""
_ROUND_S = 0.5
"""Before a probe that got no answer is asked again by all."""
_LOAD_EVERY_S = 1.0
"""How often replicas that have requests are asked for their load."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


class RemoteEngine(Engine):
    """A :class:`roll_envs.policy.Policy` over servers of one kind, which all have the same weights."""

    def __init__(
        self,
        model: LanguageModel,
        dialect: Dialect,
        settings: RemoteSettings,
        servers: Sequence[Server],
        *,
        max_tokens: int,
    ) -> None:
        """Bring the ``servers`` up and give them the weights of ``model``.

        Raises :class:`EngineError` when one does not come up, or does not answer as the model does.
        """
        resting = frozenset(settings.sleepers)
        self.capabilities = replace(dialect.capabilities, answers_asleep=0 < len(resting) < len(servers))
        self._dialect, self._settings = dialect, settings
        self._limits = Limits(model.network.config.vocab_size, max_tokens)
        self._skeleton = skeleton_of(model.network)
        self._live = dialect.live and len(servers) == 1  # several would have to read it at the same time
        self._owner, self._updates = secrets.token_hex(4), itertools.count()
        self._problem = ""  # why nothing is answered until an update succeeds
        self._aborts = 0  # how often everything was aborted
        self._paused = self._closed = self._asleep = self._going_back = False
        self._sent = self._read(weights_of(model.network), 0)
        self._client = ServerClient()
        self._replicas = [
            Replica(dialect, settings, server, server.asked_through(self._client), self._limits) for server in servers
        ]
        self._resting = [replica for number, replica in enumerate(self._replicas) if number in resting]
        self._of_lane = {replica.lane: replica for replica in self._replicas}
        self._router = Router([replica.lane for replica in self._replicas])
        try:
            self._client.run(self._bring_all(patient=True))
            for replica in self._replicas:
                self._client.start(self._follow(replica))
        except BaseException:
            self.close()
            raise

    # -- the contract ------------------------------------------------------------------------------------------------

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        """Send a request, or let it wait for its turn; returns at once."""
        limits = self._limits
        prompt = check_request(prompt_ids, sampling, vocabulary=limits.vocabulary, max_tokens=limits.max_tokens)
        self._raise_if_unusable()
        return self._client.start(self._answer(prompt, sampling, timeout_s, session))

    def update_weights(self, source: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Pause, replace the weights, forget what old ones computed, go on.

        Running requests go on with the new weights, and their prompts and what they sampled so far are run again. A
        replica that has to be started meanwhile does not hold the others up; it gets the weights when it is there.

        After an update that fails all go on with the weights of before: replicas that took new ones, or a part of them,
        are given the old ones again, and prove that they have them. Where that fails too nothing is answered until an
        update succeeds.
        """
        if self._closed:
            raise EngineError("the engine is closed")
        self._client.run(self._update(self._read(source, version, self._sent)))

    def pause(self) -> None:
        """Stop sampling; requests are kept."""
        self._hold(True)

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._hold(False)

    def _hold(self, paused: bool) -> None:
        self._paused = paused
        self._client.run(self._hold_all(paused))

    async def _hold_all(self, paused: bool) -> None:
        try:
            await self._every(lambda replica: replica.hold(self._sent, paused=paused))
        except ServerFaultError:
            raise
        except EngineError as error:
            self._fail(f"the engine gave up: {error}")
            raise

    def sleep(self) -> None:
        """Give back the memory of the servers that share GPUs with the learner; requests wait, those that run too.

        Where other servers stay awake, what runs is finished first, and requests go to those. All wake up where one
        does not sleep."""
        if not self.capabilities.sleep:
            super().sleep()
        self._raise_if_unusable()
        self._client.run(self._sleep())

    def wake(self) -> None:
        """Go on after :meth:`sleep`, with the weights of before, which are sent again."""
        if not self.capabilities.sleep:
            super().wake()
        self._raise_if_unusable()
        self._client.run(self._wake())

    def abort(self) -> None:
        """End every request with ``finish="abort"``, keeping what was sampled so far."""
        self._client.run(self._abort())

    def health(self) -> None:
        """Raise :class:`EngineError` when no replica can answer."""
        self._raise_if_unusable()
        if not any(self._client.run(self._every(Replica.healthy))):
            raise EngineError(
                f"the {self._dialect.name} server does not answer; it is started again with the next request"
            )

    def close(self) -> None:
        """Abort everything, end the servers that are ours."""
        if self._closed:
            return
        with contextlib.suppress(Exception):
            self._client.run(asyncio.wait_for(self._abort(), 5))
        self._closed = True
        self._client.close()
        for replica in self._replicas:
            replica.server.close()
        self._sent.close()

    def drain(self, number: int) -> None:
        """Let replica ``number`` finish what it has, send nothing more there, and end it where it is ours."""
        replica = self._replicas[number]
        replica.drained = True
        self._client.run(self._drain(replica))

    def restore(self, number: int) -> None:
        """Take a replica back in after :meth:`drain`, with the current weights."""
        replica = self._replicas[number]
        replica.drained = False
        self._client.run(self._bring(replica))

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _answer(
        self, prompt: tuple[int, ...], sampling: SamplingParams, timeout_s: float, session: str | None
    ) -> Completion:
        """Wait for a place, ask, and ask again until there is an answer or no time left."""
        aborts, problem, pause_s = self._aborts, "", 0.05
        parts: list[Completion] = []
        try:
            async with asyncio.timeout(timeout_s):
                while self._aborts == aborts:
                    self._raise_if_unusable()
                    async with self._router.place(session) as lane:
                        self._raise_if_unusable()
                        if lane is None:  # everything was aborted
                            continue
                        replica = self._of_lane[lane]
                        try:
                            part = await self._ask(replica, prompt, sampling, parts)
                            self._raise_if_unusable()
                            if part.finish != "abort" or self._aborts != aborts:
                                return _joined([*parts, part])
                            problem = ""
                        except ServerFaultError as fault:
                            part, problem = None, f" ({fault})"
                        self._raise_if_unusable()
                        # An abort that nobody asked for is a pause, or a server that ends.
                        if part is not None and part.ids and self._dialect.continues_aborted:
                            parts.append(part)
                        else:
                            self._see_to(replica)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                ended = Completion(ids=(), logprobs=(), finish="abort", weight_version=self.version)
                return _joined([*parts, ended])
        except TimeoutError:
            raise DeadlineExceededError(self.answer_name + problem, timeout_s) from None
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError("the engine is closed") from None
            raise

    async def _ask(
        self, replica: Replica, prompt: tuple[int, ...], sampling: SamplingParams, parts: Sequence[Completion]
    ) -> Completion:
        """Ask a replica for what is missing after ``parts``."""
        for part in parts:
            prompt += part.ids
            # The same seed would draw the same numbers again.
            seed = None if sampling.seed is None else sampling.seed + 1
            sampling = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(part.ids), seed=seed)
        if sampling.max_new_tokens == 0:
            return Completion(ids=(), logprobs=(), finish="length", weight_version=self.version)
        wait = asyncio.timeout(None)  # patiently: the deadline is the caller's
        replica.asking.add(wait)
        try:
            async with wait:
                return await replica.generate(prompt, sampling, self._sent)
        except TimeoutError:
            raise ServerFaultError(f"{replica.server.url} does not answer any more") from None
        finally:
            replica.asking.discard(wait)

    async def _abort(self) -> None:
        self._aborts += 1
        self._router.dismiss()
        await self._every(Replica.abort)

    # -- replicas ----------------------------------------------------------------------------------------------------

    async def _update(self, sent: Sent) -> None:
        old, self._sent, self.version = self._sent, sent, sent.version
        try:
            await self._bring_all()
        except BaseException as error:
            self._sent, self.version = old, old.version
            await self._go_back(sent, error)
            raise
        old.close(instead=sent)
        self._problem = ""

    async def _go_back(self, sent: Sent, error: BaseException) -> None:
        """Answer with the weights of before, after the update to ``sent`` has failed."""
        self._going_back = True  # every replica is seen to here
        for replica in self._replicas:
            self._router.shut(replica.lane)
        await self._every(Replica.recede)
        await asyncio.to_thread(sent.weights.settle)  # before anybody asks the learner for something else
        sent.close(instead=self._sent)
        failed = f"the update to weight version {sent.version} failed and must be repeated: {error}"
        try:
            # One that is cancelled ends the engine; a server that does not start would not start again.
            if not isinstance(error, Exception) or isinstance(error, ReplicaLostError):
                self._fail(failed)
            else:
                await self._bring_all(patient=True)
        except EngineError as second:
            self._fail(f"{failed}; and version {self.version} could not be given back: {second}")
            await self._every(Replica.silence)
        finally:
            self._going_back = False

    async def _bring_all(self, *, patient: bool = False, rounds: int = 6) -> None:
        """See to it that every replica answers with the current weights.

        One that has to be started is not waited for, unless ``patient`` or no other one is there. Where none answers
        its probe, and none wrongly, all are asked again, in so many ``rounds`` at most.
        """
        self._asleep = False
        tasks = {asyncio.create_task(self._bring(each)): each for each in self._replicas if not each.drained}
        waiting = set(tasks)
        while waiting:
            ready = any(task.done() and not task.exception() for task in tasks)
            if ready and not patient and all(tasks[task].starting for task in waiting):
                break
            _, waiting = await asyncio.wait(waiting, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.add_done_callback(partial(self._note, tasks[task]))
        errors = {error: each for task, each in tasks.items() if task not in waiting and (error := task.exception())}
        severe = [error for error in errors if not isinstance(error, ReplicaLostError | UnansweredProbeError)]
        if errors and (severe or patient or len(errors) == len(tasks)):
            if rounds > 1 and all(isinstance(error, UnansweredProbeError) for error in errors):
                await asyncio.sleep(_ROUND_S)
                await self._bring_all(patient=patient, rounds=rounds - 1)
                return
            raise (severe or list(errors))[0]
        for error, replica in errors.items():
            _log.warning("an engine goes on without a server: %s", error)
            if isinstance(error, UnansweredProbeError):
                self._see_to(replica)

    async def _bring(self, replica: Replica) -> None:
        """Let requests to a replica wait until it runs and has the current weights."""
        self._router.shut(replica.lane)
        await replica.bring(lambda: self._sent, paused=lambda: self._paused)
        if not (replica.drained or self._rests(replica)):
            self._router.open(replica.lane)

    def _see_to(self, replica: Replica) -> None:
        """Something went wrong at a replica: bring it back. One task does it for all requests."""
        if replica.drained or self._rests(replica) or self._going_back:
            return  # a restore, an update or a wake brings it back
        if replica.revival is None or replica.revival.done():
            replica.revival = asyncio.create_task(self._revive(replica))

    async def _revive(self, replica: Replica) -> None:
        pause_s = 0.05
        while not self._problem:
            try:
                await self._bring(replica)
                return
            except ServerFaultError:
                await replica.silence(paused=self._paused)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except Exception as error:  # nobody else would hear of it
                if self._going_back:
                    return
                others = (each for each in self._replicas if each is not replica)
                if not isinstance(error, ReplicaLostError) or not any(each.may_answer for each in others):
                    self._fail(f"the engine gave up: {error}")
                else:
                    _log.warning("an engine's server is lost: %s", error)
                return

    def _note(self, replica: Replica, task: asyncio.Task[None]) -> None:
        """A replica that had to be started during an update is there, or is not."""
        if not task.cancelled() and task.exception() is not None:
            self._see_to(replica)

    def _fail(self, problem: str) -> None:
        """Answer nothing any more, until an update succeeds."""
        self._problem = problem
        self._router.dismiss()

    async def _sleep(self) -> None:
        self._asleep = True
        for replica in self._resting:
            if replica.revival is not None:
                replica.revival.cancel()
            self._router.shut(replica.lane)
        if self.capabilities.answers_asleep:
            await self._finish_running(self._resting)
        try:
            await asyncio.gather(*(replica.sleep() for replica in self._resting if not replica.drained))
        except EngineError:
            with contextlib.suppress(EngineError):
                await self._wake()
            raise

    async def _wake(self) -> None:
        try:
            await self._bring_all(patient=True)
        except EngineError as error:
            self._fail(f"the engine gave up: {error}")
            raise

    async def _drain(self, replica: Replica) -> None:
        if replica.revival is not None:
            replica.revival.cancel()
        self._router.shut(replica.lane)
        await self._finish_running([replica])
        replica.server.stop()

    @staticmethod
    async def _finish_running(replicas: Sequence[Replica]) -> None:
        """Wait for the requests at ``replicas``, which all have deadlines."""
        while any(replica.lane.running for replica in replicas):
            await asyncio.sleep(0.02)

    def _rests(self, replica: Replica) -> bool:
        return self._asleep and replica in self._resting

    async def _every(self, act: Callable[[Replica], Awaitable[T]]) -> list[T]:
        return await asyncio.gather(*(act(each) for each in self._replicas if not each.drained))

    async def _follow(self, replica: Replica) -> None:
        """Let as many requests in as there is memory for, again and again, and see to a replica that hangs."""
        while True:
            await asyncio.sleep(_LOAD_EVERY_S)
            if replica.lane.open and replica.lane.running:
                if await replica.follow_load():
                    self._router.fill(replica.lane)
                else:
                    self._see_to(replica)

    # -- small things ------------------------------------------------------------------------------------------------

    def _read(self, source: Iterable[tuple[str, torch.Tensor]], version: int, before: Sent | None = None) -> Sent:
        """The weights of ``source``, and what a server needs of them that has those of ``before``."""
        dialect, folder = self._dialect, self._settings.weights_folder
        sent = partial(Sent, version=version, owner=self._owner, update=next(self._updates))
        with contextlib.ExitStack() as opened:

            def read(source: Iterable[tuple[str, torch.Tensor]], **how: Any) -> SentWeights:
                dtype = getattr(torch, self._settings.dtype)
                return opened.enter_context(contextlib.closing(SentWeights(self._skeleton, source, dtype=dtype, **how)))

            if dialect.merges_adapters and isinstance(source, Adapted):
                key, base = source.key(), before.weights.base if before else None
                if base is None or base.base_key != key:
                    base = read(source.bases(), folder=folder, use="keep", base_key=key)
                found = sent(read(source.adapters(), folder=folder, use="adapt", base=base))
            elif dialect.sends_changes:
                weights = read(source, use="keep")
                whole = read(weights.read(), folder=folder, use="keep", live=True) if folder else None
                found = sent(weights, whole=whole)
                if before is not None and before.weights.base is None:
                    changed = read(changes(before.weights.read(), weights.read()), folder=folder, use="change")
                    found = replace(found, changes=changed, before=before.label)
            else:
                found = sent(read(source, folder=folder, live=self._live))
            opened.pop_all()
        return found

    def _raise_if_unusable(self) -> None:
        if self._closed or self._problem:
            raise EngineError("the engine is closed" if self._closed else self._problem)


def _joined(parts: Sequence[Completion]) -> Completion:
    """One completion of parts that follow each other; the last one says how it ended."""
    if len(parts) == 1:
        return parts[0]
    spans = joined_spans(span for part in parts for span in part.spans)
    return Completion(
        ids=tuple(i for part in parts for i in part.ids),
        logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
        finish=parts[-1].finish,
        weight_version=min((span.version for span in spans), default=parts[-1].weight_version),
        spans=spans,
    )
