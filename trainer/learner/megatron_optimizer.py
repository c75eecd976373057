"""The optimiser of weights that are cut over ranks: gradients that are summed where they are parts of one, the norm of
the whole, and a state that any backend reads.

Each rank steps its own shares with torch's AdamW, float32 master copies included; AdamW treats each number alone, so
that the result is that of whole weights. Replicas divide the rows of what they share (:mod:`megatron_replicas`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from roll_envs.errors import CheckpointError, ConfigError
from trainer.config import OptimizerConfig
from trainer.learner.gradients import Ranks, squares_of
from trainer.learner.megatron_grid import Axis
from trainer.learner.megatron_mapping import EMBEDDING, HEAD, shape_of
from trainer.learner.megatron_replicas import Joined, SharedMasters
from trainer.learner.megatron_stage import Stage
from trainer.learner.optimizers import TrainedWeight, make_optimizers, resumed_groups, take_step
from trainer.learner.snapshot import Keep, kept

MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW:
    """Steps the weights of a :class:`Stage`."""

    def __init__(self, stage: Stage, config: OptimizerConfig, *, outer: bool) -> None:
        """``outer``: whether the embedding and the head count as such in ``config``.

        Raises :class:`ConfigError` for an optimiser that needs whole matrices.
        """
        if config.name != "adamw":
            raise ConfigError(
                f"learner.backend 'megatron' cuts matrices over ranks, which optimizer.name {config.name!r} may not "
                "see whole; allowed: adamw"
            )
        self._stage, self._grid, self._config = stage, stage.grid, config
        self.parameters = list(stage.parameters.values())
        self.masters = SharedMasters(stage.parameters, self._replicas)
        self.values = dict(zip(stage.parameters, self.masters.values, strict=True))
        """What collects gradients, by Megatron-Core's names."""
        weights = [TrainedWeight(v, outer and name in (EMBEDDING, HEAD)) for name, v in self.masters.own.items()]
        (self._adamw,) = make_optimizers(config, weights)
        # The optimiser of whole weights, whose form the saved state has; it has no memory.
        whole = {p.name: torch.nn.Parameter(torch.empty(shape_of(p), device="meta")) for p in stage.parts}
        named = [(whole[p.name], outer and p.cores[0] in (EMBEDDING, HEAD)) for p in stage.parts]
        (form,) = make_optimizers(config, [TrainedWeight(*one) for one in named])
        place = {id(p): name for name, p in whole.items()}
        self._form = form.state_dict()
        self._order = [place[id(p)] for group in form.param_groups for p in group["params"]]

    def _replicas(self, name: str) -> Axis:
        return self._grid.expert_data if "local_experts" in name else self._grid.data

    def reduce_gradients(self) -> torch.Tensor:
        """Complete the gradients over the ranks, after which replicas have the same; the norm of the whole model's."""
        grid = self._grid
        if grid.tensor.count > 1:  # each rank has seen its own heads only
            norms = [
                v for name, v in self.values.items() if name.endswith(("q_layernorm.weight", "k_layernorm.weight"))
            ]
            grid.tensor.ranks.add_gradients(norms)
        if self._stage.shares_embedding:
            Ranks(grid.embedding).add_gradients([self.values[self._stage.tied]])
        for name, value in self.values.items():
            self._replicas(name).ranks.add_gradients([value])
        own = [v.grad for n, v in self.values.items() if v.grad is not None and self._stage.counted(n)]
        return torch.tensor(math.sqrt(grid.model.ranks.sum({"": squares_of(own)})[""]), device=grid.device)

    def add_gradients(self) -> None:
        """Take what a backward pass has left in the parameters into the sum."""
        self.masters.add_gradients(self.masters.take_gradients(self.parameters))

    def step(self, lr: float) -> None:
        self.masters.share_gradients()
        take_step([self._adamw], lr)
        self.masters.write_back()

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self, keep: Keep | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """AdamW's state dict over whole weights, on the CPU, and ``masters`` in bfloat16: as the plain PyTorch backend
        saves them. All ranks take part; those but the first get empty ones, or with ``keep`` what they keep."""
        first = keep is not None or self._grid.all.rank == 0
        wanted = keep or (lambda _: True)
        own = self._adamw.state
        found: dict[int, dict[str, torch.Tensor]] = {}
        if self._grid.all.any(bool(own)):
            number = {name: i for i, name in enumerate(self._order)}
            step = next(iter(own.values()))["step"]
            for key in MOMENTS:
                shares = Joined(self.masters.rows, lambda n, key=key: own[self.masters.own[n]][key])  # type: ignore[misc]
                for name, whole in self._stage.stream(shares):
                    if first:
                        found.setdefault(number[name], {"step": step.cpu().clone()})[key] = kept(whole, wanted)
        masters: dict[str, Any] = {}
        if self.masters.copies:
            copies = Joined(self.masters.rows, self.masters.own.__getitem__)
            whole_masters = [kept(w, wanted) for _, w in self._stage.stream(copies) if first]
            masters = {"masters": whole_masters}
        groups = [
            {**group, "params": form["params"]}
            for group, form in zip(self._adamw.state_dict()["param_groups"], self._form["param_groups"], strict=True)
        ]
        return ({"state": found, "param_groups": groups}, masters) if first else ({}, {})

    def load(self, saved: Mapping[str, Any], masters: Sequence[torch.Tensor]) -> None:
        """Put a state back. All ranks take part; those but the first may give empty ones, and are sent one tensor at a
        time.

        Raises :class:`CheckpointError` when it is not of these weights, or of another precision.
        """
        ranks, send = self._grid.all, self._grid.all.any(not saved)
        if send and ranks.any(ranks.rank == 0 and not saved):
            raise CheckpointError("the checkpoint has no state of the optimiser; start a new run")
        form: list[Any] = [_form_of(saved, masters) if saved else None]
        if send:
            distributed.broadcast_object_list(form, src=0)
        saved_groups, steps, shapes, master_shapes = form[0]
        groups = resumed_groups(self._config, self._form["param_groups"], saved_groups)
        self._check(shapes, master_shapes)

        def whole(place: int, key: str, shape: tuple[int, ...]) -> torch.Tensor:
            given = None if not saved else masters[place] if key == "masters" else saved["state"][place][key]
            if not send:
                return given  # type: ignore[return-value]
            there = given if ranks.rank == 0 else torch.empty(shape)
            sent = there.to(self._grid.device, torch.float32).contiguous()  # type: ignore[union-attr]
            distributed.broadcast(sent, src=0)
            return sent

        def empty() -> dict[str, torch.Tensor]:
            return {n: torch.zeros(v.shape, device=v.device) for n, v in self.values.items()}

        if self.masters.copies:
            copies = empty()
            for i, (part, shape) in enumerate(zip(self._stage.parts, master_shapes, strict=True)):
                self._stage.put(copies, part, whole(i, "masters", shape))
            with torch.no_grad():
                for name, value in self.masters.own.items():
                    value.copy_(self.masters.rows[name].of(copies[name]))
            self.masters.write_back()
        parts = {p.name: p for p in self._stage.parts}
        moments = {key: empty() for key in MOMENTS}
        for i, shape in shapes.items():
            for key in MOMENTS:
                self._stage.put(moments[key], parts[self._order[i]], whole(i, key, shape))
        own = self._adamw.state_dict()
        names, rows = {id(v): n for n, v in self.masters.own.items()}, self.masters.rows
        local = [names[id(v)] for group in self._adamw.param_groups for v in group["params"]]
        if steps:
            step = next(iter(steps.values()))
            own["state"] = {
                i: {"step": torch.tensor(step), **{k: rows[n].of(moments[k][n]).clone() for k in MOMENTS}}
                for i, n in enumerate(local)
            }
        mine = [group["params"] for group in own["param_groups"]]
        own["param_groups"] = [{**group, "params": params} for group, params in zip(groups, mine, strict=True)]
        self._adamw.load_state_dict(own)

    def _check(self, shapes: Mapping[int, tuple[int, ...]], master_shapes: Sequence[tuple[int, ...]]) -> None:
        wanted = {p.name: shape_of(p) for p in self._stage.parts}
        needed = list(wanted.values()) if self.masters.copies else []
        if list(master_shapes) != needed:
            raise CheckpointError(
                f"the checkpoint has {len(master_shapes)} float32 copies of weights and the learner needs "
                f"{len(needed)}, each of its weight's shape; resume with the learner.precision it was saved with"
            )
        if shapes and shapes != {i: wanted[name] for i, name in enumerate(self._order)}:
            raise CheckpointError(
                f"the checkpoint's optimiser has {len(shapes)} weights, which are not the model's {len(wanted)}; "
                "resume with the model it was saved with"
            )


def _form_of(saved: Mapping[str, Any], masters: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Of a saved state: settings of groups, steps and shapes by number, shapes of the float32 copies."""
    state = saved["state"]
    return (
        saved["param_groups"],
        {i: float(entry["step"]) for i, entry in state.items()},
        {i: tuple(entry["exp_avg"].shape) for i, entry in state.items()},
        [tuple(m.shape) for m in masters],
    )
