"""Importing it makes the environments of providers known to Gymnasium too, which takes a moment for hundreds of them.

    gymnasium.make("roll_envs.everything:reasoning_gym/chain_sum-v0")

``roll_envs.make``, the commands and the trainer know them without it.
"""

from roll_envs.env_registry import discover

discover(provided=True)
