"""The local sandbox: runs programs in jails on this machine, each with a warm fork server. See docs/sandboxes.md."""

from __future__ import annotations

from .sandbox import LocalSandbox
from .tiers import TIERS, Tier

__all__ = ["TIERS", "LocalSandbox", "Tier"]
