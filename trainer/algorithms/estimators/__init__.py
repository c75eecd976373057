"""Advantage estimators by name: pure functions from scored episodes to one number per sampled token.

Failed and cancelled episodes never reach an estimator, so they are in no mean, no standard deviation and no count.
Other packages add their own with an entry point of the group ``roll_envs.estimators``.
"""

from __future__ import annotations

from roll_envs.errors import PluginError, UnknownNameError
from trainer.algorithms.estimators.gae import bi_level_gae, gae
from trainer.algorithms.estimators.gigpo import gigpo
from trainer.algorithms.estimators.group_relative import dr_grpo, gpg, grpo, lite_ppo, maxrl, opo, pass_at_k, rloo
from trainer.algorithms.estimators.hgpo import hgpo
from trainer.algorithms.estimators.plus_plus import reinforce_pp, reinforce_pp_baseline
from trainer.algorithms.estimators.returns import reinforce, reinforce_token, remax, step_reinforce
from trainer.algorithms.estimators.types import (
    EpisodeView,
    Estimate,
    Estimator,
    EstimatorSpec,
    discounted,
    on_every_token,
    on_last_tokens,
    per_turn,
)
from trainer.algorithms.plugins import load_plugin, plugin_names
from trainer.config.read_keys import ESTIMATOR_KEYS

__all__ = [
    "ESTIMATORS",
    "GROUP",
    "EpisodeView",
    "Estimate",
    "Estimator",
    "EstimatorSpec",
    "bi_level_gae",
    "discounted",
    "dr_grpo",
    "estimator_names",
    "find_estimator",
    "gae",
    "gigpo",
    "gpg",
    "grpo",
    "hgpo",
    "lite_ppo",
    "maxrl",
    "on_every_token",
    "on_last_tokens",
    "opo",
    "pass_at_k",
    "per_turn",
    "register_estimator",
    "reinforce",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "reinforce_token",
    "remax",
    "rloo",
    "step_reinforce",
]

GROUP = "roll_envs.estimators"
"""The entry-point group: name = ``advantage.name``, target = an :class:`EstimatorSpec`, or an estimator alone."""


def _built_in(name: str, estimate: Estimator, **needs: bool) -> EstimatorSpec:
    return EstimatorSpec(estimate=estimate, keys=ESTIMATOR_KEYS[name], **needs)


ESTIMATORS: dict[str, EstimatorSpec] = {
    "bi_level_gae": _built_in("bi_level_gae", bi_level_gae, needs_values=True),
    "dr_grpo": _built_in("dr_grpo", dr_grpo, needs_group=True),
    "gae": _built_in("gae", gae, needs_values=True),
    "gigpo": _built_in("gigpo", gigpo, needs_group=True),
    "gpg": _built_in("gpg", gpg, needs_group=True),
    "grpo": _built_in("grpo", grpo, needs_group=True),
    "hgpo": _built_in("hgpo", hgpo, needs_group=True),
    "lite_ppo": _built_in("lite_ppo", lite_ppo, needs_group=True),
    "maxrl": _built_in("maxrl", maxrl, needs_group=True),
    "opo": _built_in("opo", opo, needs_group=True),
    "pass_at_k": _built_in("pass_at_k", pass_at_k, needs_group=True),
    "reinforce": _built_in("reinforce", reinforce),
    "reinforce_pp": _built_in("reinforce_pp", reinforce_pp),
    "reinforce_pp_baseline": _built_in("reinforce_pp_baseline", reinforce_pp_baseline, needs_group=True),
    "reinforce_token": _built_in("reinforce_token", reinforce_token),
    "remax": _built_in("remax", remax, needs_greedy=True),
    "rloo": _built_in("rloo", rloo, needs_group=True),
    "step_reinforce": _built_in("step_reinforce", step_reinforce),
}
"""Estimators by the name that ``advantage.name`` uses: the built-in ones, and others once they were found."""


def register_estimator(
    name: str,
    estimator: Estimator,
    *,
    needs_group: bool = False,
    needs_values: bool = False,
    needs_greedy: bool = False,
) -> None:
    """Make an estimator available as ``advantage.name``; what it needs of the loop is as in :class:`EstimatorSpec`.

    Raises:
        ValueError: The name is taken by another estimator.
    """
    spec = EstimatorSpec(
        estimate=estimator, needs_group=needs_group, needs_values=needs_values, needs_greedy=needs_greedy
    )
    if ESTIMATORS.setdefault(name, spec).estimate is not estimator:
        raise ValueError(f"estimator {name!r} is already registered; choose another name")


def find_estimator(name: str) -> EstimatorSpec:
    """The estimator ``name``: a built-in or registered one, else that of an installed package.

    Raises:
        UnknownNameError: There is none of this name.
        PluginError: The package cannot be loaded, or its entry point is no estimator.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    loaded = load_plugin(GROUP, name, "advantage estimator")
    if loaded is None:
        raise UnknownNameError("advantage estimator", name, estimator_names())
    if not isinstance(loaded, EstimatorSpec):
        if not callable(loaded) or isinstance(loaded, type):
            raise PluginError(
                f"advantage estimator {name!r} of an installed package is {loaded!r}; "
                "allowed: an EstimatorSpec, or a function (episodes, config) -> Estimate"
            )
        loaded = EstimatorSpec(estimate=loaded)
    return ESTIMATORS.setdefault(name, loaded)


def estimator_names() -> tuple[str, ...]:
    """Every known name, in order; imports nothing."""
    return tuple(sorted({*ESTIMATORS, *plugin_names(GROUP)}))
