"""What SGLang 0.5.23's routes take, field by field, as far as an engine here may use it.

By ``sglang/srt/managers/io_struct.py``, ``sglang/api/v1/api_types.py`` and ``sglang/srt/sampling/sampling_params.py``.

Stricter than SGLang in one thing: a field that a route does not know is refused, where SGLang ignores it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Sampling(Body):
    max_new_tokens: int | None = 128
    stop_token_ids: list[int] | None = None
    temperature: float | None = 1.0
    top_p: float | None = 1.0
    top_k: int | None = -1
    min_p: float | None = 0.0
    min_new_tokens: int | None = 0
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    repetition_penalty: float | None = 1.0
    ignore_eos: bool | None = False
    sampling_seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    skip_special_tokens: bool | None = True
    no_stop_trim: bool | None = False
    n: int | None = 1


class Generate(Body):
    rid: str | None = None
    input_ids: list[int]
    sampling_params: Sampling = Sampling()
    return_logprob: bool | None = False
    logprob_start_len: int | None = -1
    top_logprobs_num: int | None = 0
    stream: bool | None = False
    session_id: str | None = None
    routing_key: str | None = None


class Pause(Body):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class Continue(Body):
    torch_empty_cache: bool = True


class Abort(Body):
    rid: str | None = None
    abort_all: bool = False


class Begin(Body):
    selector: Literal["target", "draft", "all"] = "all"


class End(Body):
    pass


class Update(Body):
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    torch_empty_cache: bool = False
    load_format: str | None = None


class FromDisk(Update):
    model_path: str
    is_async: bool = False
    keep_pause: bool = False
    recapture_cuda_graph: bool = False
    token_step: int = 0


class FromTensor(Update):
    serialized_named_tensors: list[str]
    selector: Literal["target", "draft", "all"] = "all"


class FromDistributed(Update):
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    selector: Literal["target", "draft", "all"] = "all"


class InitGroup(Body):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class Memory(Body):
    tags: list[str] | None = None
