"""Episode managers: what the next prompt shows (context), one episode, and many at once (pool)."""

from roll_envs.managers.context import Context, History, load_context
from roll_envs.managers.episode import EpisodeSettings, Respond, play_episode
from roll_envs.managers.pool import EpisodePool, PoolLimits

__all__ = [
    "Context",
    "EpisodePool",
    "EpisodeSettings",
    "History",
    "PoolLimits",
    "Respond",
    "load_context",
    "play_episode",
]
