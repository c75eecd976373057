"""The scheduler process of SGLang 0.5.23, for a Hugging Face model on the CPU: requests, pauses, weights, memory.

By its source, below ``sglang/srt``: ``managers/scheduler.py``, ``managers/schedule_batch.py`` (what ends an answer),
``utils/weight_versions.py``, ``managers/scheduler_components/weight_updater.py``,
``model_executor/model_runner_components/weight_updater.py``, ``weight_sync/tensor_bucket.py``, ``models/llama.py``
(what is loaded), and ``utils/common.py`` (the restricted unpickler, process groups).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import io
import math
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fake_sglang_bodies import FromDisk, FromDistributed, FromTensor, InitGroup, Sampling, Update
from safetensors.torch import load_file

FORCED_STREAM_INTERVAL = 50
"""Ids of a running request reach the HTTP process in steps of so many; an abort in the queue returns what is there."""


# -- tensors -----------------------------------------------------------------------------------------------------------

ALLOWED = {
    "builtins": "bool bytearray bytes complex dict float frozenset int list range set slice str tuple",
    "collections": "OrderedDict defaultdict deque Counter",
    "copyreg": "__newobj__ __newobj_ex__",
    "functools": "partial",
    "itertools": "chain repeat",
    "multiprocessing.reduction": "_rebuild_partial _rebuild_socket",
    "multiprocessing.resource_sharer": "DupFd",
    "types": "SimpleNamespace",
    "_codecs": "encode",
    "torch": "Tensor BFloat16Tensor ByteTensor FloatTensor HalfTensor Size device dtype bfloat16 bool float16 float32 "
    "float64 half int8 int16 int32 int64 uint8 UntypedStorage ByteStorage FloatStorage BFloat16Storage HalfStorage",
    "torch.nn.parameter": "Parameter",
    "torch.serialization": "_get_layout",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch.storage": "UntypedStorage _UntypedStorage TypedStorage",
    "torch.multiprocessing.reductions": "rebuild_tensor rebuild_meta_tensor rebuild_cuda_tensor rebuild_storage_fd "
    "rebuild_storage_filename rebuild_storage_empty rebuild_typed_storage rebuild_typed_storage_child",
    "sglang.srt.weight_sync.tensor_bucket": "FlattenedTensorMetadata FlattenedTensorBucket",
}
"""Globals that ``SafeUnpickler`` lets pass, without those for sparse, quantised and other devices' tensors."""


class SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: torch.load(io.BytesIO(data), weights_only=True)
        if name in ALLOWED.get(module, "").split():
            return super().find_class(module, name)
        raise RuntimeError(f"Blocked unsafe global ({module}.{name}) during pickle deserialization")


def unflattened(bucket: Any) -> list[tuple[str, torch.Tensor]]:
    """``_update_weights_from_flattened_bucket`` and ``FlattenedTensorBucket.reconstruct_tensors``."""
    flat = bucket["flattened_tensor"]
    found = []
    for meta in bucket["metadata"]:
        part = flat[meta.start_idx : meta.end_idx]
        assert meta.numel == part.numel(), "numel counts the bytes of a flattened tensor"
        found.append((meta.name, part.view(meta.dtype).reshape(meta.shape)))
    return found


def join_group(body: InitGroup, timeout_s: float) -> Any:
    """``init_custom_process_group`` of ``utils/common.py``, with rank offset + 0."""
    from torch.distributed import distributed_c10d as c10d

    backend = c10d.Backend(body.backend)
    address = f"tcp://{body.master_address}:{body.master_port}"
    timeout = timedelta(seconds=timeout_s)
    store, rank, world_size = next(
        c10d.rendezvous(address, body.rank_offset, body.world_size, timeout=timeout)  # type: ignore[no-untyped-call]
    )
    store.set_timeout(timeout)
    group, _ = c10d._new_process_group_helper(  # type: ignore[no-untyped-call]
        world_size,
        rank,
        [],
        backend,
        c10d.PrefixStore(body.group_name, store),
        group_name=body.group_name,  # type: ignore[arg-type]
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {i: i for i in range(world_size)}
    return group


# -- requests ----------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """An assertion of the scheduler's process, which ends the server."""


@dataclass(eq=False)
class Request:
    rid: str
    prompt: list[int]
    sampling: Sampling
    reply: asyncio.Future[dict[str, Any]]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)
    """Version, and how many ids there were when it ended."""
    to_finish: bool = False
    retractions: int = 0

    @property
    def greedy(self) -> bool:
        return (self.sampling.temperature or 0) < 1e-6


def spans(events: Iterable[tuple[str, int]], version: str, count: int) -> list[dict[str, Any]]:
    """``compute_weight_version_spans`` and ``add_weight_versions_to_meta_info``."""
    found: list[dict[str, Any]] = []
    for sampled_by, end in [*events, (version, count)]:
        end = min(end, count)
        if found and end <= found[-1]["end"]:
            continue
        if found and sampled_by == found[-1]["version"]:
            found[-1]["end"] = end
            continue
        found.append({"version": sampled_by, "start": found[-1]["end"] if found else 0, "end": end})
    return found


class Scheduler:
    """Requests, weights, pauses: what is in SGLang's scheduler process."""

    def __init__(
        self,
        network: Any,
        *,
        context: int,
        running: int = 64,
        memory_saver: bool = False,
        loaders: Sequence[str] = (),
        quantized: bool = False,
    ) -> None:
        self.quantized = quantized
        self.network = network.eval().requires_grad_(False)
        self.limit, self.most, self.memory_saver = min(context - 1, 4095), running, memory_saver
        self.loaders = loaders
        self.version, self.session, self.paused, self.updates = "default", False, False, 0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.released: set[str] = set()
        self.groups: dict[str, Any] = {}
        self.cache: dict[tuple[int, ...], torch.Tensor] = {}
        """What old weights computed for a prompt, until it is flushed."""
        self.generator = torch.Generator().manual_seed(0)
        self.step_s = 0.0
        self.steps = 0
        self.bad: dict[str, Any] = {}

    def step(self) -> None:
        """One forward pass: every running request gets an id."""
        if self.released:
            raise Died(f"the memory of {sorted(self.released)} was released")
        while self.waiting and len(self.running) < self.most:
            self.running.append(self.waiting.pop(0))
        if not self.running:
            return
        self.steps += 1
        rows = [request.prompt + request.ids for request in self.running]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        logits = self.network(input_ids=ids, use_cache=False).logits
        for i, request in enumerate(list(self.running)):
            last = logits[i, len(rows[i]) - 1].float()
            if not request.ids:
                last = self.cache.setdefault(tuple(request.prompt), last)
            self._sample(request, last)

    def _sample(self, request: Request, logits: torch.Tensor) -> None:
        # A greedy request samples at temperature 1 from the likeliest id.
        logp = (logits / (1.0 if request.greedy else request.sampling.temperature or 1.0)).log_softmax(-1)
        if request.greedy:
            sampled = int(logp.argmax())
        else:
            sampled = int(torch.multinomial(logp.exp(), 1, generator=self.generator))
        request.ids.append(sampled)
        told = logits.log_softmax(-1) if self.bad.get("before_temperature") else logp
        request.logprobs.append(float(told[sampled]) + self.bad.get("shift", 0.0))
        most = min(request.sampling.max_new_tokens or 0, self.limit - len(request.prompt) - 1)
        stops = set(request.sampling.stop_token_ids or ()) | self.eos_ids
        if request.to_finish:
            self._finish(request, {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None})
        elif sampled in stops and not request.sampling.ignore_eos:  # which stop_token_ids are subject to, too
            self._finish(request, {"type": "stop", "matched": sampled})
        elif len(request.ids) >= most:
            self._finish(request, {"type": "length", "length": most})

    @property
    def eos_ids(self) -> set[int]:
        eos = self.network.config.eos_token_id
        return set() if eos is None else {eos} if isinstance(eos, int) else set(eos)

    def _finish(self, request: Request, reason: dict[str, Any], kept: int | None = None) -> None:
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        ids = request.ids[:kept]
        found = spans(request.events, self.version, len(ids))
        if not request.reply.done():
            entries = [[logp, i, None] for logp, i in zip(request.logprobs, ids, strict=False)]
            request.reply.set_result(
                {
                    "output_ids": ids,
                    "meta_info": {
                        "id": request.rid,
                        "finish_reason": reason,
                        "prompt_tokens": len(request.prompt),
                        "completion_tokens": len(ids),
                        "cached_tokens": 0,
                        "num_retractions": request.retractions,
                        "input_token_logprobs": [],
                        "output_token_logprobs": entries,
                        "output_token_logprobs_length": len(entries),
                        "weight_versions": found,
                        "weight_version": found[-1]["version"],
                    },
                }
            )

    def drop(self, request: Request) -> None:
        """The client went away."""
        for queue in (self.running, self.waiting):
            with contextlib.suppress(ValueError):
                queue.remove(request)

    def retract(self) -> None:
        for request in self.running:
            request.retractions += 1
        self.waiting = self.waiting + self.running
        self.running = []

    def abort(self, rid: str, everything: bool) -> None:
        for request in list(self.waiting):
            if everything or request.rid.startswith(rid):
                kept = len(request.ids) // FORCED_STREAM_INTERVAL * FORCED_STREAM_INTERVAL
                self._finish(request, {"type": "abort", "message": "Abort in waiting queue"}, kept)
        for request in self.running:
            request.to_finish |= everything or request.rid.startswith(rid)

    def flush(self) -> bool:
        """Forget what was computed. Refused while requests run, or wait without a pause."""
        if self.running or (self.waiting and not self.paused):
            return False
        if not self.bad.get("keeps_cache"):
            self.cache.clear()
        return True

    # -- weights

    def begin(self) -> tuple[bool, str]:
        if self.session:
            return False, "a weight-update session is already open; call end_weight_update() first"
        self.session = True
        return True, "Success"

    def end(self) -> tuple[bool, str]:
        if not self.session:
            return False, "no weight-update session is open; call begin_weight_update() first"
        self.session = False
        self.updates += 1
        return True, "Success"

    def from_tensor(self, body: FromTensor, ranks: int) -> tuple[bool, str]:
        if not self.session:
            return False, "update_weights_from_tensor must run between begin_weight_update() and end_weight_update()"
        try:
            data = [base64.b64decode(text, validate=True) for text in body.serialized_named_tensors]
            assert len(data) == ranks, "one payload for each rank"
            found = SafeUnpickler(io.BytesIO(data[0])).load()
            if body.load_format in self.loaders:
                module, _, name = body.load_format.rpartition(".")
                model = SimpleNamespace(parameters=self.network.parameters, load_weights=self.load)
                getattr(importlib.import_module(module), name)(model, found)
            elif body.load_format in (None, "flattened_bucket"):
                self.load(unflattened(found) if body.load_format else found)
            else:
                raise NotImplementedError(f"Unknown load_format={body.load_format}")
        except Exception as error:  # which nothing catches in the scheduler
            raise Died(repr(error)) from error
        return self.updated(body)

    def from_disk(self, body: FromDisk, load_format: str) -> tuple[bool, str]:
        if body.load_format not in ("auto", "safetensors", None) or (
            body.load_format is None and load_format == "dummy"
        ):
            return False, f"Failed to get model loader: {body.load_format or load_format}."
        files = sorted(Path(body.model_path).glob("*.safetensors"))
        if not files:
            return False, f"Failed to get weights iterator: Cannot find any model weights with `{body.model_path}`."
        for file in files:
            self.load(load_file(file).items())
        self.updates += 1
        return self.updated(body)

    def receive(self, body: FromDistributed) -> list[tuple[str, torch.Tensor]]:
        """One broadcast, and the tensors in it."""
        assert body.group_name in self.groups, f"Group {body.group_name} not in {[*self.groups]}."
        assert body.load_format == "flattened_bucket"
        offset, places = 0, []
        for name, dtype, shape in zip(body.names, body.dtypes, body.shapes, strict=True):
            kind = getattr(torch, dtype)
            assert offset % kind.itemsize == 0, f"Unaligned received tensor {name}: byte offset {offset}"
            end = offset + math.prod(shape) * kind.itemsize
            places.append((name, kind, shape, offset, end))
            offset = end
        flat = torch.empty(offset, dtype=torch.uint8)
        options = torch.distributed.BroadcastOptions()
        options.rootRank = 0
        self.groups[body.group_name].broadcast([flat], options).wait()
        return [(name, flat[start:end].view(kind).reshape(shape)) for name, kind, shape, start, end in places]

    def from_distributed(self, body: FromDistributed, weights: list[tuple[str, torch.Tensor]]) -> tuple[bool, str]:
        self.load(weights)
        return self.updated(body)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """As ``load_weights`` of SGLang's models: other names are ignored, and so is the head of tied embeddings."""
        if "weights" in self.released:
            raise Died("weights were written while their memory was released")
        own = dict(self.network.named_parameters())
        tied = self.network.config.tie_word_embeddings
        for name, tensor in weights:
            if name in own and not (tied and name == "lm_head.weight"):
                assert own[name].shape == tensor.shape
                own[name].data.copy_(self.rounded(tensor) if self.quantized and "_proj.weight" in name else tensor)

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        """As ``flash_rl`` quantises a matrix [out, in]: e4m3 with a scale for each output."""
        scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-10) / 448
        return (weight / scale).to(torch.float8_e4m3fn).float() * scale

    def updated(self, body: Update) -> tuple[bool, str]:
        """The end of each update: the version, and the cache."""
        if body.weight_version not in (None, self.version):
            for request in self.waiting + self.running:
                if request.ids:
                    request.events.append((self.version, len(request.ids)))
            self.version = body.weight_version or self.version
        if body.flush_cache and not self.flush():
            return False, (
                "Weights were updated, but the cache was not flushed because requests are still running or queued. "
                "Retract or finish them, then call /flush_cache."
            )
        return True, "Success"

    # -- memory

    def release(self, tags: list[str]) -> None:
        if self.running or (self.waiting and not self.paused):
            raise Died("release_memory_occupation should be called only when server is idle.")
        self.released |= set(tags)
        if "kv_cache" in tags:
            self.flush()
        if "weights" in tags and self.memory_saver:  # without a backup their content is lost
            for parameter in self.network.parameters():
                parameter.data.fill_(math.nan)

    def resume(self, tags: list[str]) -> None:
        if not set(tags) <= self.released:
            raise Died(f"KeyError: {sorted(set(tags) - self.released)}")
        self.released -= set(tags)


ALL_TAGS = ["kv_cache", "weights", "cuda_graph"]
