"""Learning-rate schedules against worked numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_envs.errors import UnknownNameError
from trainer.learner.optimizers import SCHEDULES, learning_rate


def rates(name: str, steps: int, *, warmup_steps: int = 2, **shares: float) -> list[float]:
    each = [learning_rate(name, 1.0, step=i, steps=steps, warmup_steps=warmup_steps, **shares) for i in range(steps)]
    return [round(rate, 6) for rate in each]


def test_by_hand() -> None:
    assert rates("constant", 4) == [0.5, 1, 1, 1]
    assert rates("linear", 4) == [0.5, 1, 1, 0.525]
    assert rates("cosine", 6) == [0.5, 1, 1, 0.860876, 0.525, 0.189124]  # 0.05 + 0.95 * (0.853553, 0.5, 0.146447)
    assert rates("linear", 4, warmup_steps=0, min_share=0.0) == [1, 0.75, 0.5, 0.25]
    assert rates("wsd", 6, decay_share=0.5) == [0.5, 1, 1, 1, 1, 0.525]
    assert rates("wsd", 10, warmup_steps=0, min_share=0.1, decay_share=0.4) == [1] * 7 + [0.775, 0.55, 0.325]
    assert rates("wsd", 4, decay_share=1.0) == rates("linear", 4)
    assert rates("wsd", 4, decay_share=0.0) == rates("constant", 4)


@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(0, 30),
    st.integers(1, 60),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_rates_rise_and_then_fall_between_floor_and_peak(
    name: str, warmup_steps: int, steps: int, min_share: float, decay_share: float
) -> None:
    found = [
        learning_rate(
            name, 0.3, step=i, steps=steps, warmup_steps=warmup_steps, min_share=min_share, decay_share=decay_share
        )
        for i in range(steps + 5)
    ]
    rising, falling = found[: warmup_steps + 1], found[warmup_steps:]
    assert rising == sorted(rising)
    assert all(a >= b - 1e-12 for a, b in pairwise(falling))
    assert all(0.3 * min_share - 1e-12 <= rate <= 0.3 + 1e-12 for rate in falling)
    if name != "constant" and decay_share > 0 and steps > warmup_steps:
        assert falling[-1] == pytest.approx(0.3 * min_share)


def test_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="cosin"):
        learning_rate("cosin", 1.0, step=0, steps=1, warmup_steps=0)
