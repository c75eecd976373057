"""The hub: multi-turn text environments on Gymnasium's registry, and the contracts that they and a trainer share.

Importing it registers the environments of every installed package that has entry points in the group ``roll_envs``;
none of those packages is imported until one of its environments is made.

    import gymnasium, roll_envs
    env = gymnasium.make("roll/SimpleSokoban-v0")

``roll_envs.make(id)`` gives the bare environment. Elsewhere: ``roll_envs.testing`` (validator and fakes),
``roll_envs.managers`` (episodes), ``roll_envs.errors``, ``roll_envs.types``, ``roll_envs.policy``.
"""

from roll_envs.adapting import adapt
from roll_envs.env import AnyText, EnvironmentCard, TextEnv
from roll_envs.env_registry import card, discover, environments, make, register, unregister
from roll_envs.errors import (
    CheckpointError,
    ConfigError,
    DeadlineExceededError,
    EngineError,
    EnvironmentFaultError,
    MissingExtraError,
    PluginError,
    RollError,
    SandboxError,
    UnknownNameError,
)
from roll_envs.parsing import ActionFormat, FreeFormat, ParsedAnswer, make_action_format, make_free_format
from roll_envs.policy import Policy, Renderer
from roll_envs.registry import Registration
from roll_envs.sandbox import Isolation, Limits, Program, RunResult, Sandbox, SandboxSession, make_sandbox
from roll_envs.types import Completion, Group, Message, Outcome, SamplingParams, Task, Trajectory, Turn, VersionSpan
from roll_envs.verifiers import Failed, Score, Verifier, make_verifier, register_verifier

__version__ = "0.1.0"

__all__ = [
    "ActionFormat",
    "AnyText",
    "CheckpointError",
    "Completion",
    "ConfigError",
    "DeadlineExceededError",
    "EngineError",
    "EnvironmentCard",
    "EnvironmentFaultError",
    "Failed",
    "FreeFormat",
    "Group",
    "Isolation",
    "Limits",
    "Message",
    "MissingExtraError",
    "Outcome",
    "ParsedAnswer",
    "PluginError",
    "Policy",
    "Program",
    "Registration",
    "Renderer",
    "RollError",
    "RunResult",
    "SamplingParams",
    "Sandbox",
    "SandboxError",
    "SandboxSession",
    "Score",
    "Task",
    "TextEnv",
    "Trajectory",
    "Turn",
    "UnknownNameError",
    "Verifier",
    "VersionSpan",
    "__version__",
    "adapt",
    "card",
    "discover",
    "environments",
    "make",
    "make_action_format",
    "make_free_format",
    "make_sandbox",
    "make_verifier",
    "register",
    "register_verifier",
    "unregister",
]

discover()
