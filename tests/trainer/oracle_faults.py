"""Faults planted in copies of the trainer, to see that the oracle and the tests of the loop's wiring notice each.

``python tests/trainer/oracle_faults.py [number or part of a name ...]`` plants them one at a time in a copy of the
working tree and runs the quick tests. A fault counts as noticed when an assertion fails; an error of another kind, a
text that is no longer there, or a tree whose tests fail without a fault is reported and makes the exit status 1. Faults
of the learner's backends are in ``backend_faults.py``.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Fault(NamedTuple):
    name: str
    path: str
    text: str
    """Occurs once in the file."""
    planted: str
    only: str = ""
    """Which tests are likely to notice it, as for pytest's ``-k``; all where empty."""


class Suite(NamedTuple):
    """Tests that are to notice faults."""

    files: tuple[str, ...]
    marks: str = "not slow"
    only: str = ""
    """As that of a fault, for faults that have none."""


ORACLE = Suite(("tests/trainer/test_oracle.py", "tests/trainer/test_loop_wiring.py"))


UPDATE, LOOP, SOURCE = "trainer/run/update.py", "trainer/run/loop.py", "trainer/rollout/source.py"
SCHEDULER, STEPS = "trainer/rollout/scheduler.py", "trainer/learner/steps.py"
TABLE, BATCHES = "trainer/data/table.py", "trainer/data/batches.py"
SHAPING = "trainer/algorithms/shaping.py"
ESTIMATORS = "trainer/algorithms/estimators/"
ADVANTAGES, RETURNS, GROUPS = ESTIMATORS + "__init__.py", ESTIMATORS + "returns.py", ESTIMATORS + "group_relative.py"
LOSSES = "trainer/algorithms/losses/"
OBJECTIVE, CLIPPED, WEIGHTED = LOSSES + "objective.py", LOSSES + "clipped.py", LOSSES + "weighted.py"
COVARIANCE = LOSSES + "covariance.py"
TORCH, CRITIC, GRADIENTS = "trainer/learner/torch.py", "trainer/learner/critic.py", "trainer/learner/gradients.py"
OPTIMIZERS, ADAPTERS = "trainer/learner/optimizers.py", "trainer/learner/adapters.py"

FAULTS = [
    Fault(
        "the reference is scored at temperature 1",
        TORCH,
        "TorchScorer(frozen, self._temperature, self._settings)",
        "TorchScorer(frozen, 1.0, self._settings)",
    ),
    Fault("the version is never bumped", LOOP, "counters.version += 1\n            counters.ledger", "counters.ledger"),
    Fault(
        "the same ids with another mask are one",
        UPDATE,
        "key = (s.ids, s.mask, learnt[here].tobytes(), s.turns if by_turns else ())",
        "key = (s.ids, s.turns if by_turns else ())",
    ),
    Fault(
        "weights of the masks are not applied",
        UPDATE,
        "tokens.advantage * tokens.weight * tokens.trained",
        "tokens.advantage * tokens.trained",
    ),
    Fault(
        "minibatches are shuffled the same in every step",
        UPDATE,
        "np.random.default_rng([config.seed, step])",
        "np.random.default_rng([config.seed])",
    ),
    Fault(
        "the ratio is always 1",
        UPDATE,
        '        on_policy = on_policy and taken.get("learner/skipped_steps", 0.0) > 0\n',
        "",
    ),
    Fault(
        "the sign of the KL in the reward",
        SHAPING,
        "tokens.reward - coefficient * estimates",
        "tokens.reward + coefficient * estimates",
    ),
    Fault(
        "the critic's warm-up is a step too long",
        UPDATE,
        "step >= config.critic.warmup_steps",
        "step > config.critic.warmup_steps",
    ),
    Fault(
        "the learning rate of the next step",
        UPDATE,
        "        step=step,\n        steps=config.steps",
        "        step=step + 1,\n        steps=config.steps",
    ),
    Fault(
        "the loop counts steps from 1",
        LOOP,
        "found.kept, step=counters.steps, version",
        "found.kept, step=counters.steps + 1, version",
    ),
    Fault(
        "tasks after refills are skipped", SOURCE, "self.cursor = fresh.stop", "self.cursor = fresh.stop + (count < 3)"
    ),
    Fault(
        "the greedy return of another group",
        TABLE,
        "greedy[g] if greedy else None",
        "greedy[g - 1] if greedy else None",
    ),
    Fault("trained tokens do not tell the same ids apart", UPDATE, "learnt[here].tobytes(), s.turns", "s.turns"),
    Fault("turns do not tell the same ids apart", UPDATE, "s.turns if by_turns else ())", "())"),
    Fault(
        "turns are told apart for no loss",
        UPDATE,
        '"ratio", "token") == "turn-mean"',
        '"ratio", "token") == "turn-product"',
    ),
    Fault(
        "the first of the same ids loses the sum",
        UPDATE,
        "advantage[tokens.of([first])] = together",
        "advantage[tokens.of([first])] = together / len(copies)",
    ),
    Fault(
        "merged though corrected", UPDATE, "and objective.correction is None and not everything", "and not everything"
    ),
    Fault(
        "merged with several minibatches", UPDATE, "if on_policy and _single(config) and part", "if on_policy and part"
    ),
    Fault(
        "sequences without advantages are skipped with an entropy bonus",
        UPDATE,
        "bool(loss.entropy_coef or loss.kl_coef)",
        "bool(loss.kl_coef)",
    ),
    Fault(
        "sequences without advantages are skipped with a KL",
        UPDATE,
        "bool(loss.entropy_coef or loss.kl_coef)",
        "bool(loss.entropy_coef)",
    ),
    Fault(
        "denominators of the tokens that are run",
        UPDATE,
        "tokens=denominators.tokens, sequences=denominators.sequences",
        "sequences=denominators.sequences",
    ),
    Fault(
        "denominators of the sequences that are run",
        UPDATE,
        "tokens=denominators.tokens, sequences=denominators.sequences",
        "tokens=denominators.tokens",
    ),
    Fault(
        "one epoch",
        UPDATE,
        "_minibatches(config.learner, sequences, rng)",
        '_minibatches(config.learner.model_copy(update={"epochs": 1}), sequences, rng)',
    ),
    Fault(
        "the critic has one epoch",
        UPDATE,
        "_minibatches(settings, sequences, rng)",
        '_minibatches(settings.model_copy(update={"epochs": 1}), sequences, rng)',
    ),
    Fault(
        "the critic has one minibatch",
        UPDATE,
        "_minibatches(settings, sequences, rng)",
        '_minibatches(settings.model_copy(update={"minibatches": 1}), sequences, rng)',
    ),
    Fault("the critic shuffles as the policy", UPDATE, "[config.seed, step, 1]", "[config.seed, step]"),
    Fault(
        "the critic learns advantages",
        UPDATE,
        "tokens.return_[tokens.of(copies)].reshape",
        "tokens.advantage[tokens.of(copies)].reshape",
    ),
    Fault(
        "the critic learns one return of the same ids",
        UPDATE,
        "returns[: len(copies), tokens.of([first])] = tokens.return_[tokens.of(copies)].reshape(len(copies), -1)",
        "returns[: len(copies), tokens.of([first])] = tokens.return_[tokens.of([first])]",
    ),
    Fault("the critic's rate is the policy's", UPDATE, "lr=settings.lr)", "lr=config.optimizer.lr)"),
    Fault("no second moment", UPDATE, "advantage[learnt] *= kept", "advantage[learnt] *= 1"),
    Fault(
        "the choice of tokens looks at all of the step",
        UPDATE,
        "lines: IntArray = tokens.of(minibatch)",
        "lines: IntArray = np.arange(len(tokens.sequence))",
    ),
    Fault(
        "staleness from version 0",
        UPDATE,
        "staleness_metrics(table.tokens, version)",
        "staleness_metrics(table.tokens, 0)",
    ),
    Fault("the floor of the rate", UPDATE, "min_share=config.optimizer.lr_min_share", "min_share=0.05"),
    Fault("the decay of the rate", UPDATE, "decay_share=config.optimizer.lr_decay_share", "decay_share=0.2"),
    Fault("no warm-up of the rate", UPDATE, "warmup_steps=config.optimizer.lr_warmup_steps", "warmup_steps=0"),
    Fault(
        "the reference is the policy",
        UPDATE,
        '"reference_logp": parts.reference,',
        '"reference_logp": parts.reference and parts.learner,',
    ),
    Fault(
        "the proximal log-probs are the sampler's",
        UPDATE,
        '"proximal_logp": parts.learner if recompute else None',
        '"proximal_logp": None',
    ),
    Fault(
        "tokens stand a position late",
        BATCHES,
        "tokens.position[lines] - 1",
        "np.maximum(tokens.position[lines] - 1, 1)",
    ),
    Fault("advantages of the sequence before", BATCHES, "place(advantage[lines]", "place(np.roll(advantage[lines], 1)"),
    Fault("the sampler's for the proximal policy's", BATCHES, "place(old[lines]", "place(tokens.sampler_logp[lines]"),
    Fault(
        "every second position",
        BATCHES,
        '"positions": place(position,',
        '"positions": place(position * 2,',
    ),
    Fault(
        "turns of labels",
        BATCHES,
        "place(column[lines], at, dtype",
        "place(column[lines] // 2 if n == 'turn' else column[lines], at, dtype",
    ),
    Fault(
        "groups are split among minibatches",
        BATCHES,
        "members.setdefault(sequence.group, [])",
        "members.setdefault(sequence.group * 100 + sequence.member, [])",
    ),
    Fault("the smallest group first", BATCHES, "sorted(shuffled, key=len, reverse=True)", "sorted(shuffled, key=len)"),
    Fault("minibatches are not shuffled", BATCHES, "rng.permutation(len(groups)).tolist()", "range(len(groups))"),
    Fault("sequences without a token count", BATCHES, "int((counts > 0).sum())", "len(counts)"),
    Fault(
        "scores of the next token",
        BATCHES,
        "given.detach().double().numpy(force=True)[lines >= 0]",
        "np.roll(given.detach().double().numpy(force=True), 1)[lines >= 0]",
    ),
    Fault("first ids have a loss", TABLE, "predicted=position > 0", "predicted=position >= 0"),
    Fault(
        "a turn that continues begins a sequence",
        TABLE,
        "if not sequences or tuple(",
        "if not sequences or len(turn.prompt_ids) == len(sequences[-1]) or tuple(",
    ),
    Fault(
        "failed episodes are trained on",
        TABLE,
        "if not trajectory.scored:",
        'if trajectory.outcome.kind == "cancelled":',
    ),
    Fault(
        "rewards of turns without tokens are lost",
        TABLE,
        "present = counts[self.turns.episode] > 0",
        "present = self.turns.tokens > 0",
    ),
    Fault(
        "states of turns without tokens",
        TABLE,
        "turn.prompt_observation if turn.completion.ids else None",
        "turn.prompt_observation",
    ),
    Fault("cut answers", TABLE, 'turn.completion.finish == "length" for', 'turn.completion.finish == "abort" for'),
    Fault("the shift on every turn", SHAPING, "rewards[last] += config.shift", "rewards += config.shift"),
    Fault("no scale", SHAPING, "rewards = rewards * config.scale", "rewards = rewards * 1.0"),
    Fault(
        "overlong without a buffer",
        SHAPING,
        "lengths - (config.overlong_tokens - config.overlong_buffer)",
        "lengths - config.overlong_tokens",
    ),
    Fault(
        "overlong answers are paid", SHAPING, "-config.overlong_factor * np.clip", "config.overlong_factor * np.clip"
    ),
    Fault(
        "by environment is by group",
        SHAPING,
        "np.unique(table.episodes.env, return_inverse=True)[1]",
        "table.episodes.group",
    ),
    Fault(
        "running numbers of the step before",
        SHAPING,
        "    state.returns.add(np.sort(returns))\n"
        "    mean, _ = _normalization(config.normalize_mean, table, returns, state)",
        "    mean, _ = _normalization(config.normalize_mean, table, returns, state)\n    state.returns.add(returns)",
    ),
    Fault(
        "greedy returns are not normalised",
        SHAPING,
        "(episodes.greedy_return * config.scale + config.shift - mean) * factor",
        "episodes.greedy_return * config.scale + config.shift - mean",
    ),
    Fault(
        "the coefficient does not adapt",
        SHAPING,
        "state.kl_coef if config.kl_target is not None else config.kl_coef",
        "config.kl_coef",
    ),
    Fault("the coefficient adapts the wrong way", SHAPING, "kl / target - 1.0", "1.0 - kl / target"),
    Fault("the horizon of the coefficient", SHAPING, "min(episodes / horizon, 1.0)", "1.0"),
    Fault("abs is k1", SHAPING, '"abs": lambda d, exp: abs(d)', '"abs": lambda d, exp: d'),
    Fault("k3 backwards", SHAPING, "exp(-d) - 1.0 + d", "exp(d) - 1.0 - d"),
    Fault("no bound of k3", SHAPING, "(exp(-d) - 1.0 + d).clip(max=K3_BOUND)", "exp(-d) - 1.0 + d"),
    Fault(
        "KL of tokens that nothing predicts",
        SHAPING,
        "np.where(tokens.predicted, tokens.proximal_logp - tokens.reference_logp, 0.0)",
        "tokens.sampler_logp - tokens.reference_logp",
    ),
    Fault("no whitening", ADVANTAGES, "whitened(advantages) if config.whiten", "advantages if config.whiten"),
    Fault(
        "no lower clip of advantages",
        ADVANTAGES,
        "np.clip(advantages, -config.clip, config.clip)",
        "np.clip(advantages, None, config.clip)",
    ),
    Fault(
        "the critic learns whitened returns",
        ADVANTAGES,
        "return_=found.returns)",
        "return_=None if found.returns is None else advantages + table.tokens.value)",
    ),
    Fault(
        "GAE without the next value",
        RETURNS,
        "accumulate_back(rewards + gamma * following - values",
        "accumulate_back(rewards - values",
    ),
    Fault("GAE without lambda", RETURNS, "label, gamma * lam)", "label, gamma)"),
    Fault(
        "RLOO is Dr. GRPO", GROUPS, "centred_returns(table) * size / np.maximum(size - 1, 1)", "centred_returns(table)"
    ),
    Fault("lengths take no part in OPO", GROUPS, '"mean", 0.0, weight=lengths)', '"mean", 0.0)'),
    Fault("GiGPO without its step advantage", GROUPS, "settings.step_weight * step", "step"),
    Fault("GiGPO's episode advantage at full weight", GROUPS, "settings.episode_weight * episode_adv", "episode_adv"),
    Fault(
        "states span groups",
        GROUPS,
        "number.setdefault(leader[g, text], len(number))",
        "number.setdefault(leader[g, text][1], len(number))",
    ),
    Fault(
        "greedy returns are added",
        RETURNS,
        "table.returns - table.episodes.greedy_return)",
        "table.returns + table.episodes.greedy_return)",
    ),
    Fault(
        "discounts per turn",
        ADVANTAGES,
        "accumulate_back(table.turn_rewards, table.turns.episode, gamma)",
        "accumulate_back(table.turn_rewards, table.turns.episode, 1.0)",
    ),
    Fault("deviations with ddof 0", TABLE, "np.maximum(total - ddof, 1.0)", "np.maximum(total, 1.0)"),
    Fault(
        "easy tasks weigh more",
        SHAPING,
        "config.difficulty_weight * (1.0 - solved)",
        "config.difficulty_weight * solved",
    ),
    Fault("weights are not normalised", SHAPING, "mean = float(weights.mean()) if len(learnt) else 1.0", "mean = 1.0"),
    Fault("long answers weigh more", SHAPING, "(sampled.max() - lengths)", "(lengths - sampled.min())"),
    Fault(
        "errors that are left out are successes", SHAPING, "~episodes.success & (lengths", "episodes.success & (lengths"
    ),
    Fault("truncated episodes are kept", SHAPING, "left_out |= episodes.truncated", "left_out |= False"),
    Fault(
        "the sign of the entropy bonus",
        OBJECTIVE,
        "loss - config.entropy_coef * inputs.entropy",
        "loss + config.entropy_coef * inputs.entropy",
    ),
    Fault(
        "the correction weighs the KL too",
        OBJECTIVE,
        "    tokens = config.constant_tokens\n",
        "    loss = loss * locals().get('weights', 1)\n    tokens = config.constant_tokens\n",
    ),
    Fault("adapters stay on in the reference", ADAPTERS, "layer.enable_adapters(False)", "layer.enable_adapters(True)"),
    Fault("adapters' scale", ADAPTERS, "lora_alpha=alpha,", "lora_alpha=rank,"),
    Fault(
        "weights without adapters", ADAPTERS, "base.float() + layer.get_delta_weight(_ADAPTER).float()", "base.float()"
    ),
    Fault("the KL's gradient is biased", OBJECTIVE, "if config.kl_unbiased else None", "if False else None"),
    Fault(
        "the unbiased KL on the proximal policy",
        OBJECTIVE,
        "log_ratio(inputs.logp, inputs.sampler_logp).exp() if",
        "log_ratio(inputs.logp, inputs.old_logp).exp() if",
    ),
    Fault(
        "k3 of the loss has no bound",
        OBJECTIVE,
        "KL_ESTIMATORS[estimator](d, lambda x: x.exp())",
        '(-d).exp() - 1.0 + d if estimator == "k3" else KL_ESTIMATORS[estimator](d, lambda x: x.exp())',
    ),
    Fault(
        "a mean over tokens for a mean over sequences",
        OBJECTIVE,
        '"seq-mean-token-sum": sequences,',
        '"seq-mean-token-sum": max(denominators.tokens, 1),',
    ),
    Fault(
        "the constant without sequences",
        OBJECTIVE,
        '"constant": sequences * constant_tokens',
        '"constant": constant_tokens',
    ),
    Fault(
        "tis has a lower bound",
        OBJECTIVE,
        "held = ratio.clamp(max=config.high) if",
        "held = ratio.clamp(min=config.low, max=config.high) if",
    ),
    Fault(
        "corrections upside down",
        OBJECTIVE,
        "log_w = log_ratio(inputs.old_logp, inputs.sampler_logp)",
        "log_w = log_ratio(inputs.sampler_logp, inputs.old_logp)",
    ),
    Fault(
        "rejection at the correction's level",
        OBJECTIVE,
        "log_ratio_at(log_w, inputs, config.reject)",
        "log_ratio_at(log_w, inputs, config.level)",
    ),
    Fault("the veto is of tokens", OBJECTIVE, 'sum_over(tiny, inputs, "sequence") > 0', "tiny > 0"),
    Fault(
        "the delta also of positive advantages",
        OBJECTIVE,
        "(inputs.advantages < 0) & (fallen",
        "(inputs.advantages < 9) & (fallen",
    ),
    Fault("turns are whole sequences", OBJECTIVE, 'if over == "turn":', 'if over == "none":'),
    Fault(
        "clip bounds are swapped", CLIPPED, "ratio.clamp(1.0 - low, 1.0 + high)", "ratio.clamp(1.0 - high, 1.0 + low)"
    ),
    Fault(
        "the dual clip of positive advantages",
        CLIPPED,
        "loss = loss.minimum(bound).where(negative, loss)",
        "loss = loss.minimum(bound)",
    ),
    Fault(
        "chosen tokens keep their loss", COVARIANCE, "inputs.advantages.masked_fill(chosen, 0.0)", "inputs.advantages"
    ),
    Fault("the smallest covariance", COVARIANCE, "np.argsort(-_covariance(tokens)", "np.argsort(_covariance(tokens)"),
    Fault("the penalty on all tokens", COVARIANCE, "chosen & (log_r.detach()", "(log_r.detach()"),
    Fault(
        "the policy at temperature 1",
        TORCH,
        "policy = TorchScorer(network, self._temperature, self._settings)",
        "policy = TorchScorer(network, 1.0, self._settings)",
    ),
    Fault("the learning rate is not set", OPTIMIZERS, 'group["lr"] = lr', "pass"),
    Fault(
        "no correction",
        TORCH,
        "make_objective(loss, correction)",
        "make_objective(loss)",
    ),
    Fault("never on policy", STEPS, "replace(batch, old_logp=logp.detach()) if on_policy else batch", "batch"),
    Fault("gradients are kept", TORCH, "self._masters.clear_gradients()\n        sums", "sums"),
    Fault(
        "no clip of the gradient",
        GRADIENTS,
        "clip_gradients(values, self._config.max_grad_norm)",
        "clip_gradients(values, 1e9)",
    ),
    Fault(
        "large steps are taken",
        GRADIENTS,
        "self._limit = math.inf if config.skip_norm is None else config.skip_norm",
        "self._limit = math.inf",
    ),
    Fault("the critic has no clip", CRITIC, "batch.return_mask, self._config.clip", "batch.return_mask, None"),
    Fault(
        "no clip of the critic's gradient",
        CRITIC,
        "self._parameters, self._config.max_grad_norm",
        "self._parameters, 1e9",
    ),
    Fault(
        "the critic's rate is not set",
        CRITIC,
        "take_step(self._optimizers, lr)",
        "take_step(self._optimizers, self._config.lr / 2)",
    ),
    Fault(
        "values are clipped around 0",
        CRITIC,
        "torch.minimum(values, old_values + clip), old_values - clip",
        "torch.minimum(values, old_values * 0 + clip), old_values * 0 - clip",
    ),
    Fault("vectors decay", OPTIMIZERS, "weight.value.ndim >= 2 and", "weight.value.ndim >= 1 and"),
    Fault("embeddings decay", OPTIMIZERS, "(settings.decay_embeddings or not weight.outer)", "True"),
    Fault("the second beta", OPTIMIZERS, "betas=settings.betas", "betas=(settings.betas[0], 0.95)"),
    Fault("warm-up from 0", OPTIMIZERS, "peak * (step + 1) / warmup_steps", "peak * step / warmup_steps"),
    Fault(
        "schedules end late",
        OPTIMIZERS,
        "(step - warmup_steps) / max(1, steps - warmup_steps)",
        "(step - warmup_steps) / max(1, steps)",
    ),
    Fault("the reference is never refreshed", UPDATE, "steps % every == 0:", "steps % every == -1:"),
    Fault(
        "the reference is refreshed a step early",
        UPDATE,
        "steps % every == 0:",
        "(steps + 1) % every == 0:",
    ),
    Fault(
        "the engine keeps old weights",
        LOOP,
        "if self._engine_version != version:",
        "if self._engine_version < 0:",
    ),
    Fault("greedy returns are not passed on", LOOP, "greedy=greedy", "greedy=()"),
    Fault(
        "all that was played is trained on",
        LOOP,
        "config, parts, found.kept,",
        "config, parts, found.played,",
    ),
    Fault(
        "greedy returns in another order",
        SCHEDULER,
        "collect_greedy([group.task for group in kept])",
        "collect_greedy([group.task for group in kept][::-1])",
    ),
    Fault(
        "episodes of the version before",
        LOOP,
        "version, greedy = counters.version, found",
        "version, greedy = counters.version - 1, found",
    ),
    Fault("the critic's old values are its targets", BATCHES, '("values", "value",', '("values", "return_",'),
    Fault(
        "the critic learns 0 where a sequence has no return",
        BATCHES,
        "layout.place(there, predicting, np.bool_)",
        "layout.place(np.ones_like(there), predicting, np.bool_)",
    ),
    Fault(
        "rewards on the first token of their turn",
        TABLE,
        "last = np.maximum(np.cumsum(self.turns.tokens) - 1, first",
        "last = np.maximum(np.cumsum(self.turns.tokens) - np.maximum(self.turns.tokens, 1), first",
    ),
    Fault(
        "one version for all tokens of a turn",
        TABLE,
        "tuple(v for v, tokens in said.spans for _ in range(tokens))",
        "(said.weight_version,) * len(said.ids)",
    ),
    Fault(
        "successes are truncations",
        TABLE,
        "success=episodes.success[episode_of_token]",
        "success=episodes.truncated[episode_of_token]",
    ),
    Fault(
        "weights are normalised over tokens",
        SHAPING,
        "of_episode[table.episode_of_token[trained][first]]",
        "of_episode[table.episode_of_token[trained]]",
    ),
    Fault(
        "advantages are cut before they are whitened",
        ADVANTAGES,
        "    advantages = whitened(advantages) if config.whiten else advantages\n",
        "    advantages = np.clip(advantages, -(config.clip or np.inf), config.clip or np.inf)\n"
        "    advantages = whitened(advantages) if config.whiten else advantages\n",
    ),
    Fault(
        "groups without spread are whitened",
        GROUPS,
        "Estimate(np.where(differs, white, 0.0), {})",
        "Estimate(white, {})",
    ),
    Fault(
        "an entropy bonus without a gradient",
        OBJECTIVE,
        "if entropies is not None and not config.entropy_coef and not objective.part.entropy_gradient:",
        "if entropies is not None and not objective.part.entropy_gradient:",
    ),
    Fault(
        "the critic's gradients of a step before",
        CRITIC,
        "self._network.zero_grad(set_to_none=True)\n        sums",
        "sums",
    ),
]


class _FirstFailure:
    """A pytest plugin that keeps what the first failure says."""

    message = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.message:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(report.longrepr).strip().splitlines()[-1] if crash is None else crash.message
            self.message = f"{report.nodeid.rpartition('::')[2]}: {said.splitlines()[0]}"


def _run(copy: Path, suite: Suite, only: str) -> str:
    """What the first test to fail says; empty when all pass."""
    os.chdir(copy)
    sys.path[:0] = [str(copy), str(copy / "tests" / "trainer")]
    found = _FirstFailure()
    forks = multiprocessing.get_context("fork")  # of this process, which has loaded everything
    multiprocessing.get_context = lambda method=None: forks  # type: ignore[assignment]
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins were loaded before the fork
    options = [
        "-x",
        "-q",
        "-m",
        suite.marks,
        "-k",
        only,
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--rootdir",
        str(copy),
    ]
    code = pytest.main([*options, *quiet, *suite.files], plugins=[found])
    return found.message if found.message or code == 0 else f"pytest ended with {code!r}"


def _in_a_process(copy: Path, suite: Suite, only: str = "") -> str:
    """:func:`_run` in a fork, so that the libraries are loaded once and the trainer anew."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            said = _run(copy, suite, only)
        except BaseException as error:
            said = f"the runner failed: {error!r}"
        os.write(writing, said.encode()[:2000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    return said


def _verdict(fault: Fault, copy: Path, suite: Suite) -> str:
    path = copy / fault.path
    source = path.read_text()
    if source.count(fault.text) != 1:
        return f"its text stands {source.count(fault.text)} times in {fault.path}"
    path.write_text(source.replace(fault.text, fault.planted))
    if fault.path in (LOOP, SOURCE, SCHEDULER):  # those that are likely to notice first
        suite = suite._replace(files=suite.files[::-1])
    try:
        said = _in_a_process(copy, suite, fault.only or suite.only)
    finally:
        path.write_text(source)
    if not said:
        return "NOT NOTICED"
    return ("noticed" if ": AssertionError" in said or ": assert " in said else "NO ASSERTION") + f" by {said[:150]}"


def plant(faults: Sequence[Fault], chosen: Sequence[str], suite: Suite) -> int:
    """Plant the ``chosen`` ones of ``faults`` (all, without a choice), by their numbers or parts of their names; how
    many were not noticed by an assertion of ``suite``."""
    import peft
    import torch.distributed.fsdp
    import transformers  # loaded before the forks

    del peft, torch, transformers
    sys.dont_write_bytecode = True
    wanted: list[tuple[int, Any]] = [
        (i, f)
        for i, f in enumerate(faults)
        if not chosen or any(c == str(i) if c.isdigit() else c in f.name for c in chosen)
    ]
    if not wanted:
        print(f"no fault is called {', '.join(chosen)}; there are: {'; '.join(fault.name for fault in faults)}")
        return 1
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs", "models", "__pycache__"))
        said = _in_a_process(copy, suite, suite.only)
        if said:
            print(f"without a fault the tests fail: {said}")
            return 1
        for number, fault in wanted:
            started = time.monotonic()
            verdict = _verdict(fault, copy, suite)
            missed += not verdict.startswith("noticed")
            print(f"{number:3} {fault.name}: {verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} faults noticed")
    return missed


if __name__ == "__main__":
    sys.exit(min(plant(FAULTS, sys.argv[1:], ORACLE), 1))
