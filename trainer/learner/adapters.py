"""LoRA (Hu et al. 2021, arXiv:2106.09685): small matrices beside frozen weights are trained instead of the weights.

The layers are those of the ``peft`` library (extra ``lora``). The learner trains a copy of the plain network that
shares all weights but those of the adapted layers, and gives out merged weights under the plain network's names, for
engines, checkpoints and the saved model; engines that keep the frozen weights are given the adapters alone. Adapters
that are saved apart from the weights are left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from roll_envs.errors import CheckpointError, ConfigError
from trainer.learner.gradients import replica_of
from trainer.model.forward import weights_of

_ADAPTER = "default"
Named: TypeAlias = tuple[str, torch.Tensor]


class AdaptedWeights(Iterator[Named]):
    """Merged weights, one at a time; or their two parts, for who keeps the first of them
    (:class:`trainer.engines.buckets.Adapted`)."""

    def __init__(
        self,
        key: str,
        merged: Iterable[Named],
        bases: Callable[[], Iterator[Named]],
        adapters: Callable[[], Iterator[Named]],
    ) -> None:
        """``key`` is another one for other bases."""
        self._key, self._merged = key, iter(merged)
        self.bases, self.adapters = bases, adapters

    def __next__(self) -> Named:
        return next(self._merged)

    def key(self) -> str:
        """Of the bases."""
        return self._key


class AdaptedNetwork:
    """A copy of a network with adapters in some of its linear layers; only the adapters are trained."""

    def __init__(
        self,
        plain: Any,
        *,
        rank: int,
        alpha: float,
        targets: Sequence[str] = (),
        seed: int = 0,
        in_place: bool = False,
    ) -> None:
        """``targets`` are layers by the end of their names ("q_proj"); none: all linear layers but the head.

        The update of a layer is ``alpha / rank * B @ A``, and 0 at first. ``in_place`` puts the adapters into ``plain``
        itself, which is then no plain network any more; its weights may be on the meta device, the adapters are not.

        Raises :class:`ConfigError` when a target names no linear layer, or peft is not installed.
        """
        try:
            from peft import LoraConfig, inject_adapter_in_model
            from peft.tuners.lora import LoraLayer
        except ImportError as error:
            raise ConfigError(
                "learner.lora_rank needs the peft library, which is not installed: pip install 'roll-envs[lora]'"
            ) from error
        layers = _chosen_layers(plain, targets)
        adapted = {id(p) for layer in layers.values() for p in layer.parameters()}
        # In the copy, weights that no adapter changes are the plain network's own numbers.
        own = [p for p in plain.parameters() if id(p) in adapted]
        self.network: Any = plain if in_place else replica_of(plain, own=own)
        config = LoraConfig(
            r=rank,
            lora_alpha=alpha,  # type: ignore[arg-type]
            target_modules=list(layers),
            lora_dropout=0.0,
        )
        with torch.random.fork_rng(devices=[]), _with_one_number(layers.values()):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, self.network, adapter_name=_ADAPTER)
        self.renew_key()
        self._scale = alpha / rank
        self._layers: dict[str, Any] = {n: m for n, m in self.network.named_modules() if isinstance(m, LoraLayer)}
        trained = {id(p) for layer in self._layers.values() for p in _adapter_of(layer).values()}
        for parameter in self.network.parameters():
            parameter.requires_grad_(id(parameter) in trained)

    def renew_key(self) -> None:
        """The weights beside the adapters are others from now on: who has kept them is sent all."""
        self._key = secrets.token_hex(4)

    def weights(self) -> AdaptedWeights:
        """Weights by the names of the plain network: adapted layers merged one at a time, the others as views."""
        return AdaptedWeights(self._key, self._merged(), self._bases, self._adapters)

    @torch.no_grad()
    def _bases(self) -> Iterator[Named]:
        for full_name, value in weights_of(self.network):
            name = _plain_name(full_name)
            if name is not None:
                yield name, value

    @torch.no_grad()
    def _adapters(self) -> Iterator[Named]:
        """In float32; B is scaled."""
        for name, layer in self._layers.items():
            adapter = _adapter_of(layer)
            yield f"{name}.weight.lora_A", adapter["A"].detach().float()
            yield f"{name}.weight.lora_B", adapter["B"].detach().float() * layer.scaling[_ADAPTER]

    @torch.no_grad()
    def _merged(self) -> Iterator[Named]:
        for full_name, value in weights_of(self.network):
            name = _plain_name(full_name)
            if name is None:
                continue
            if name != full_name and name.endswith(".weight"):
                layer = self._layers[name.removesuffix(".weight")]
                base = layer.get_base_layer().weight.detach()
                value = (base.float() + layer.get_delta_weight(_ADAPTER).float()).to(base.dtype)
            yield name, value

    def bases(self) -> dict[str, torch.Tensor]:
        """The weights beside the adapters, by the names of the plain network, tied ones by all of theirs."""
        named = ((_plain_name(name), value) for name, value in self.network.state_dict(keep_vars=True).items())
        return {name: value for name, value in named if name is not None}

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The base model, for as long as this lasts."""
        for layer in self._layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.enable_adapters(True)

    def state(self) -> dict[str, Any]:
        """Adapters and their scale, and the weights beside them, which cannot be had back from merged ones without
        rounding."""
        return {
            "scale": self._scale,
            "adapters": {
                f"{name}.{part}": value.detach()
                for name, layer in self._layers.items()
                for part, value in _adapter_of(layer).items()
            },
            "bases": {name: layer.get_base_layer().weight.detach() for name, layer in self._layers.items()},
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Put a saved state back. Raises :class:`CheckpointError` when it has other layers, another rank or scale."""
        own = self.state()
        self.renew_key()
        for kind in ("adapters", "bases"):
            saved, tensors = state.get(kind, {}), own[kind]
            shapes = [{name: tuple(tensor.shape) for name, tensor in each.items()} for each in (saved, tensors)]
            for name in sorted({*saved, *tensors}):
                theirs, ours = (each.get(name, "none") for each in shapes)
                if theirs != ours:
                    raise CheckpointError(
                        f"the {kind} of LoRA in the checkpoint do not fit the learner's: of {name} the shape is "
                        f"{theirs}, the learner's {ours}; resume with the learner.lora_rank and learner.lora_targets "
                        "it was saved with"
                    )
            for name, tensor in tensors.items():
                tensor.copy_(saved[name])
        # After the shapes, since another rank has another scale, too. Older checkpoints do not say theirs.
        scale = state.get("scale", self._scale)
        if scale != self._scale:
            raise CheckpointError(
                f"the adapters of LoRA in the checkpoint are scaled by lora_alpha / lora_rank = {scale:g}, the "
                f"learner's by {self._scale:g}; resume with the learner.lora_alpha it was saved with"
            )


def _plain_name(name: str) -> str | None:
    """What a weight of a network with adapters is called in the plain one; None for an adapter."""
    return None if ".lora_" in name else name.replace(".base_layer.", ".")


@contextmanager
def _with_one_number(layers: Iterable[torch.nn.Linear]) -> Iterator[None]:
    """Weights on the meta device are a single number of the CPU, seen as a matrix, for as long as this lasts: peft
    makes adapters where their layer's weight is, and those are to have their numbers."""
    empty = [(layer, layer.weight) for layer in layers if layer.weight.is_meta]
    for layer, weight in empty:
        layer.weight = torch.nn.Parameter(torch.zeros((), dtype=weight.dtype).expand(weight.shape))
    try:
        yield
    finally:
        for layer, weight in empty:
            layer.weight = weight


def _adapter_of(layer: Any) -> dict[str, torch.nn.Parameter]:
    return {"A": layer.lora_A[_ADAPTER].weight, "B": layer.lora_B[_ADAPTER].weight}


def _chosen_layers(network: Any, targets: Sequence[str]) -> dict[str, torch.nn.Linear]:
    head = network.get_output_embeddings()
    linear = {n: m for n, m in network.named_modules() if isinstance(m, torch.nn.Linear) and m is not head}
    chosen = {} if targets else linear
    for target in targets:
        named = {n: m for n, m in linear.items() if f".{n}".endswith(f".{target}")}
        if not named:
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise ConfigError(f"learner.lora_targets: no linear layer is named {target!r}; allowed: {known}")
        chosen |= named
    return chosen
