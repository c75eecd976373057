"""The command ``roll-envs``: list, show, play, check and bench environments."""

from roll_envs.cli.command import main

__all__ = ["main"]
