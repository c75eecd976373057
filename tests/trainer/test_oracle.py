"""The trainer's ``update`` beside the oracle: the same rewards, advantages, losses, gradients and new weights.

Configurations and episodes are drawn by seed, and both take several training steps in a row. For the comparison the
trainer computes in float64 throughout, so that what is left is the order of sums, some 1e-15: the tolerance of 1e-7
leaves room for small deviations by which other numbers are divided, and for AdamW, whose update is the gradient over
its own size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from oracle import Oracle
from oracle_cases import DEFAULTS, draw_groups, draw_settings
from oracle_losses import Undecided
from oracle_rewards import Settings
from oracle_sequences import Shape, logprobs
from oracle_small_cases import CASES, Case, written_groups
from transformers import LlamaConfig, LlamaForCausalLM

from roll_envs.types import Group, Metrics
from trainer.algorithms.losses import LossInputs
from trainer.algorithms.losses.objective import make_objective, policy_loss
from trainer.config import LossConfig, RunConfig
from trainer.config.parts import LOSSES
from trainer.data import batches
from trainer.data.batches import denominators_of
from trainer.data.table import make_table, sequences_of
from trainer.learner import gradients, make_learner, muon
from trainer.model.network import LanguageModel
from trainer.run.update import make_parts, update

_NARROW = np.float32
VOCABULARY = 20
SHAPE = Shape(layers=1, heads=2, rope_theta=30.0)
TOLERANCE = 1e-7
STEPS = 3

# -- the trainer as the comparison sees it: everything that depends on its interfaces stands here ----------------------


def configuration(settings: Settings) -> RunConfig:
    tree: dict[str, object] = {"format": 1, "name": "oracle", "env": {"id": "roll/A-v0"}}
    always = ("seed", "steps", "advantage.name", "loss.name")
    for key, value in settings.items():
        if value == DEFAULTS[key] and key not in always:
            continue
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value  # type: ignore[index]
    return RunConfig.model_validate(tree)


class Trainer:
    """The trainer on a small Llama."""

    def __init__(self, settings: Settings) -> None:
        config = self.config = configuration(settings)
        network = _network(settings["seed"])
        self.first = {name: value.clone() for name, value in network.named_parameters()}
        self.learner = make_learner(
            LanguageModel(network=network, tokenizer=None),
            loss=config.loss,
            optimizer=config.optimizer,
            temperature=config.sampling.temperature,
            correction=config.correction,
            settings=config.learner,
        )
        values = settings["advantage.name"] in ("gae", "bi_level_gae")
        self.parts = make_parts(
            config,
            self.learner,
            critic=self.learner.critic(config.critic) if values else None,
            reference=self.learner.reference() if config.reward.kl_coef or config.loss.kl_coef else None,
        )

    def update(self, groups: Sequence[Group], *, step: int, version: int, greedy: Sequence[float | None]) -> Metrics:
        return update(self.config, self.parts, groups, step=step, version=version, greedy=greedy)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return dict(self.learner.weights())

    @property
    def adapters(self) -> dict[str, torch.Tensor]:
        """LoRA's matrices by "LAYER.A" and "LAYER.B"; empty without LoRA."""
        return dict(self.learner.optimizer_state().get("lora", {}).get("adapters", {}))

    @property
    def critic(self) -> dict[str, torch.Tensor]:
        """The critic's weights as the oracle names them; empty without one."""
        found = {} if self.parts.critic is None else dict(self.parts.critic.weights())
        return {name.replace("body.", "model."): value for name, value in found.items()}

    @property
    def memory(self) -> Metrics:
        state = self.parts.state
        return {"kl_coef": state.kl_coef, "returns_mean": state.returns.mean, "returns_count": state.returns.count}


def _network(seed: int) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                intermediate_size=24,
                num_hidden_layers=SHAPE.layers,
                num_attention_heads=SHAPE.heads,
                max_position_embeddings=64,
                rope_parameters={"rope_type": "default", "rope_theta": SHAPE.rope_theta},
                initializer_range=0.4,
                tie_word_embeddings=True,
                attn_implementation="sdpa",
            )
        )
        for name, value in network.named_parameters():
            if "norm" in name:
                value.data.add_(0.2 * torch.randn_like(value))
    return network.double()


@pytest.fixture(autouse=True)
def everything_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the trainer and transformers say float32, they get float64; and so does Muon for its bfloat16."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
    monkeypatch.setattr(muon, "precision_of_products", lambda device: torch.float64)
    monkeypatch.setattr(np, "float32", np.float64)
    columns = ((*names, np.float64 if kind is _NARROW else kind, rest) for *names, kind, rest in batches._COLUMNS)
    monkeypatch.setattr(batches, "_COLUMNS", tuple(columns))
    monkeypatch.setitem(gradients.DTYPES, "float32", torch.float64)


# -- the comparison ----------------------------------------------------------------------------------------------------


def compare(case: Case, *, drawn: bool = False) -> None:
    """Both take the case's training steps; fails at the first number that differs, with the configuration.

    A ``drawn`` case in which rounding decides is skipped.
    """
    settings = DEFAULTS | case.settings
    seed = settings["seed"]
    trainer = Trainer(settings)
    oracle = Oracle(settings, trainer.first, SHAPE, trainer.adapters)
    temperature = settings["sampling.temperature"]

    def policy(ids: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return logprobs(oracle.weights, ids, temperature, SHAPE).numpy()

    rng = np.random.default_rng([seed, 3])
    for step in range(case.steps):
        if case.groups is None:
            groups = draw_groups(seed, step, step + 1, VOCABULARY, policy)
        else:
            groups = written_groups(case.groups, step, step + 1, policy)
        greedy: Sequence[float | None] = case.greedy or []
        if settings["advantage.name"] == "remax" and not greedy:
            greedy = [None if rng.random() < 0.2 else float(rng.normal()) for _ in groups]
        found = trainer.update(groups, step=step, version=step + 1, greedy=greedy)
        try:
            wanted = oracle.update(groups, step=step, version=step + 1, greedy=greedy)
        except Undecided:
            assert drawn, "a number that is 0 but for rounding decides: write another case"
            pytest.skip("a number that is 0 but for rounding decides")
        place = f"step {step}: {case.settings}"
        for name, value in wanted.items():
            assert name in found, f"{name} is missing; {place}"
            assert math.isclose(found[name], value, rel_tol=TOLERANCE, abs_tol=TOLERANCE), (
                f"{name} is {found[name]}, expected {value}; {place}"
            )
        _compare_weights("weights", trainer.weights, oracle.weights, place)
        if trainer.critic:
            _compare_weights("critic", trainer.critic, oracle.critic, place)
        assert trainer.memory["kl_coef"] == pytest.approx(oracle.memory.kl_coef, rel=1e-12), place
        assert trainer.memory["returns_count"] == len(oracle.memory.returns), place


def _compare_weights(what: str, found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], place: str) -> None:
    for name, value in wanted.items():
        if name not in found:
            continue
        error = float((found[name] - value.detach()).abs().max())
        assert error < TOLERANCE, f"{what}: {name} differs by {error}; {place}"


@pytest.mark.parametrize("name", CASES)
def test_the_trainer_does_what_the_oracle_does_in_small_cases(name: str) -> None:
    compare(CASES[name])


@pytest.mark.parametrize("seed", range(36))
def test_the_trainer_does_what_the_oracle_does(seed: int) -> None:
    compare(Case(settings=draw_settings(seed), steps=STEPS), drawn=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(36, 160))
def test_the_trainer_does_what_the_oracle_does_over_many_configurations(seed: int) -> None:
    compare(Case(settings=draw_settings(seed), steps=STEPS), drawn=True)


def test_a_loss_reads_what_happened_in_the_episode_of_each_token() -> None:
    """No built-in loss reads these columns, so that the comparison above does not see them."""
    seen: list[LossInputs] = []

    def watch(inputs: LossInputs, settings: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        seen.append(inputs)
        return -inputs.advantages * inputs.logp, {}

    groups = draw_groups(3, 0, 1, VOCABULARY, lambda ids: np.full((len(ids), VOCABULARY), -3.0))
    sequences = sequences_of(groups)
    table, used = make_table(groups, sequences), list(range(len(sequences)))
    LOSSES.register("watch", watch)
    try:
        objective = make_objective(LossConfig(name="watch"))
        for batch in batches.make_batches(sequences, table.tokens, used, pack_tokens=20, tokens_per_microbatch=40):
            policy_loss(objective, batch, torch.zeros_like(batch.advantages), denominators_of(table.tokens, used))
    finally:
        LOSSES.unregister("watch")
    episodes = {(g, t.member): t for g, group in enumerate(groups) for t in group.trajectories}
    found = set()
    for inputs in seen:
        assert inputs.success is not None
        assert inputs.truncated is not None
        assert inputs.episode_return is not None
        for place in inputs.mask.nonzero().tolist():
            at = tuple(place)
            sequence = sequences[int(inputs.sequence[at])]
            episode = episodes[sequence.group, sequence.member]
            assert bool(inputs.success[at]) == episode.success
            assert bool(inputs.truncated[at]) == (episode.outcome.kind == "truncated")
            assert float(inputs.episode_return[at]) == pytest.approx(episode.total_reward)
            found.add((episode.success, episode.outcome.kind == "truncated"))
    assert found >= {(True, False), (False, True)}  # episodes in which the two columns differ
