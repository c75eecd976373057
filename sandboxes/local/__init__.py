"""The local cage: programs in jails of this machine, one warm fork-server each. See docs/sandboxes.md."""

from __future__ import annotations

from .sandbox import LocalSandbox
from .tiers import TIERS, Tier

__all__ = ["TIERS", "LocalSandbox", "Tier"]
