"""What the learner may do with each loss's rows, and which keys each loss reads: data that is checked by behaviour."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loss_inputs import LossRow, losses_of, packed, random_rows
from pydantic import ValidationError

from roll_envs.errors import ConfigError
from roll_envs.settings import description_and_origin
from trainer.algorithms.losses import StepTokens
from trainer.cli import main
from trainer.config import CorrectionConfig, LossConfig
from trainer.config.load import parse_config
from trainer.config.parts import LOSSES, part_settings

LOSS_KEYS: dict[str, frozenset[str]] = {
    "cispo": frozenset({"clip_low", "clip_high"}),
    "clip": frozenset({"clip_low", "clip_high", "dual_clip", "ratio"}),
    "clip_cov": frozenset({"clip_low", "clip_high", "covariance_share", "covariance_low", "covariance_high"}),
    "dppo": frozenset({"divergence_low", "divergence_high", "divergence_coef"}),
    "gmpo": frozenset({"clip_low", "clip_high"}),
    "gspo": frozenset({"clip_low", "clip_high"}),
    "gspo_token": frozenset({"clip_low", "clip_high"}),
    "kimi": frozenset({"proximal_coef"}),
    "kl_cov": frozenset({"covariance_share", "covariance_coef"}),
    "raft_pp": frozenset({"clip_high"}),
    "reinforce": frozenset(),
    "sapo": frozenset({"tau_positive", "tau_negative"}),
    "topr": frozenset({"positive_weight", "negative_weight", "ratio"}),
    "vespo": frozenset({"power_positive", "decay_positive", "power_negative", "decay_negative"}),
}
"""The settings of each built-in loss; those that all have stand in the section."""

CLIP_DEFAULTS: dict[str, tuple[float, float]] = {
    "cispo": (1.0, 4.0),  # no lower bound, as in the paper; SkyRL's and TRL's upper one (a ratio of 5)
    "clip": (0.2, 0.28),  # DAPO
    "clip_cov": (0.2, 0.28),
    "gmpo": (0.4, 0.4),  # of the log-ratio: the paper's (exp(-0.4), exp(0.4))
    "gspo": (3e-4, 4e-4),  # the paper's; verl's and ROLL's general 0.2 never bites on a geometric mean
    "gspo_token": (3e-4, 4e-4),
    "raft_pp": (0.2, 0.2),
}
"""Where a configuration does not name them."""

ANCHORED_AT_SAMPLER = frozenset({"dppo", "vespo"})

OTHER: dict[str, Any] = {
    "clip_low": 0.05, "clip_high": 0.03, "dual_clip": 1.1, "ratio": "sequence-mean", "positive_weight": 2.0,
    "negative_weight": 3.0, "tau_positive": 2.0, "tau_negative": 3.0, "proximal_coef": 0.5, "divergence_low": 0.01,
    "divergence_high": 0.02, "divergence_coef": 0.5, "covariance_share": 0.4, "covariance_low": 0.1,
    "covariance_high": 1.2, "covariance_coef": 3.0, "power_positive": 1.0, "decay_positive": 1.0,
    "power_negative": 1.0, "decay_negative": 1.0,
}  # fmt: skip
"""Another value than the default for every key that some losses read."""


def gradients(name: str, rows: list[LossRow], **config: Any) -> torch.Tensor:
    given = packed(rows)
    loss, _ = losses_of(name, given.inputs(), **config)
    (gradient,) = torch.autograd.grad(loss.sum(), given.logp)
    return gradient


def with_advantages(rows: list[LossRow], scale: float, seed: int = 0) -> list[LossRow]:
    rng = np.random.default_rng(seed)
    return [replace(row, advantages=scale * rng.normal(size=len(row.advantages))) for row in rows]


@pytest.mark.parametrize("name", LOSSES.built_in())
def test_only_advantages(name: str) -> None:
    """Where the flag is set, rows without any advantage have no gradient; where it is not, some have."""
    found = [gradients(name, with_advantages(random_rows(seed), 0.0)).any().item() for seed in range(5)]
    assert any(found) != LOSSES.find(name).only_advantages


@pytest.mark.parametrize("name", LOSSES.built_in())
def test_linear_on_policy(name: str) -> None:
    """Where the flag is set, gradients of two sets of advantages add up to that of their sum, at a ratio of 1."""
    spec = LOSSES.find(name)
    uneven = {"positive_weight": 2.0} if name == "topr" else {}
    for seed in range(5):
        rows = [replace(row, old=row.logp) for row in random_rows(seed)]
        one, other = with_advantages(rows, 1.0, 1), with_advantages(rows, 1.0, 2)
        both = [replace(a, advantages=a.advantages + b.advantages) for a, b in zip(one, other, strict=True)]
        apart = gradients(name, one, **uneven) + gradients(name, other, **uneven)
        linear = torch.allclose(gradients(name, both, **uneven), apart, atol=1e-9)
        if spec.linear_on_policy:
            assert linear, seed
        elif spec.select is None:
            assert not linear, seed
    # What a loss chooses depends on the advantages of all rows, so that rows cannot be run as one.
    assert spec.select is None or not spec.linear_on_policy


@pytest.mark.parametrize("name", LOSSES.built_in())
def test_a_loss_reads_the_settings_it_declares_and_each_says_what_it_is(name: str) -> None:
    spec = LOSSES.find(name)
    declared = spec.settings.model_fields
    assert set(declared) == LOSS_KEYS[name]
    assert all(all(description_and_origin(field)) for field in declared.values())
    assert OTHER.keys() == set().union(*LOSS_KEYS.values())
    rng = np.random.default_rng(1)
    step = StepTokens(old_logp=rng.normal(0, 2, 300), advantages=rng.normal(size=300))

    def behaviour(**config: Any) -> list[Any]:
        found: list[Any] = []
        for seed in range(4):
            given = packed(random_rows(seed))
            loss, _ = losses_of(name, given.inputs(), **config)
            found += [loss.tolist(), torch.autograd.grad(loss.sum(), given.logp)[0].tolist()]
        if spec.select is not None:
            found.append(spec.select(step, spec.settings(**config), np.random.default_rng(0)).tolist())
        return found

    usual = behaviour()
    assert {key for key in declared if behaviour(**{key: OTHER[key]}) != usual} == set(declared)


def test_where_unread_keys_stand() -> None:
    text = "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nloss:\n  name: reinforce\n"
    with pytest.raises(ConfigError) as caught:
        parse_config(text, ["loss.dual_clip=3.0", "loss.constant_tokens=9"], source="run.yaml")
    assert str(caught.value).splitlines() == [
        "run.yaml:5: loss.constant_tokens is set, but loss.aggregation is 'token-mean'; 'constant' reads it",
        "override 'loss.dual_clip=3.0': loss.dual_clip is set, but loss 'reinforce' does not read it; it is read by: "
        "clip; leave it out",
    ]


def test_a_dry_run_knows_the_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\n", encoding="utf-8")
    assert main([str(path), "--dry-run", "loss.name=gspo"]) == 0
    capsys.readouterr()
    assert main([str(path), "--dry-run", "loss.name=gsppo"]) == 2
    assert "no policy loss 'gsppo'; did you mean 'gspo'" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "bounds"), sorted(CLIP_DEFAULTS.items()))
def test_bounds_that_the_file_does_not_name_are_the_losss_own(name: str, bounds: tuple[float, float]) -> None:
    def found(**config: Any) -> tuple[float, float]:
        settings = part_settings(LossConfig(name=name, **config), LOSSES.find(name))
        return getattr(settings, "clip_low", bounds[0]), settings.clip_high

    assert found() == bounds
    assert found(clip_high=0.7) == (bounds[0], 0.7)


@pytest.mark.parametrize("name", LOSSES.built_in())
def test_the_defaults_are_those_of_the_configuration(name: str) -> None:
    part = LOSSES.find(name)
    assert part_settings(LossConfig(name=name), part) == part.settings()
    assert part.anchored_at_sampler == (name in ANCHORED_AT_SAMPLER)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"high": 3.0}, "correction.high is set, but correction.name 'none' does not read it"),
        ({"name": "tis", "low": 0.1}, "correction.low is set, but correction.name 'tis' does not read it"),
        ({"name": "mis", "low": 3.0}, "correction.low 3 must be less than correction.high 2"),
        (
            {"name": "icepop", "level": "sequence-product"},
            "'icepop' is per token; for level 'sequence-product' take correction.name 'mis'",
        ),
        ({"reject_low": 0.9}, "are read where correction.reject is not 'none'"),
        ({"reject": "sequence-mean"}, "needs correction.reject_low less than correction.reject_high"),
        ({"reject": "sequence-mean", "reject_low": 2.0, "reject_high": 1.0}, "needs correction.reject_low less than"),
    ],
)
def test_corrections_that_do_not_fit(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        CorrectionConfig(**settings)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["loss.proximal=sampler", "correction.name=tis"], "so that every ratio of the section correction is 1"),
        (["loss.proximal=sampler", "correction.second_moment=0.04"], "so that every ratio of the section correction"),
        (["loss.proximal=sampler", "correction.sequence_delta=0.1"], None),
        (["loss.name=clip", "correction.name=tis"], None),
        *[
            ([f"loss.name={name}", "correction.name=mis"], f"loss '{name}' takes its ratio to the sampler itself")
            for name in sorted(ANCHORED_AT_SAMPLER)
        ],
        (["loss.name=dppo", "correction.veto=1e-4"], None),
    ],
)
def test_losses_and_corrections_that_do_not_fit_each_other(overrides: list[str], expected: str | None) -> None:
    text = "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\n"
    if expected is None:
        parse_config(text, overrides)
    else:
        with pytest.raises(ConfigError, match=expected):
            parse_config(text, overrides)
