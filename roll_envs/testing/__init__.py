"""For tests of environments and of whole loops: the validator ``check_env``, and fakes that need no model.

from roll_envs.testing import check_env
assert check_env("roll/SimpleSokoban-v0").ok
"""

from roll_envs.policy import CharRenderer
from roll_envs.testing.check import RULES, CheckReport, CheckResult, check_env
from roll_envs.testing.fakes import COUNTER_CARD, CounterEnv, EchoEnv, ScriptedPolicy

__all__ = [
    "COUNTER_CARD",
    "RULES",
    "CharRenderer",
    "CheckReport",
    "CheckResult",
    "CounterEnv",
    "EchoEnv",
    "ScriptedPolicy",
    "check_env",
]
