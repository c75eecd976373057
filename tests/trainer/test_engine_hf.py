"""The built-in engine against a reference without cache or batching. Promises 1 (exact tokens), 3 (nothing waits for
ever), 5 (its log-probs are the model's) and 6 (the same seed gives the same ids, whatever shares the batch)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from tiny import full_logits, reference_completion, tiny_model
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from roll_envs.errors import ConfigError, DeadlineExceededError, EngineError
from roll_envs.policy import Policy
from roll_envs.types import Completion, SamplingParams
from trainer.engines.hf import HFEngine, choose_ids
from trainer.engines.prefix_cache import CachedNetwork, OpenSequence
from trainer.model.network import LanguageModel

FOREVER = 30.0


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model()


@pytest.fixture
def engine(model: LanguageModel) -> Iterator[HFEngine]:
    made = HFEngine(model, max_running=4, max_tokens=400)
    yield made
    made.close()
    assert not made._thread.is_alive()


def prompts(count: int, seed: int = 0, longest: int = 90) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(5, 250, size=rng.integers(1, longest)).tolist()) for _ in range(count)]


def params(seed: int, *, n: int = 12, temperature: float = 0.7, stop: tuple[int, ...] = ()) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_new_tokens=n, stop_ids=stop, seed=seed)


def together(engine: HFEngine, requests: list[tuple[tuple[int, ...], SamplingParams]]) -> list[Completion]:
    """All requests queued before the first pass, in one continuous batch."""
    engine.pause()
    futures = [engine.submit(p, s, timeout_s=FOREVER) for p, s in requests]
    engine.resume()
    return [f.result(timeout=FOREVER) for f in futures]


def free_slots(engine: HFEngine) -> int:
    return len(engine._network.free_slots)


def check_reference(model: LanguageModel, prompt: tuple[int, ...], sampling: SamplingParams, got: Completion) -> None:
    ids, logprobs = reference_completion(model, prompt, sampling)
    assert got.ids == tuple(ids)
    assert np.allclose(got.logprobs, logprobs, atol=1e-5)


def test_completions_equal_the_reference_for_mixed_lengths(engine: HFEngine, model: LanguageModel) -> None:
    stops = tuple(range(0, 60))
    requests = [
        (p, params(i, n=1 + 3 * (i % 5), temperature=(0.0, 0.5, 1.0)[i % 3], stop=stops if i % 2 else ()))
        for i, p in enumerate(prompts(14))
    ]
    done = together(engine, requests)
    for (prompt, sampling), completion in zip(requests, done, strict=True):
        check_reference(model, prompt, sampling, completion)
    assert {c.finish for c in done} == {"stop", "length"}


def test_completions_equal_the_reference_from_many_threads(engine: HFEngine, model: LanguageModel) -> None:
    requests = [(p, params(100 + i, n=2 + i % 7)) for i, p in enumerate(prompts(16, seed=1))]
    done: dict[int, Completion] = {}

    def ask(i: int) -> None:
        time.sleep(0.001 * (i % 5))
        done[i] = engine.generate(*requests[i], timeout_s=FOREVER)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FOREVER)
    for i, (prompt, sampling) in enumerate(requests):
        check_reference(model, prompt, sampling, done[i])


def test_log_probs_are_those_of_the_model_at_the_temperature(engine: HFEngine, model: LanguageModel) -> None:
    for temperature in (0.3, 0.7, 1.0, 2.0):
        (prompt,) = prompts(1, seed=2)
        got = engine.generate(prompt, params(5, temperature=temperature), timeout_s=FOREVER)
        logits = full_logits(model, prompt + got.ids)[len(prompt) - 1 : -1].double()
        expected = (logits / temperature).log_softmax(-1)[range(len(got.ids)), list(got.ids)]
        assert np.allclose(got.logprobs, expected.tolist(), atol=1e-5)


@pytest.mark.parametrize("scaling", ["final_logit_softcapping", "logits_scaling"])
def test_logits_that_a_model_changes_behind_its_head(scaling: str) -> None:
    own = tiny_model()
    setattr(own.network.config, scaling, 2.0)
    if scaling == "logits_scaling":
        with pytest.raises(ConfigError, match=r"logits_scaling 2.0, which learner and built-in engine do not apply"):
            HFEngine(own)
        return
    engine = HFEngine(own, device="cpu")
    got = engine.submit((5, 6, 7), params(1), timeout_s=FOREVER).result()
    engine.close()
    logits = 2 * (full_logits(own, [5, 6, 7, *got.ids])[2:-1] / 2).tanh()
    expected = (logits / 0.7).log_softmax(-1).gather(1, torch.tensor(got.ids)[:, None])[:, 0]
    assert got.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_heads_by_another_name_and_without_a_number_for_keys() -> None:
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    network: Any = GPTNeoXForCausalLM(GPTNeoXConfig(**shape, num_attention_heads=2)).eval()
    model = LanguageModel(network=network, tokenizer=None)
    engine = HFEngine(model, device="cpu")
    check_reference(model, (5, 6, 7), params(1), engine.submit((5, 6, 7), params(1), timeout_s=FOREVER).result())
    engine.close()


def test_the_same_seed_gives_the_same_ids_whichever_batch(engine: HFEngine) -> None:
    wanted = (prompts(1, seed=3)[0], params(7))
    alone = engine.generate(*wanted, timeout_s=FOREVER)
    for others in (1, 3, 9):
        batch = [(p, params(50 + i)) for i, p in enumerate(prompts(others, seed=others))]
        among = together(engine, [*batch[:2], wanted, *batch[2:]])[min(2, others)]
        assert among.ids == alone.ids
        assert np.allclose(among.logprobs, alone.logprobs, atol=1e-5)
    other = engine.generate(wanted[0], params(8), timeout_s=FOREVER)
    assert other.ids != alone.ids


def test_sampling_follows_the_distribution(engine: HFEngine, model: LanguageModel) -> None:
    (prompt,) = prompts(1, seed=4)
    expected = (full_logits(model, prompt)[-1].double() / 0.7).softmax(-1).numpy()
    done = together(engine, [(prompt, params(i, n=1)) for i in range(600)])
    counts = np.bincount([c.ids[0] for c in done], minlength=len(expected))
    likely = np.argsort(-expected)[:5]
    assert expected[likely].sum() > 0.2
    spread = np.sqrt(600 * expected[likely] * (1 - expected[likely]))
    assert (np.abs(counts[likely] - 600 * expected[likely]) < 4 * spread).all()


def test_requests_that_share_a_distribution_draw_from_it_each(model: LanguageModel, monkeypatch: Any) -> None:
    """Made once for all that share it, and few of them at a time, the answers are those of each request alone."""
    made: list[int] = []

    def counted(logits: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made.append(len(logits))
        return choose_ids(logits, *rest)

    monkeypatch.setattr("trainer.engines.hf.choose_ids", counted)
    monkeypatch.setattr("trainer.engines.hf.DRAWN_AT_ONCE", 2 * model.network.config.vocab_size)
    engine = HFEngine(model, max_running=16, max_tokens=400)
    requests = [
        (prompt, params(i, n=1, temperature=(0.0, 0.7)[i % 2]))
        for i, prompt in enumerate([p for p in prompts(3, seed=11) for _ in range(5)])
    ]
    done = together(engine, requests)
    engine.close()
    assert made == [2, 2, 2]  # three prompts at two temperatures
    for (prompt, sampling), got in zip(requests, done, strict=True):
        check_reference(model, prompt, sampling, got)


def test_without_a_seed_answers_differ(engine: HFEngine) -> None:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=12)
    done = together(engine, [(prompts(1)[0], sampling)] * 4)
    assert len({c.ids for c in done}) == 4


def test_greedy_takes_the_most_likely(engine: HFEngine, model: LanguageModel) -> None:
    (prompt,) = prompts(1, seed=5)
    got = engine.generate(prompt, params(0, temperature=0.0), timeout_s=FOREVER)
    logits = full_logits(model, prompt + got.ids)[len(prompt) - 1 : -1]
    assert got.ids == tuple(logits.argmax(-1).tolist())
    assert got.ids == engine.generate(prompt, params(1, temperature=0.0), timeout_s=FOREVER).ids


def test_stop_ids_end_an_answer_and_stand_in_it(engine: HFEngine) -> None:
    (prompt,) = prompts(1, seed=6)
    free = engine.generate(prompt, params(3, n=12), timeout_s=FOREVER)
    assert (free.finish, len(free.ids), len(free.logprobs)) == ("length", 12, 12)
    stop = free.ids[5]
    cut = engine.generate(prompt, params(3, n=12, stop=(stop,)), timeout_s=FOREVER)
    assert cut.finish == "stop"
    assert cut.ids == free.ids[: free.ids.index(stop) + 1]
    last = engine.generate(prompt, params(3, n=6, stop=(stop,)), timeout_s=FOREVER)
    assert last.finish == "stop"


# -- continuous batching -----------------------------------------------------------------------------------------------


def passes_when_done(engine: HFEngine, future: Future[Completion]) -> list[int]:
    seen: list[int] = []
    future.add_done_callback(lambda _: seen.append(engine._network.passes))
    return seen


def test_a_short_request_that_arrives_later_finishes_first(engine: HFEngine) -> None:
    entered = threading.Event()
    forward = engine._network._forward

    def watched(*args: Any) -> torch.Tensor:
        if engine._network.passes >= 20:
            entered.set()
        return forward(*args)

    engine._network._forward = watched  # type: ignore[method-assign]
    long = engine.submit(prompts(1)[0], params(1, n=200), timeout_s=FOREVER)
    long_done = passes_when_done(engine, long)
    assert entered.wait(FOREVER)
    asked = engine._network.passes
    short = engine.submit((9, 8, 7), params(2, n=3), timeout_s=FOREVER)
    short_done = passes_when_done(engine, short)
    short.result(FOREVER)
    assert not long.done()
    long.result(FOREVER)
    # Its prompt and 3 tokens; the passes between asking and admission are those of one thread switch.
    assert short_done[0] - asked < 100
    assert short_done[0] < long_done[0]
    assert 200 <= long_done[0] <= 210, "the long request lost passes to the short one"


def test_finished_rows_free_their_slots(engine: HFEngine) -> None:
    """16 requests on 4 slots. Lock-step batches of 4 would need 4 times the longest."""
    lengths = [40, 2, 2, 2] * 4
    requests = [(p, params(i, n=n)) for i, (p, n) in enumerate(zip(prompts(16, seed=7), lengths, strict=True))]
    before = engine._network.passes
    done = together(engine, requests)
    assert [len(c.ids) for c in done] == lengths
    used = engine._network.passes - before
    assert used < 4 * 40, "finished rows keep their slots"
    assert free_slots(engine) == 4


def test_rows_share_passes(engine: HFEngine) -> None:
    before = engine._network.passes
    together(engine, [(p, params(i, n=10)) for i, p in enumerate(prompts(4))])
    assert engine._network.passes - before <= 11


# -- prefix reuse ------------------------------------------------------------------------------------------------------


Asked = list[tuple[tuple[int, ...], Completion]]


def conversation(
    engine: HFEngine, turns: int, fresh: list[tuple[int, ...]]
) -> list[tuple[tuple[int, ...], Completion]]:
    ids: tuple[int, ...] = ()
    asked = []
    for turn in range(turns):
        prompt = ids + fresh[turn]
        completion = engine.generate(prompt, params(turn, n=5), timeout_s=FOREVER)
        asked.append((prompt, completion))
        ids = prompt + completion.ids
    return asked


def test_the_next_turn_pays_for_its_new_tokens_only(model: LanguageModel, engine: HFEngine) -> None:
    fresh = prompts(6, seed=8, longest=40)
    before = engine._network.tokens_computed
    asked = conversation(engine, 6, fresh)
    # Each token is run once but for the last sampled one of each answer, which only the next prompt needs.
    assert engine._network.tokens_computed - before == len(asked[-1][0]) + 5 - 1
    for turn, (prompt, completion) in enumerate(asked):
        check_reference(model, prompt, params(turn, n=5), completion)


def test_prefix_reuse_among_other_episodes(model: LanguageModel, engine: HFEngine) -> None:
    fresh = [prompts(4, seed=20 + e, longest=30) for e in range(6)]
    asked: dict[int, Asked] = {}
    threads = [
        threading.Thread(target=lambda e=e: asked.update({e: conversation(engine, 4, fresh[e])})) for e in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FOREVER)
    for episode in asked.values():
        for turn, (prompt, completion) in enumerate(episode):
            check_reference(model, prompt, params(turn, n=5), completion)


def test_requests_with_the_same_prompt_share_one_run(model: LanguageModel) -> None:
    a, b, c = prompts(3, seed=11)
    order = [a, a, b, a, c, c, b, a]
    requests = [(p, params(200 + i, n=3 + i)) for i, p in enumerate(order)]
    engine = HFEngine(model, max_running=8, max_tokens=400)
    try:
        done = together(engine, requests)
        for (prompt, sampling), completion in zip(requests, done, strict=True):
            check_reference(model, prompt, sampling, completion)
        # What two of them sampled alike is run once too.
        grown = {p + answer.ids[:n] for p, answer in zip(order, done, strict=True) for n in range(1, len(answer.ids))}
        assert len(grown) < sum(len(completion.ids) - 1 for completion in done)
        assert engine._network.tokens_computed == len(a) + len(b) + len(c) + len(grown)
    finally:
        engine.close()


def test_a_beginning_that_another_prompt_had_is_not_run_again(model: LanguageModel, engine: HFEngine) -> None:
    rules, here, there = (tuple(range(start, start + 20)) for start in (5, 50, 100))
    requests = [(rules + here, params(1)), (rules + there, params(2)), (rules + here, params(3))]
    costs = []
    for prompt, sampling in requests:
        before = engine._network.tokens_computed
        check_reference(model, prompt, sampling, engine.generate(prompt, sampling, timeout_s=FOREVER))
        costs.append(engine._network.tokens_computed - before)
    # 11 further tokens after the prompt, whose logits are those of the first request in the third.
    assert costs == [len(rules + here) + 11, len(there) + 11, 11]


def test_a_short_row_beside_a_long_one_takes_no_further_place(model: LanguageModel) -> None:
    long, short = tuple(range(5, 65)), tuple(range(100, 160))
    engine = HFEngine(model, max_running=4, max_tokens=400)
    try:
        engine.generate(short, params(0, n=1), timeout_s=FOREVER)
        seen: list[int] = []
        engine._network.network.base_model.register_forward_pre_hook(
            lambda _, __, given: seen.append(int(given["position_ids"].max())), with_kwargs=True
        )
        requests = [(long, params(1, n=1)), ((*short, 7), params(2, n=1))]  # 60 tokens to run, and 1 behind 60
        for (prompt, sampling), got in zip(requests, together(engine, requests), strict=True):
            check_reference(model, prompt, sampling, got)
        assert seen == [60]
        assert engine._network.keys_values.keys.shape[1] == 4 * 64 + 1
    finally:
        engine.close()


@pytest.mark.parametrize("pass_tokens", [1, 20, 2**14])
def test_answers_are_right_whatever_beginnings_slots_hold(
    model: LanguageModel, pass_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.engines.prefix_cache.PASS_TOKENS", pass_tokens)
    engine = HFEngine(model, max_running=5, max_tokens=400)
    rng = np.random.default_rng(30)
    known = [(9,) * 10]
    try:
        for batch in range(12):
            requests = []
            for i in range(int(rng.integers(1, 14))):
                parent = known[rng.integers(len(known))]
                cut = int(rng.integers(8, len(parent) + 1))
                prompt = parent[:cut] + tuple(rng.integers(5, 9, size=rng.integers(0, 20)).tolist())
                known.append(prompt)
                requests.append((prompt, params(100 * batch + i, n=1 + int(rng.integers(4)))))
            for (prompt, sampling), got in zip(requests, together(engine, requests), strict=True):
                check_reference(model, prompt, sampling, got)
        assert engine._network.tokens_computed < 0.75 * sum(map(len, known))  # answers included
    finally:
        engine.close()


def test_a_prompt_that_differs_in_its_last_token_reuses_nothing_wrong(model: LanguageModel, engine: HFEngine) -> None:
    (prompt,) = prompts(1, seed=9)
    first = engine.generate(prompt, params(0, n=4), timeout_s=FOREVER)
    whole = prompt + first.ids
    for changed in (whole, whole[:-1], (*whole[:-2], 9, 9, 9), prompt, prompt[:-1] or (5,)):
        got = engine.generate(changed, params(1, n=4), timeout_s=FOREVER)
        check_reference(model, changed, params(1, n=4), got)


# -- weights -----------------------------------------------------------------------------------------------------------


def test_new_weights_are_used_by_the_next_answer_and_caches_are_dropped(engine: HFEngine, model: LanguageModel) -> None:
    new = tiny_model(seed=1)
    (prompt,) = prompts(1, seed=10)
    first = engine.generate(prompt, params(0, n=6), timeout_s=FOREVER)
    assert (first.weight_version, engine.version) == (0, 0)
    engine.update_weights(new.network.state_dict().items(), 5)
    more = (*prompt, *first.ids, 7, 8)
    before = engine._network.tokens_computed
    second = engine.generate(more, params(1, n=6), timeout_s=FOREVER)
    assert engine._network.tokens_computed - before == len(more) + 5
    assert second.weight_version == 5
    check_reference(new, more, params(1, n=6), second)


def test_the_engine_has_weights_of_its_own(engine: HFEngine) -> None:
    source = tiny_model(seed=2)
    engine.update_weights(source.network.state_dict().items(), 1)
    kept = tiny_model(seed=2)
    with torch.no_grad():
        for parameter in source.network.parameters():
            parameter.add_(1.0)
    (prompt,) = prompts(1, seed=11)
    check_reference(kept, prompt, params(0), engine.generate(prompt, params(0), timeout_s=FOREVER))


def logprobs_after(
    networks: list[tuple[LanguageModel, int]], prompt: tuple[int, ...], ids: tuple[int, ...], temperature: float
) -> list[float]:
    """Log-probs of ``ids`` where each network samples so many of them, and reads the keys and values that those before
    it made: one plain forward pass for each."""
    from transformers import DynamicCache

    whole, cache, done = (*prompt, *ids), DynamicCache(), 0
    found: list[float] = []
    for model, count in networks:
        upto = len(prompt) + len(found) + count - 1  # the last sampled id is run by whoever samples the next
        with torch.inference_mode():
            new = torch.tensor([whole[done:upto]])
            logits = model.network(input_ids=new, past_key_values=cache, use_cache=True).logits[0, -count:]
        logp = (logits.double() / temperature).log_softmax(-1)
        found += logp[range(count), list(ids[len(found) : len(found) + count])].tolist()
        done = upto
    return found


def test_a_request_that_lives_through_updates_has_a_span_for_each_version(
    engine: HFEngine, model: LanguageModel
) -> None:
    forward = engine._network._forward
    entered, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def by_hand(*args: Any) -> torch.Tensor:
        entered.release()
        assert go_on.acquire(timeout=FOREVER)
        return forward(*args)

    engine._network._forward = by_hand  # type: ignore[method-assign]
    (prompt,) = prompts(1, seed=12)
    sampling = params(0, n=14)
    future = engine.submit(prompt, sampling, timeout_s=FOREVER)
    models, counts = [model, tiny_model(seed=3), tiny_model(seed=4)], [5, 2, 7]
    for number, count in enumerate(counts):
        for place in range(count):
            assert entered.acquire(timeout=FOREVER)
            if place == count - 1 and number < 2:  # new weights come in right behind this pass
                new = list(models[number + 1].network.state_dict().items())
                update = threading.Thread(target=lambda new=new, v=number: engine.update_weights(new, 7 + 2 * v))
                update.start()
                while not engine._visitors:
                    time.sleep(0.001)
                go_on.release()
                update.join(FOREVER)
            else:
                go_on.release()
    mixed = future.result(FOREVER)
    assert mixed.spans == ((0, 5), (7, 2), (9, 7))
    assert mixed.weight_version == 0
    expected = logprobs_after(list(zip(models, counts, strict=True)), prompt, mixed.ids, sampling.temperature)
    assert np.allclose(mixed.logprobs, expected, atol=1e-5)
    # What its slot holds is of mixed weights and must not be read by others.
    engine._network._forward = forward  # type: ignore[method-assign]
    more = (*prompt, *mixed.ids, 4)
    check_reference(models[-1], more, params(1, n=3), engine.generate(more, params(1, n=3), timeout_s=FOREVER))
    assert engine.generate(prompt, params(1, n=3), timeout_s=FOREVER).spans == ((9, 3),)


def test_weights_come_as_a_stream_and_one_name_of_tied_ones_is_enough(engine: HFEngine) -> None:
    new = tiny_model(seed=5)
    state = new.network.state_dict()
    assert state["lm_head.weight"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()
    (prompt,) = prompts(1, seed=14)
    for left_out in ("lm_head.weight", "model.embed_tokens.weight"):
        engine.update_weights(tiny_model(seed=6).network.state_dict().items(), 1)
        engine.update_weights(((n, w) for n, w in reversed(state.items()) if n != left_out), 2)
        check_reference(new, prompt, params(0), engine.generate(prompt, params(0), timeout_s=FOREVER))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("model.norm.weight"), "does not fit the configured model: model.norm.weight is missing$"),
        (lambda w: w.update({"model.norms.weight": w.pop("model.norm.weight")}), "did you mean 'model.norm.weight'"),
        (
            lambda w: w.update({"model.norm.weight": torch.ones(1)}),
            r"model.norm.weight has shape \(1,\), the model's \(16,\)$",
        ),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_weights_that_do_not_fit_are_refused_and_those_of_before_go_on(
    engine: HFEngine, model: LanguageModel, change: Any, words: str
) -> None:
    good = tiny_model(seed=5)
    weights = dict(good.network.state_dict())
    change(weights)
    waiting = engine.submit((5, 6), params(0, n=60), timeout_s=FOREVER)
    with pytest.raises(EngineError, match=words):
        engine.update_weights(weights.items(), 4)
    assert engine.version == 0
    engine.health()
    check_reference(model, (5, 6), params(0, n=60), waiting.result(FOREVER))
    check_reference(model, (5, 7), params(0), engine.generate((5, 7), params(0), timeout_s=FOREVER))
    engine.update_weights(good.network.state_dict().items(), 5)
    check_reference(good, (5, 6), params(0), engine.generate((5, 6), params(0), timeout_s=FOREVER))


# -- limits, ends and faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ((), params(0), "prompt is empty"),
        ((5,) * 390, params(0, n=11), "prompt of 390 tokens .* exceed engine.max_tokens 400"),
        ((5, 10**6), params(0), "token ids from 5 to 1000000; the model knows 0 to"),
        ((5, -1), params(0), "token ids from -1"),
        ((5,), params(0, n=0), "max_new_tokens 0"),
        ((5,), params(0, temperature=-1.0), "temperature -1"),
        ((5,), params(-1), "the seed is -1; allowed: null, or 0 to 2"),
        ((5,), params(2**128), "the seed is 340282366920938463463374607431768211456"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_and_harms_nobody(
    engine: HFEngine, prompt: tuple[int, ...], sampling: SamplingParams, words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        engine.generate(prompt, sampling, timeout_s=FOREVER)
    engine.health()
    assert len(engine.generate((5,) * 390, params(0, n=10), timeout_s=FOREVER).ids) == 10


def slow_passes(engine: HFEngine, seconds: float) -> None:
    forward = engine._network._forward

    def slow(*args: Any) -> torch.Tensor:
        time.sleep(seconds)
        return forward(*args)

    engine._network._forward = slow  # type: ignore[method-assign]


def test_a_deadline_ends_running_and_queued_requests(engine: HFEngine) -> None:
    slow_passes(engine, 0.02)
    started = time.monotonic()
    futures = [engine.submit((5, 6), params(i, n=300), timeout_s=0.2) for i in range(6)]  # 4 slots
    for future in futures:
        with pytest.raises(DeadlineExceededError, match=r"the engine's answer after 0\.2 s"):
            future.result(FOREVER)
    with pytest.raises(DeadlineExceededError, match="the engine's answer"):
        engine.generate((5,), params(0, n=300), timeout_s=0.1)
    assert time.monotonic() - started < 5
    assert len(engine.generate((5,), params(0, n=2), timeout_s=FOREVER).ids) == 2
    assert free_slots(engine) == 4


def test_a_deadline_while_paused(engine: HFEngine) -> None:
    engine.pause()
    with pytest.raises(DeadlineExceededError):
        engine.generate((5,), params(0), timeout_s=0.05)


def test_abort_keeps_what_was_sampled(engine: HFEngine) -> None:
    slow_passes(engine, 0.01)
    futures = [engine.submit((5, 6), params(i, n=300), timeout_s=FOREVER) for i in range(6)]
    time.sleep(0.15)
    engine.abort()
    done = [f.result(FOREVER) for f in futures]
    assert {c.finish for c in done} == {"abort"}
    assert all(0 < len(c.ids) == len(c.logprobs) < 300 for c in done[:4])
    assert [c.ids for c in done[4:]] == [(), ()]
    assert len(engine.generate((5,), params(0, n=2), timeout_s=FOREVER).ids) == 2


def test_pause_stops_between_passes_and_resume_goes_on(engine: HFEngine, model: LanguageModel) -> None:
    (prompt,) = prompts(1, seed=13)
    for round_ in range(20):
        future = engine.submit(prompt, params(0, n=60), timeout_s=FOREVER)
        time.sleep(0.0005 * round_)
        engine.pause()
        passes = engine._network.passes
        time.sleep(0.002)
        assert engine._network.passes == passes, "a pass began after pause() had returned"
        engine.resume()
        future.result(FOREVER)
    check_reference(model, prompt, params(0, n=60), future.result())


def test_others_come_in_while_the_engine_is_busy(engine: HFEngine) -> None:
    """New weights are not held up until every running request has ended."""
    futures = [engine.submit((5, 6), params(i, n=390), timeout_s=FOREVER) for i in range(4)]
    for version in range(1, 6):
        engine.update_weights(engine._network.network.state_dict().items(), version)
    assert not any(f.done() for f in futures)
    engine.abort()
    assert all(f.result(FOREVER).finish == "abort" for f in futures)


class Patient(Policy):
    """An engine that keeps no deadline of its own."""

    def __init__(self, engine: HFEngine) -> None:
        self._engine = engine

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        return self._engine.submit(prompt_ids, sampling, timeout_s=FOREVER)


def test_a_cancelled_request_is_withdrawn_and_harms_nobody(engine: HFEngine) -> None:
    slow_passes(engine, 0.01)
    futures = [engine.submit((5, 6), params(i, n=20), timeout_s=FOREVER) for i in range(6)]  # 4 slots
    assert futures[0].cancel()
    assert futures[5].cancel()
    assert [len(f.result(FOREVER).ids) for f in futures[1:5]] == [20] * 4
    engine.health()
    with pytest.raises(DeadlineExceededError, match=r"the engine's answer after 0\.05 s"):
        Policy.generate(Patient(engine), (5,), params(0, n=390), timeout_s=0.05)
    until = time.monotonic() + FOREVER
    while engine._running:  # its own deadline is far away, and 390 passes take longer
        assert time.monotonic() < until
        time.sleep(0.01)
    assert free_slots(engine) == 4
    assert engine._network.passes < 300


def test_a_closed_engine_answers_with_an_error(model: LanguageModel) -> None:
    closed = HFEngine(model, max_running=2, max_tokens=400)
    slow_passes(closed, 0.01)
    futures = [closed.submit((5,), params(i, n=300), timeout_s=FOREVER) for i in range(4)]
    closed.close()
    assert [f.result(1).finish for f in futures] == ["abort"] * 4
    assert not closed._thread.is_alive()
    for act in (
        lambda: closed.generate((5,), params(0), timeout_s=1),
        closed.health,
        lambda: closed.update_weights({}.items(), 1),
    ):
        with pytest.raises(EngineError, match="closed"):
            act()
    closed.close()


def test_a_fault_of_the_engines_thread_reaches_everybody(model: LanguageModel) -> None:
    broken = HFEngine(model, max_running=2, max_tokens=400)

    def fault(*_: Any) -> torch.Tensor:
        if broken._network.passes < 3:
            return forward(*_)  # type: ignore[no-any-return]
        raise MemoryError("no memory left")

    forward: Any = broken._network._forward
    broken._network._forward = fault  # type: ignore[method-assign]
    futures = [broken.submit((5,), params(i, n=300), timeout_s=FOREVER) for i in range(5)]
    for future in futures:
        with pytest.raises(EngineError, match="the engine stopped: MemoryError: no memory left"):
            future.result(5)
    for act in (lambda: broken.generate((5,), params(0), timeout_s=1), broken.health):
        with pytest.raises(EngineError, match="no memory left"):
            act()
    broken.close()


def test_a_fault_while_admitting_reaches_those_just_taken_from_the_queue(model: LanguageModel) -> None:
    broken = HFEngine(model, max_running=4, max_tokens=400)

    def fault(*_: Any) -> torch.Tensor:
        raise RuntimeError("shape")

    broken._network._forward = fault  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="RuntimeError: shape"):
        broken.generate((5,), params(0), timeout_s=5)
    broken.close()


def test_weights_that_are_not_finite_are_an_error_not_an_answer(engine: HFEngine) -> None:
    broken = tiny_model()
    with torch.no_grad():
        next(broken.network.parameters()).fill_(float("nan"))
    engine.update_weights(broken.network.state_dict().items(), 3)
    with pytest.raises(EngineError, match=r"logits are not finite \(weight version 3\)"):
        engine.generate((5,), params(0), timeout_s=FOREVER)
    engine.update_weights(tiny_model().network.state_dict().items(), 4)
    assert engine.generate((5,), params(0), timeout_s=FOREVER).weight_version == 4


# -- device ------------------------------------------------------------------------------------------------------------


def test_every_tensor_is_made_on_the_models_device(engine: HFEngine, model: LanguageModel) -> None:
    """While the engine runs, whatever is made without a device goes to "meta" and would break the pass."""
    sample = engine._sample

    def elsewhere() -> None:
        with torch.device("meta"):
            sample()

    engine._sample = elsewhere  # type: ignore[method-assign]
    requests = [(p, params(i, n=4)) for i, p in enumerate(prompts(6, seed=15))]
    for (prompt, sampling), got in zip(requests, together(engine, requests), strict=True):
        check_reference(model, prompt, sampling, got)


def test_a_pass_on_another_device_touches_that_device_only() -> None:
    """On "meta" there are shapes only, and an operation that mixes it with the CPU fails."""
    network = CachedNetwork(tiny_model().network.to("meta"), 4)
    assert {x.device.type for x in (network.keys_values.keys, network.keys_values.values)} == {"meta"}
    rules = tuple(range(5, 305))  # more than there are places for at first
    sequences = [OpenSequence(ids) for ids in ((*rules, 7), (*rules, 8, 9), (6, 7), (6, 7))]
    for sequence in sequences:
        network.open(sequence)
    for turn in range(3):
        logits, sources = network.logits(sequences)
        assert (logits.device.type, logits.shape) == ("meta", (3, network.vocabulary))
        assert sources.tolist() == [1, 2, 0, 0]
        device = {"device": "meta", "dtype": torch.float64}
        chosen = choose_ids(logits, torch.ones(3, **device), torch.ones(3, 2, **device))
        assert [(x.device.type, x.shape) for x in chosen] == [("meta", (3, 2))] * 2
        for sequence in sequences:
            sequence.ids.append(turn)
            network.extend(sequence)
    # Both begin with the rules, which the first of them runs.
    assert network.tokens_computed == 301 + 2 + 2 + 2 * 3
    assert network.keys_values.keys.shape[1] == 2 * (4 * 64 + 1)
    network.close(sequences[0])
    following = OpenSequence((*rules, 7, 0, 1, 4))
    network.open(following)
    assert network.logits([following])[0].shape == (1, network.vocabulary)
    assert network.tokens_computed == 301 + 2 + 2 + 2 * 3 + 1
