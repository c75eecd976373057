"""Every random state of a run as plain data, to be saved with a checkpoint and put back exactly."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from roll_envs.errors import CheckpointError

__all__ = ["NamedGenerator", "RandomStates", "capture_random_states", "restore_random_states"]

NamedGenerator: TypeAlias = random.Random | np.random.Generator | torch.Generator


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomStates:
    """States of the global generators of Python, numpy and torch, and of generators known by name."""

    python_state: Any
    numpy_state: Any
    torch_state: torch.Tensor
    cuda_states: tuple[torch.Tensor, ...] = ()
    generators: Mapping[str, Any] = field(default_factory=dict)


def capture_random_states(generators: Mapping[str, NamedGenerator] | None = None) -> RandomStates:
    """The states now. Only plain values and tensors, so that they load without running code."""
    return RandomStates(
        python_state=random.getstate(),
        numpy_state=_plain(np.random.get_state(legacy=False)),
        torch_state=torch.get_rng_state(),
        cuda_states=tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else (),
        generators={name: _state(generator) for name, generator in (generators or {}).items()},
    )


def restore_random_states(states: RandomStates, generators: Mapping[str, NamedGenerator] | None = None) -> None:
    """Put the states back. Raises CheckpointError when a named generator was not saved, is of another kind, or was
    saved and is not asked for."""
    wanted = dict(generators or {})
    if set(wanted) != set(states.generators):
        missing, extra = sorted(set(wanted) - set(states.generators)), sorted(set(states.generators) - set(wanted))
        raise CheckpointError(
            f"the checkpoint holds other random generators than the run: missing {missing}, not wanted {extra}; "
            "resume with the release that saved it"
        )
    for name, generator in wanted.items():
        _restore(name, generator, states.generators[name])
    random.setstate(states.python_state)
    np.random.set_state(_arrays(states.numpy_state))
    torch.set_rng_state(states.torch_state)
    if states.cuda_states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(list(states.cuda_states))


def _state(generator: NamedGenerator) -> Any:
    if isinstance(generator, random.Random):
        return {"kind": "python", "state": generator.getstate()}
    if isinstance(generator, np.random.Generator):
        return {"kind": "numpy", "state": _plain(generator.bit_generator.state)}
    return {"kind": "torch", "state": generator.get_state()}


def _restore(name: str, generator: NamedGenerator, saved: Any) -> None:
    try:
        if isinstance(generator, random.Random) and saved["kind"] == "python":
            generator.setstate(saved["state"])
        elif isinstance(generator, np.random.Generator) and saved["kind"] == "numpy":
            generator.bit_generator.state = _arrays(saved["state"])
        elif isinstance(generator, torch.Generator) and saved["kind"] == "torch":
            generator.set_state(saved["state"])
        else:
            raise TypeError(f"saved {saved['kind']}, wanted {type(generator).__name__}")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the saved state of the random generator {name!r} does not fit ({error}); "
            "resume with the release that saved it"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return value.item() if isinstance(value, np.generic) else value


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"array", "dtype"}:
            return np.array(value["array"], dtype=value["dtype"])
        return {key: _arrays(item) for key, item in value.items()}
    return value
