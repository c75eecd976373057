"""The local sandbox: runs programs in jails on this machine, each with a warm fork server. See docs/sandboxes.md."""

from .sandbox import TIERS, LocalSandbox, Tier

__all__ = ["TIERS", "LocalSandbox", "Tier"]
