"""Settings of other systems that there are none of here on purpose, and why: told where such a key is written."""

from __future__ import annotations

__all__ = ["refusal"]

_TRUNCATION = (
    "it cuts ids off the sampler's distribution that the learner's log-probs still count, so that ratios and KL would "
    "be biased; answers are sampled from the whole distribution at sampling.temperature: leave it out"
)
_PENALTY = (
    "it changes the sampler's probabilities by what was written before, which the learner's log-probs do not know, so "
    "that ratios and KL would be biased; answers are sampled from the model's own distribution at "
    "sampling.temperature: leave it out, and put what you want into the reward (verifier 'repetition')"
)

_REASONS: dict[str, str] = {
    **dict.fromkeys(("top_p", "top_k", "min_p", "top_a", "typical_p", "epsilon_cutoff", "eta_cutoff"), _TRUNCATION),
    **dict.fromkeys(
        ("repetition_penalty", "frequency_penalty", "presence_penalty", "no_repeat_ngram_size", "logit_bias"), _PENALTY
    ),
}


def refusal(path: tuple[str, ...]) -> str | None:
    """Why there is no key of this name anywhere, and what to do; None for names that nothing is known of."""
    return _REASONS.get(path[-1].lower().replace("-", "_"))
