"""vLLM over HTTP: requests by its token-in-token-out route, weights by its weight-transfer API."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Literal

from roll_envs.errors import EngineError
from roll_envs.types import Completion, FinishReason, SamplingParams, VersionSpan
from trainer.engines import Capabilities
from trainer.engines.replica import Ask, Dialect, Sent
from trainer.engines.router import Load
from trainer.engines.server import ServerFaultError, said
from trainer.engines.transfer import TRANSPORTS, Transport, TransportOptions

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
_LOAD = {
    "vllm:kv_cache_usage_perc": "memory_used",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_preemptions_total": "preempted",
}


class VLLMDialect(Dialect):
    """vLLM 0.32's routes; those for weights need ``VLLM_SERVER_DEV_MODE=1``."""

    name = "vLLM"
    generate = "/inference/v1/generate"
    merges_adapters = True

    def __init__(
        self,
        transport: Transport = TRANSPORTS["shared_memory"],
        options: TransportOptions | None = None,
        *,
        colocated: bool = False,
        deltas: bool = False,
        accepted: Sequence[str] = (),
        max_tokens: int = 0,
    ) -> None:
        """``colocated``: the server shares a device with the learner and sleeps while that learns. ``deltas``: what
        changed in the weights that it has is sent. ``accepted``: the releases that a server may be of, which
        must take ``max_tokens``; none: it is not asked."""
        self._accepted, self._max_tokens = accepted, max_tokens
        self._transport, self._options = transport, options or TransportOptions()
        self.live, self.sends_changes = transport.live and not deltas, deltas
        self.capabilities = Capabilities(
            logprobs=True,
            updates_in_flight=True,
            version_spans=True,
            prefix_cache=True,
            pause=True,
            abort=True,
            sleep=colocated,
        )

    def body(self, prompt: Sequence[int], sampling: SamplingParams) -> dict[str, Any]:
        # What vLLM would fill in from the model's folder is said, so that nothing is truncated.
        parameters: dict[str, Any] = {
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(sampling.stop_ids),
            "ignore_eos": True,  # only the ids above end an answer
            "top_p": 1.0,
            "top_k": 0,
            "logprobs": 0,  # of the sampled ids alone
            "detokenize": False,
            "seed": None if sampling.seed is None else sampling.seed % 2**63,
        }
        return {"token_ids": prompt, "sampling_params": parameters}

    def completion(self, reply: Any, sampling: SamplingParams, sent: Sent) -> Completion:
        try:
            choice = reply["choices"][0]
            ids, finish = tuple(choice["token_ids"] or ()), _FINISH[choice["finish_reason"]]
            content = choice["logprobs"]["content"] or () if ids else ()
            logprobs = tuple(float(each["logprob"]) for each in content)
            if not all(type(i) is int for i in ids) or tuple(each["token_id"] for each in content) != ids:
                raise ValueError("token_ids and the ids of logprobs differ")
            spans = tuple(
                VersionSpan(sent.version_of(span["version"]), span["end"] - span["start"])
                for span in choice["weight_versions"] or ()
            )
            whole = {
                "stop": ids[-1:] != () and ids[-1] in sampling.stop_ids,
                "length": len(ids) == sampling.max_new_tokens,
            }
            if not whole.get(finish, True) or len(ids) > sampling.max_new_tokens or bool(ids) != bool(spans):
                raise ValueError(f"{len(ids)} ids do not end with {finish!r}")
            if not all(-9999.0 < logprob <= 1e-3 for logprob in logprobs):  # vLLM writes -9999 for what is no number
                raise EngineError(f"the model's logits are not finite (weight version {sent.version})")
            oldest = min((span.version for span in spans), default=sent.version)
            return Completion(ids=ids, logprobs=logprobs, finish=finish, weight_version=oldest, spans=spans)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ServerFaultError(
                f"an answer of vLLM is not what its route gives ({type(error).__name__}: {error}): {str(reply)[:200]}"
            ) from error

    async def label(self, ask: Ask) -> Any:
        if self._accepted:
            await self._check(ask)
        return said(await ask("/weight_info", method="GET"), "weight_version", "/weight_info")

    async def _check(self, ask: Ask) -> None:
        """Raise :class:`EngineError` for a server, started by others, that this dialect cannot use."""
        release = str(said(await ask("/version", method="GET"), "version", "/version")).partition("+")[0]
        if release not in self._accepted:
            raise EngineError(
                f"the server's vLLM is {release}, and {' or '.join(self._accepted)} was tested; start it with the "
                f"tested release, or run with it all the same: engine.accept={{vllm: {release}}}"
            )
        for model in said(await ask("/v1/models", method="GET"), "data", "/v1/models"):
            length = said(model, "max_model_len", "/v1/models")
            if length is not None and length < self._max_tokens:
                raise EngineError(
                    f"the server's vLLM takes {length} tokens, and engine.max_tokens is {self._max_tokens}; start it "
                    f"with --max-model-len {self._max_tokens}, or lower engine.max_tokens"
                )

    async def pause(self, ask: Ask) -> None:
        await ask("/pause?mode=keep&clear_cache=false")

    async def send(self, ask: Ask, sent: Sent, label: str | None) -> None:
        for number, weights in enumerate(sent.since(label)):
            async with self._transport.open(ask, weights, self._options) as send:
                if not number:
                    await ask("/start_weight_update")
                await send()
        # Without running requests in it, the reset would leave their blocks, computed by the old weights, to others.
        reset = "/reset_prefix_cache"
        if said(await ask(f"{reset}?reset_running_requests=true"), "success", reset) is not True:
            raise EngineError("vLLM did not reset its prefix cache, which holds what the old weights computed")
        await ask("/finish_weight_update", {"weight_version": sent.label})

    async def resume(self, ask: Ask) -> None:
        await ask("/resume")

    async def undo(self, ask: Ask) -> None:
        for path in ("/finish_weight_update", "/resume"):
            with contextlib.suppress(EngineError):
                await ask(path)

    async def sleep(self, ask: Ask) -> None:
        await ask("/sleep?level=2&mode=keep")  # nothing is worth keeping on the host: new weights follow

    async def wake(self, ask: Ask, what: Literal["weights", "kv_cache"]) -> None:
        await ask(f"/wake_up?tags={what}")

    async def abort(self, ask: Ask) -> None:
        await ask("/abort_requests", {})

    async def load(self, ask: Ask) -> Load | None:
        found = dict.fromkeys(_LOAD.values(), 0.0)
        try:
            for line in (await ask("/metrics", method="GET", form="text")).splitlines():
                name, _, rest = line.partition("{")
                if name in _LOAD:
                    found[_LOAD[name]] += float(rest.rpartition(" ")[2])
            return Load(found["memory_used"], int(found["waiting"]), int(found["preempted"]))
        except ValueError:
            return None
