"""What runs inside SGLang's schedulers: loaders of adapters alone, and of the weights that are kept beside them.

SGLang imports it by the names that ``--custom-weight-loader`` lists and an update gives as its ``load_format``: this
folder is on the server's ``PYTHONPATH``. It imports nothing of the trainer, whose environment is another one.
"""

from __future__ import annotations

from typing import Any

import torch
from roll_transfer import Kept  # type: ignore[import-not-found]

Named = list[tuple[str, torch.Tensor]]

_kept = Kept()


def keep(model: Any, weights: Named) -> None:
    """Keep ``weights``, and load nothing yet."""
    _kept.keep(_copies(weights))


def adapt(model: Any, adapters: Named) -> None:
    """Take a part of the adapters of an update. Raises ValueError where their weights were not kept."""
    _kept.adapt(_copies(adapters))


def load(model: Any, adapters: Named) -> None:
    """Take the last part, and load every weight that is kept, with adapters merged into it."""
    adapt(model, adapters)
    model.load_weights(_kept.merged(next(model.parameters()).device))


def _copies(tensors: Named) -> Named:
    """In the machine's memory: a GPU has no room for a second model, and the trainer takes its own memory back."""
    return [(name, tensor.to("cpu", copy=True)) for name, tensor in tensors]
