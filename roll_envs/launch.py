"""The commands of the trainer, started by name, so that a folder called ``trainer`` of the user's own is explained.

Nothing of the trainer is imported before it is known to be this project's.
"""

from __future__ import annotations

import importlib
import os
import sys

from roll_envs.registry import HUB_ROOT, why_not_found


def roll_train() -> int:
    """``roll-train``."""
    return _start("roll-train", "trainer.cli", "main")


def roll_eval() -> int:
    """``roll-eval``."""
    return _start("roll-eval", "trainer.cli_eval", "main")


def _start(command: str, module: str, function: str) -> int:
    reason = why_not_found(module, [HUB_ROOT])
    if reason is not None:
        print(f"{command}: error: {reason}", file=sys.stderr)
        return 2
    # Threads of numerical libraries that spin while they wait slow each other down on a shared machine; torch reads
    # this when it is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return int(getattr(importlib.import_module(module), function)())
