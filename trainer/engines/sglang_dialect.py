"""SGLang over HTTP: requests by its native ``/generate``, weights by tensors, by disk or by a broadcast.

Written against 0.5.23. That release says for spans of ids which weights sampled them, so an update keeps the running
requests: they are retracted, their keys and values are forgotten, and what they sampled stays.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import itertools
import math
import os
import pickle
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import torch
from torch.multiprocessing import reductions

from roll_envs.errors import EngineError
from roll_envs.types import Completion, FinishReason, SamplingParams, VersionSpan
from trainer.engines import Capabilities
from trainer.engines.replica import Ask, Dialect, Sent, joined_spans
from trainer.engines.router import Load
from trainer.engines.sent_weights import SentWeights
from trainer.engines.server import ServerFaultError, said
from trainer.engines.sglang import LOADERS, TESTED, SGLangSettings
from trainer.engines.transfer import store_at, together
from trainer.engines.vllm_worker.roll_transfer import c10d

Named = list[tuple[str, torch.Tensor]]

RESERVED_TOKENS = 8
"""SGLang lets a prompt and its answer have 2 tokens less than its context, and a prompt 7 less."""
BUCKET_BYTES = 512 * 2**20
"""Tensors go in buckets of about this size, so that little memory is held twice."""
_FINISH: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
_NO_NUMBER = -1e30
"""SGLang writes the least number of its type where a probability is 0 or not a number."""


class SGLangDialect(Dialect):
    """SGLang 0.5.23's routes."""

    name: ClassVar[str] = "SGLang"
    generate: ClassVar[str] = "/generate"
    # By default /health samples an id, which takes a second, and 20 while the server is paused.
    health: ClassVar[str] = "/model_info"
    continues_aborted: ClassVar[bool] = True

    def __init__(self, settings: SGLangSettings, *, max_tokens: int, names: Mapping[str, str]) -> None:
        """``names`` are the model's weights and what each is sent as: tied ones are the same weight by two names."""
        self._settings, self._max_tokens, self._names = settings, max_tokens, names
        self.merges_adapters = settings.transfer == "tensor" and not settings.urls  # which may lack our loaders
        self.capabilities = Capabilities(
            logprobs=True,
            updates_in_flight=True,
            version_spans=True,
            prefix_cache=True,
            pause=True,
            abort=True,
            sleep=bool(settings.sleepers),
        )
        self._accepted = [*TESTED.values(), *(release for name, release in settings.accept.items() if name in TESTED)]
        self._ranks: dict[Ask, int] = {}
        self._groups: dict[Ask, _Group] = {}
        self._labels: dict[Ask, str] = {}  # of what was sent last

    # -- requests ----------------------------------------------------------------------------------------------------

    def body(self, prompt: Sequence[int], sampling: SamplingParams) -> dict[str, Any]:
        # What SGLang may fill in from the model's folder or its command line is said, so that nothing is truncated.
        parameters: dict[str, Any] = {
            "temperature": sampling.temperature,
            "max_new_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(sampling.stop_ids),
            "ignore_eos": not sampling.stop_ids,  # it ignores stop_token_ids too
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "min_new_tokens": 0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "sampling_seed": None if sampling.seed is None else sampling.seed % 2**63,
        }
        return {"input_ids": list(prompt), "sampling_params": parameters, "return_logprob": True}

    def completion(self, reply: Any, sampling: SamplingParams, sent: Sent) -> Completion:
        try:
            ids, info = tuple(reply["output_ids"]), reply["meta_info"]
            entries = info["output_token_logprobs"]
            if not all(type(i) is int for i in ids) or tuple(i for _, i, _ in entries) != ids:
                raise ValueError("output_ids and the ids of output_token_logprobs differ")
            finish = _finish(info["finish_reason"], ids, sampling, sent)
            spans = _spans(info["weight_versions"], len(ids), sent)
            logprobs = tuple(math.nan if value is None else float(value) for value, _, _ in entries)
            if not all(_NO_NUMBER < logprob <= 1e-3 for logprob in logprobs):
                raise _not_finite(sent)
            oldest = min((span.version for span in spans), default=sent.version)
            return Completion(ids=ids, logprobs=logprobs, finish=finish, weight_version=oldest, spans=spans)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ServerFaultError(
                f"an answer of SGLang is not what its route gives ({type(error).__name__}: {error}): {str(reply)[:200]}"
            ) from error

    # -- the server --------------------------------------------------------------------------------------------------

    async def label(self, ask: Ask) -> Any:
        await self._check(ask)
        label = said(await ask("/model_info", method="GET"), "weight_version", "/model_info")
        if label != self._labels.get(ask):
            self._groups.pop(ask, None)  # it was started again, and is in no group
        return label

    async def _check(self, ask: Ask) -> None:
        """Raise :class:`EngineError` for a server that this dialect cannot use."""
        found = await ask("/server_info", method="GET")
        try:
            release, context, self._ranks[ask] = found["version"], found["context_length"], found["tp_size"]
            cut = [name for name in ("dp_size", "pp_size") if found[name] != 1]
        except (KeyError, TypeError) as error:
            raise ServerFaultError(f"/server_info is not what SGLang answers: {str(found)[:200]}") from error
        problems = []
        if release not in self._accepted:
            problems.append(
                f"it is SGLang {release}, and {' or '.join(self._accepted)} was tested; install the tested release, "
                f"or run with it all the same: engine.accept={{sglang: {release}}}"
            )
        if context is not None and context < self._max_tokens + RESERVED_TOKENS:
            problems.append(
                f"its context has {context} tokens, and engine.max_tokens {self._max_tokens} needs {RESERVED_TOKENS} "
                f"more than that; start it with --context-length {self._max_tokens + RESERVED_TOKENS}"
            )
        if cut:
            problems.append(f"weights reach tensor-parallel ranks only, and its {' and '.join(cut)} are more than 1")
        if problems:
            raise EngineError("the SGLang server cannot be used: " + "; ".join(problems))

    async def pause(self, ask: Ask) -> None:
        # Retracted requests hold no keys and values, so that these can be forgotten.
        await ask("/pause_generation", {"mode": "retract"})

    async def resume(self, ask: Ask) -> None:
        await ask("/continue_generation", {})

    async def abort(self, ask: Ask) -> None:
        await ask("/abort_request", {"abort_all": True}, form="text")

    async def load(self, ask: Ask) -> Load | None:
        reply = await ask("/v1/loads?include=core", method="GET")
        try:
            load = reply["loads"][0]
            return Load(float(load["token_usage"]), int(load["num_waiting_reqs"]), 0)
        except (KeyError, IndexError, TypeError, ValueError):
            return None

    async def sleep(self, ask: Ask) -> None:
        """Give back the memory of weights, keys and values, and keep the requests."""
        await self.pause(ask)  # SGLang's scheduler fails where requests run
        await ask("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})

    async def wake(self, ask: Ask, what: Literal["weights", "kv_cache"]) -> None:
        """Take the memory of one of them again. That of weights comes first, and has none in it until :meth:`send`."""
        await ask("/resume_memory_occupation", {"tags": [what]})

    # -- weights -----------------------------------------------------------------------------------------------------

    async def send(self, ask: Ask, sent: Sent, label: str | None) -> None:
        if self._settings.transfer == "disk":
            await self._send_by_disk(ask, sent)
        else:
            await self._send_in_buckets(ask, sent, sent.since(label))
        self._labels[ask] = sent.label

    async def _send_in_buckets(self, ask: Ask, sent: Sent, parts: Sequence[SentWeights]) -> None:
        await self._begin(ask)
        for part in parts:
            for bucket, ends in _buckets((self._names.get(name, name), tensor) for name, tensor in part.read()):
                # The version and the cache change with the last one.
                last = ends and part is parts[-1]
                request: dict[str, Any] = {"load_format": "flattened_bucket", "flush_cache": last}
                request |= {"weight_version": sent.label} if last else {}
                if part.use != "load":
                    request["load_format"] = LOADERS["load" if last else part.use]
                if self._settings.transfer == "tensor":
                    await self._send_by_memory(ask, bucket, request)
                else:
                    await self._send_by_broadcast(ask, bucket, request)
        await _update(ask, "/end_weight_update", {})

    async def _begin(self, ask: Ask) -> None:
        try:
            await _update(ask, "/begin_weight_update", {})
        except ServerFaultError:
            raise
        except EngineError:  # an update that failed, or another trainer's, was left open
            await _update(ask, "/end_weight_update", {})
            await _update(ask, "/begin_weight_update", {})

    async def undo(self, ask: Ask) -> None:
        for path in ("/end_weight_update", "/continue_generation"):
            with contextlib.suppress(EngineError):
                await ask(path, {})

    async def _send_by_memory(self, ask: Ask, bucket: Named, request: dict[str, Any]) -> None:
        """Let the server map the tensors: by CUDA's handles on a GPU that both see, else by files in memory."""
        shared = self._settings.gpus is None and not self._settings.urls
        flat, places = await asyncio.to_thread(_flattened, bucket, _device() if shared else torch.device("cpu"))
        room = shutil.disk_usage("/dev/shm").free
        if not flat.is_cuda and room < flat.nbytes:
            raise EngineError(
                f"/dev/shm has room for {room >> 20} MiB, and weights need {flat.nbytes >> 20} at a time; make it "
                "larger (Docker: --shm-size), or take engine.transfer disk"
            )
        content: Any = {"flattened_tensor": flat, "metadata": places}
        if request["load_format"] in LOADERS.values():
            content = [(p.name, flat[p.start_idx : p.end_idx].view(p.dtype).view(p.shape)) for p in places]
        # A handle can be taken once, so each rank gets one of its own.
        payloads = [base64.b64encode(_pickled(content)).decode() for _ in range(self._ranks[ask])]
        await _update(ask, "/update_weights_from_tensor", {"serialized_named_tensors": payloads, **request})

    async def _send_by_disk(self, ask: Ask, sent: Sent) -> None:
        from safetensors.torch import save_file

        weights = {self._names.get(name, name): tensor for name, tensor in sent.weights.read()}
        with tempfile.TemporaryDirectory(dir=self._settings.weights_folder, prefix="roll-weights-") as folder:
            os.chmod(folder, 0o755)  # the server may be another user's
            await asyncio.to_thread(save_file, weights, os.path.join(folder, "model.safetensors"))
            request = {"model_path": folder, "load_format": "safetensors", "weight_version": sent.label}
            await _update(ask, "/update_weights_from_disk", request)

    async def _send_by_broadcast(self, ask: Ask, bucket: Named, request: dict[str, Any]) -> None:
        group = self._groups.get(ask) or await self._join(ask)
        flat, places = await asyncio.to_thread(_flattened, bucket, _device())
        request |= {
            "names": [place.name for place in places],
            "dtypes": [str(place.dtype).removeprefix("torch.") for place in places],
            "shapes": [list(place.shape) for place in places],
            "group_name": group.name,
        }
        asking = _update(ask, "/update_weights_from_distributed", request)
        try:
            await together(
                asking, partial(group.broadcast, flat), "take the weights", self._settings.transfer_timeout_s
            )
        except BaseException:
            self._groups.pop(ask).abort()
            raise

    async def _join(self, ask: Ask) -> _Group:
        """Make a process group of the trainer and the ranks of one server."""
        name = f"roll-{uuid.uuid4().hex}"  # the server refuses one that it has had, also from another trainer
        group = _Group(name, self._ranks[ask] + 1, self._settings)
        request = {
            "master_address": self._settings.transfer_address,
            "master_port": group.port,
            "rank_offset": 1,
            "world_size": group.size,
            "group_name": name,
            "backend": group.backend,
        }
        asking = _update(ask, "/init_weights_update_group", request)
        what = f"join the trainer at {self._settings.transfer_address} (engine.transfer_address)"
        try:
            await together(asking, group.join, what, self._settings.transfer_timeout_s)
        except BaseException:
            group.abort()
            raise
        self._groups[ask] = group
        return group


async def _update(ask: Ask, path: str, request: dict[str, Any]) -> None:
    """Ask a route for weights, which says whether it did what it was asked."""
    reply = await ask(path, request)
    if not isinstance(reply, dict) or reply.get("success") is not True:
        raise ServerFaultError(f"{path} did not succeed: {str(reply)[:300]}")


def _not_finite(sent: Sent) -> EngineError:
    return EngineError(f"the model's logits are not finite (weight version {sent.version})")


def _finish(reason: Any, ids: tuple[int, ...], sampling: SamplingParams, sent: Sent) -> FinishReason:
    """Why an answer ended. Raises ValueError where that contradicts the ids."""
    finish = _FINISH[reason["type"]]
    if finish == "stop" and isinstance(reason["matched"], str):  # "NaN happened"
        raise _not_finite(sent)
    if finish == "stop" and ids and reason["matched"] == ids[-1] and ids[-1] not in sampling.stop_ids:
        finish = "abort"  # by an id of the model's folder: the rest is asked for
    whole = {"stop": bool(ids) and ids[-1] in sampling.stop_ids, "length": len(ids) == sampling.max_new_tokens}
    if not whole.get(finish, True) or len(ids) > sampling.max_new_tokens:
        raise ValueError(f"{len(ids)} ids do not end with {finish!r}")
    return finish


def _spans(found: Any, count: int, sent: Sent) -> tuple[VersionSpan, ...]:
    """Which version sampled which of ``count`` ids. Raises ValueError where they do not follow each other."""
    spans: list[VersionSpan] = []
    end = 0
    for span in found if count else ():
        if span["start"] != end or type(span["end"]) is not int:
            raise ValueError(f"weight_versions have a gap at {end}")
        spans.append(VersionSpan(sent.version_of(span["version"]), span["end"] - end))
        end = span["end"]
    if end != count:
        raise ValueError(f"weight_versions cover {end} of {count} ids")
    return joined_spans(spans)


# -- tensors -----------------------------------------------------------------------------------------------------------


def _buckets(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[Named, bool]]:
    """Parts of about ``BUCKET_BYTES``, and whether each is the last. No type in one is wider than the one before, so
    that each tensor begins at a multiple of its width."""
    bucket: Named = []
    for name, tensor in weights:
        size = sum(each.nbytes for _, each in bucket)
        if bucket and (size + tensor.nbytes > BUCKET_BYTES or tensor.element_size() > bucket[-1][1].element_size()):
            yield bucket, False
            bucket = []
        bucket.append((name, tensor))
    yield bucket, True


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _flattened(bucket: Named, device: torch.device) -> tuple[torch.Tensor, list[SimpleNamespace]]:
    """The bytes of all tensors one after the other, and where each lies: SGLang's format ``flattened_bucket``."""
    flat = torch.cat([tensor.reshape(-1).view(torch.uint8) for _, tensor in bucket]).to(device)
    ends = list(itertools.accumulate(tensor.nbytes for _, tensor in bucket))
    places = [
        SimpleNamespace(
            name=name, shape=tensor.shape, dtype=tensor.dtype, start_idx=start, end_idx=end, numel=end - start
        )
        for (name, tensor), start, end in zip(bucket, [0, *ends], ends, strict=False)
    ]
    return flat, places


class _Pickler(pickle.Pickler):
    """Writes tensors as handles that another process on this machine opens, with what SGLang's unpickler allows."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            rebuild, arguments = reductions.reduce_tensor(obj)  # type: ignore[no-untyped-call]
            if obj.is_cuda:  # SGLang finds the device by its name; numbers may differ between processes
                name = str(torch.cuda.get_device_properties(obj.device).uuid)
                arguments = (*arguments[:6], name, *arguments[7:])
            return rebuild, arguments
        if isinstance(obj, torch.storage.TypedStorage):
            return reductions.reduce_typed_storage(obj)  # type: ignore[no-untyped-call]
        if isinstance(obj, torch.UntypedStorage):
            # By name: a file descriptor can only be handed to children of this process.
            place = obj._share_filename_cpu_()
            obj._shared_incref()  # type: ignore[no-untyped-call]
            return reductions.rebuild_storage_filename, (type(obj), *place)
        return NotImplemented


def _pickled(content: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(content)
    return buffer.getvalue()


# -- broadcast ---------------------------------------------------------------------------------------------------------


class _Group:
    """The trainer's end, rank 0, of a process group with the ranks of one server.

    It is none of torch.distributed's named groups, which are the learner's affair. The keys in the store are those of
    the group that SGLang makes of the same name.
    """

    def __init__(self, name: str, size: int, settings: SGLangSettings) -> None:
        self.name, self.size, self.device = name, size, _device()
        self._limit = timedelta(seconds=settings.transfer_timeout_s)
        self.backend = "nccl" if self.device.type == "cuda" else "cpu:gloo"
        self._group: Any = None
        self._address = settings.transfer_address
        self._store = store_at(self._address, size, settings.transfer_timeout_s)
        self.port: int = self._store.port

    def join(self) -> None:
        """Wait until the server is there as well."""
        store = c10d.TCPStore(self._address, self.port, self.size, False, self._limit, wait_for_workers=False)
        for prefix in (self.name, f"{self.name}/", f"{self.device.type}/"):
            store = c10d.PrefixStore(prefix, store)
        kind = c10d.ProcessGroupNCCL if self.backend == "nccl" else c10d.ProcessGroupGloo
        self._group = kind(store, 0, self.size, self._limit)

    def broadcast(self, flat: torch.Tensor) -> None:
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([flat], options).wait(self._limit)
        if flat.is_cuda:
            torch.cuda.synchronize(flat.device)

    def abort(self) -> None:
        """Let go of it. Joining ends; a broadcast does on a GPU, and on a CPU at its deadline."""
        self._store = None
        if self._group is not None and self.backend == "nccl":
            threading.Thread(target=self._group.abort, daemon=True).start()  # may take a while
