"""A module whose optimiser's state, gradients and weights ZeRO, of the DeepSpeed library, shares out over the ranks.

What is particular to DeepSpeed is here: its configuration, the micro-batches of a step, gradients as sums, steps that
are refused, and whole tensors put together from the ranks' shares, one at a time. Every method is a collective.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import io
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore

from roll_envs.errors import CheckpointError, ConfigError
from trainer.config import OptimizerConfig
from trainer.data.batches import Batch
from trainer.learner import ZERO_BUCKET, DeepSpeedSettings
from trainer.learner.gradients import Ranks
from trainer.learner.optimizers import TrainedWeight, make_optimizers, resumed_groups, trained_weights
from trainer.learner.snapshot import Keep, kept
from trainer.learner.steps import skeleton_of
from trainer.model.forward import fitting, load_weights

_MOMENTS = ("exp_avg", "exp_avg_sq")


class _VetoedAdamW(torch.optim.AdamW):
    """torch's AdamW, which changes nothing while ``vetoed`` says so.

    ZeRO calls it for each of its flat shares, when it knows the norm of the whole gradient.
    """

    vetoed: Callable[[], bool]

    def step(self, closure: Any = None) -> Any:
        return None if self.vetoed() else super().step(closure)


def check_optimizer(config: OptimizerConfig) -> None:
    """Raises :class:`ConfigError` for an optimiser that needs more of a weight than a flat share of it."""
    made = make_optimizers(config, [TrainedWeight(torch.nn.Parameter(torch.zeros(1, 1)), outer=False)])
    if [type(part) for part in made] != [torch.optim.AdamW]:
        raise ConfigError(
            f"optimizer.name {config.name!r} does not work with learner.backend 'deepspeed', whose ranks step flat "
            "shares of the weights; allowed: 'adamw'. Choose that, or learner.backend 'torch'"
        )


def import_deepspeed(ranks: Ranks, device: torch.device) -> Any:
    """The library, ready for models on ``device`` that all ``ranks`` share.

    Raises :class:`ConfigError` when it is not installed, or torch's process group has other processes than ``ranks``.
    """
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", str(torch.cuda.current_device() if device.type == "cuda" else ranks.rank))
    try:
        with warnings.catch_warnings(action="ignore"):  # of what torch deprecates and DeepSpeed uses
            import deepspeed
    except ImportError as error:
        raise ConfigError(
            "learner.backend 'deepspeed' needs the deepspeed library, which is not installed: "
            "pip install 'roll-envs[deepspeed]'"
        ) from error
    deepspeed.utils.logger.setLevel(logging.ERROR)
    # Collectives through shared memory, which it would compile; they are for inference.
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    # Of its collectives, in each step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    if not distributed.is_initialized():  # one rank, in the process of who asks: a group of its own
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        atexit.register(lambda: distributed.is_initialized() and distributed.destroy_process_group())
    if distributed.get_world_size() != ranks.count:
        raise ConfigError(
            f"learner.backend 'deepspeed' shares a model over all {distributed.get_world_size()} processes of torch's "
            f"default group, and the learner has {ranks.count} ranks; start the ranks in a group of their own"
        )
    return deepspeed


class ShardedModule:
    """A module that DeepSpeed runs; trained where there is an optimiser for it, else frozen (stage 3 alone)."""

    def __init__(
        self,
        module: torch.nn.Module,
        named: torch.nn.Module,
        *,
        settings: DeepSpeedSettings,
        ranks: Ranks,
        device: torch.device,
        optimizer: OptimizerConfig | None = None,
        outside: Iterable[torch.nn.Parameter] = (),
    ) -> None:
        """``module``, which is called with ``batch=``, is taken over: it is run and read through this object alone.
        The weights have the names that they have in ``named``, a part of it or all. Those without memory (on the meta
        device; stage 3 alone) become shares of 0.

        ``optimizer`` trains the weights that need a gradient. ``outside`` are weights that ``module`` itself uses, past
        the layers that they belong to.
        """
        self._deepspeed = import_deepspeed(ranks, device)
        self._named, self._ranks, self._device = named, ranks, device
        self._shapes = skeleton_of(named)  # shares of weights do not have them any more
        self._half = next(named.parameters()).dtype != torch.float32
        self._trained = [p for p in named.parameters() if p.requires_grad] if optimizer is not None else []
        self._optimizer = optimizer
        self._adamw: _VetoedAdamW | None = None
        if optimizer is not None:
            (plain,) = make_optimizers(optimizer, trained_weights(named))
            # The form of the portable state, groups without a weight included.
            self._groups: list[dict[str, Any]] = plain.state_dict()["param_groups"]
            self._order = [p for group in plain.param_groups for p in group["params"]]
            kernels = {"foreach": True, "fused": False}  # the fused one wants counts of steps on the device
            self._adamw = _VetoedAdamW([{**group, **kernels} for group in plain.param_groups if group["params"]])
        numbers = sum(parameter.numel() for parameter in self._trained)
        configured = _configuration(settings, optimizer, half=self._half, numbers=numbers)
        # It imports more, and prints its memory.
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            _share_out_empty(module, self._deepspeed, configured, device)
            if settings.stage == 3:
                for parameter in outside:
                    self._deepspeed.zero.register_external_parameter(module, parameter)
            self._engine, self._zero, *_ = self._deepspeed.initialize(
                model=module, optimizer=self._adamw, config=configured
            )
        self._engine.eval()
        # Its hooks on gradients are in no sight of the garbage collector, and hold everything.
        weakref.finalize(self, self._engine.destroy).atexit = False
        # A list of all modules of stage 3 there ever were, which would keep this one alive.
        stack = sys.modules["deepspeed.runtime.zero.parameter_offload"].FWD_MODULE_STACK
        stack[:] = [other for other in stack if other is not module]
        if self._adamw is not None:
            # All moments are there from the start, so that those of a checkpoint can be written into them.
            for share in self._shares():
                moments = {name: torch.zeros_like(share) for name in _MOMENTS}
                self._adamw.state[share] = {"step": torch.tensor(0.0), **moments}
            if settings.stage < 3:
                self._zero._lazy_init_hp_params_optimizer_state()

    def _shares(self) -> list[torch.Tensor]:
        """This rank's flat float32 shares of the trained weights."""
        assert self._adamw is not None
        found: Any = getattr(self._zero, "fp32_partitioned_groups_flat", None)  # of stage 3
        return list(found or (share for group in self._adamw.param_groups for share in group["params"]))

    def run(self, batches: Sequence[Batch]) -> list[Any]:
        """What the module makes of each of this rank's batches, without gradients."""
        with torch.no_grad():  # not inference mode: gathered weights would keep it
            everything = [*batches, *self._ranks.empty_batches(len(batches))]
            return [self._forward(batch.to(self._device)) for batch in everything][: len(batches)]

    def _forward(self, batch: Batch) -> Any:
        """What the module makes of a batch, which is on its device."""
        offload = getattr(self._zero, "parameter_offload", None)  # of stage 3
        if offload is not None:
            # DeepSpeed fetches weights ahead in the order that it saw before, and forgets it where another comes. Where
            # that is so on one rank only, ranks then wait for each other in different places. So it has no order.
            coordinator = offload.get_param_coordinator()
            if not coordinator.is_invalid_trace():
                coordinator._invalidate_trace()
        return self._engine(batch=batch)

    def add_gradients(self, batches: Sequence[Batch], loss: Callable[[Batch, Any], torch.Tensor]) -> None:
        """Run all micro-batches of a step of this rank forward and backward. ``loss`` makes a scalar of a batch and
        what the module makes of it. Ranks with fewer batches run empty ones, which add exactly 0."""
        empty = self._ranks.empty_batches(len(batches))
        count = len(batches) + len(empty)
        for index, batch in enumerate((*batches, *empty)):
            self._engine.set_gradient_accumulation_boundary(index + 1 == count)
            moved = batch.to(self._device)
            made = loss(moved, self._forward(moved))
            # DeepSpeed takes the mean over the ranks; losses are divided by the denominators of all of them already.
            self._engine.backward(made * self._ranks.count)

    def step(self, lr: float, refuses: Callable[[float], bool]) -> tuple[bool, float]:
        """Whether the step with these gradients was refused, and their norm before it was cut; all gradients are gone
        afterwards.

        ``refuses`` is asked with that norm, infinity where it is not finite. A refused step leaves all as it was.
        """
        assert self._adamw is not None
        zero, verdict = self._zero, list[bool]()

        def vetoed() -> bool:  # does not hold this object: see where it ends
            if not verdict:
                verdict.append(refuses(float(zero._global_grad_norm)))
            return verdict[0]

        self._adamw.vetoed = vetoed
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._engine.step()
        # Where the norm is not finite, DeepSpeed has not asked AdamW for a step, nor let go of all gradients.
        if vetoed():
            gradients = getattr(zero, "averaged_gradients", {})
            gradients.update(dict.fromkeys(gradients))
        return vetoed(), float(zero._global_grad_norm)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and current weights, whole; a weight with several names comes once, by the first."""
        seen: set[int] = set()
        for name, value in self._named.state_dict(keep_vars=True).items():
            if id(value) not in seen:
                seen.add(id(value))
                with self._deepspeed.zero.GatheredParameters(value):
                    yield name, value.detach()

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], source: str) -> None:
        """Take other weights, the same on every rank. Raises :class:`CheckpointError` when they do not fit; some are
        new then."""
        own = self._named.state_dict(keep_vars=True)
        for name, value in fitting(self._shapes, weights, source):
            with self._deepspeed.zero.GatheredParameters(own[name], modifier_rank=0):
                own[name].copy_(value)
        if self._adamw is not None:
            self._zero.refresh_fp32_params()

    def masters(self, keep: Keep | None = None) -> list[torch.Tensor]:
        """The float32 copies of weights in half precision, on the CPU of rank 0 or of the ranks that ``keep`` them;
        none for weights in float32."""
        return self._whole(self._trained, self._deepspeed.utils.safe_get_full_fp32_param, keep) if self._half else []

    def _whole(
        self, parameters: Sequence[torch.nn.Parameter], get: Callable[..., Any], keep: Keep | None, *key: str
    ) -> list[Any]:
        """What ``get`` puts together for each parameter; shape and type alone where it is not kept."""
        return [kept(get(one, *key), keep or (lambda _: self._ranks.rank == 0)) for one in parameters]

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """What torch's AdamW with these weights has as its ``state_dict``, on the CPU: all on rank 0 and nothing on the
        others, or on the ranks that ``keep`` it."""
        assert self._adamw is not None
        get = self._deepspeed.utils.safe_get_full_optimizer_state
        moments = {name: self._whole(self._order, get, keep, name) for name in _MOMENTS}
        if keep is None and self._ranks.rank:
            return {}
        step = self._adamw.state[self._shares()[0]]["step"]
        state = {
            i: {"step": step.clone(), **{name: moments[name][i] for name in _MOMENTS}} for i in range(len(self._order))
        }
        lr = self._adamw.param_groups[0]["lr"]
        return {"state": state if step else {}, "param_groups": [{**group, "lr": lr} for group in self._groups]}

    def load_optimizer_state(self, saved: Mapping[str, Any], masters: Sequence[torch.Tensor] = ()) -> None:
        """Put moments and masters back, from the same whole state on every rank; the weights have been before.

        Raises :class:`CheckpointError` when they are not of these weights.
        """
        assert self._optimizer is not None
        assert self._adamw is not None
        trained = [bare for bare in self._shapes.parameters() if bare.requires_grad]
        needed = [bare.shape for bare in trained] if self._half else []
        if [master.shape for master in masters] != needed:
            raise CheckpointError(
                f"the checkpoint has {len(masters)} float32 copies of weights and the learner needs {len(needed)}, "
                "each of its weight's shape; resume with the learner.precision it was saved with"
            )
        self._groups = resumed_groups(self._optimizer, self._groups, saved["param_groups"])
        for group, values in zip(self._adamw.param_groups, (g for g in self._groups if g["params"]), strict=True):
            group.update({key: value for key, value in values.items() if key != "params"})
        shapes = {id(p): bare.shape for p, bare in zip(self._trained, trained, strict=True)}
        state = saved["state"]
        for index, parameter in enumerate(self._order):
            for name in _MOMENTS:
                whole = state[index][name] if index in state else torch.zeros(shapes[id(parameter)])
                self._set(parameter, whole, name)
        for parameter, master in zip(self._trained, masters, strict=False):
            self._set(parameter, master)
        # Every weight has a gradient in every step, so that all have made equally many.
        step = max((float(one["step"]) for one in state.values()), default=0.0)
        for share in self._shares():
            self._adamw.state[share]["step"] = torch.tensor(step)

    def _set(self, parameter: Any, whole: torch.Tensor, moment: str | None = None) -> None:
        """Write this rank's share of a moment, or of the master."""
        tools = self._deepspeed.utils
        if not hasattr(parameter, "ds_tensor"):  # stages 1 and 2
            full = tools.safe_set_full_optimizer_state, tools.safe_set_full_fp32_param
            full[0](parameter, whole, moment) if moment else full[1](parameter, whole)
            return
        count = parameter.ds_tensor.numel()  # the last ranks' shares are filled up with zeros
        padded = torch.zeros(count * self._ranks.count)
        padded[: whole.numel()] = whole.flatten()
        share = padded[count * self._ranks.rank :][:count]
        local = tools.safe_set_local_optimizer_state, tools.safe_set_local_fp32_param
        local[0](parameter, share, moment) if moment else local[1](parameter, share)

    def form(self) -> Any:
        """A module like ``named`` whose weights are on the meta device, in nobody's hands."""
        return skeleton_of(self._shapes)

    def whole_copy(self) -> Any:
        """A module like ``named`` with its current weights, on the CPU of every rank, in nobody's hands."""
        filled = {
            id(bare): torch.nn.Parameter(torch.empty_like(bare, device="cpu"), requires_grad=bare.requires_grad)
            for bare in self._shapes.parameters()
        }
        copied = copy.deepcopy(self._shapes, memo=filled)
        load_weights(copied, self.weights())
        return copied


def _share_out_empty(module: torch.nn.Module, deepspeed: Any, configured: dict[str, Any], device: torch.device) -> None:
    """Make shares of 0 of the weights of ``module`` that are on the meta device, in place and one after the other, so
    that a rank has at most one of them whole; DeepSpeed itself takes none without memory."""
    first: Any = None
    for parameter in module.parameters():
        if not parameter.is_meta:
            continue
        zeros = torch.zeros_like(parameter, device=device)
        # The object stays: optimisers and ties have it already.
        full = torch.nn.Parameter(zeros, requires_grad=parameter.requires_grad)
        torch.utils.swap_tensors(parameter, full)  # type: ignore[no-untyped-call]
        if first is None:
            first = parameter
            deepspeed.zero.Init(torch.nn.ParameterList([parameter]), config_dict_or_path=configured)
        else:
            first.convert_to_zero_parameters([parameter])
        del zeros, full
    if first is not None:
        for buffer in module.buffers():  # DeepSpeed moves no module that is shared out already
            buffer.data = buffer.data.to(device)


def _configuration(
    settings: DeepSpeedSettings, optimizer: OptimizerConfig | None, *, half: bool, numbers: int
) -> dict[str, Any]:
    """DeepSpeed's configuration for so many trained ``numbers``: https://www.deepspeed.ai/docs/config-json/"""
    zero: dict[str, Any] = {
        "stage": settings.stage,
        "param_persistence_threshold": settings.param_persistence_threshold,
        # Memory that it takes whatever the model's size: two gigabytes by default.
        "reduce_bucket_size": max(1, min(ZERO_BUCKET, numbers)),
        # It would replace torch.nn.functional.linear, for other models too.
        "memory_efficient_linear": False,
    }
    if settings.offload_optimizer and optimizer is not None:
        zero["offload_optimizer"] = {"device": "cpu"}
    if settings.offload_param:
        zero["offload_param"] = {"device": "cpu"}
    found: dict[str, Any] = {
        # Neither is read: micro-batches come as the learner makes them, as many as a step has.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0 if optimizer is None else optimizer.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # it does not know a subclass of AdamW for one
        "zero_force_ds_cpu_optimizer": False,
    }
    if half:
        found |= {
            "bf16": {"enabled": True, "check_grad_overflow": True},
            "communication_data_type": "fp32",
            "data_types": {"grad_accum_dtype": "fp32"},
        }
    return found
