"""Episode managers: what the next prompt shows (context), one episode, and the driver of many at once."""

from roll_envs.managers.attempt import EpisodeLimits
from roll_envs.managers.driver import EpisodeDriver
from roll_envs.managers.episode import (
    Context,
    EpisodeSettings,
    History,
    RemoteEnv,
    Respond,
    episode,
    load_context,
    play_episode,
)
from roll_envs.managers.stream import GroupStream

__all__ = [
    "Context",
    "EpisodeDriver",
    "EpisodeLimits",
    "EpisodeSettings",
    "GroupStream",
    "History",
    "RemoteEnv",
    "Respond",
    "episode",
    "load_context",
    "play_episode",
]
