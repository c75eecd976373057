"""roll-envs eval: success, intervals and pass@k of a model on an environment, recorded, and gone on with."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_runs import run
from openai_server import FakeAPI, serve

import roll_envs
from roll_envs.cli import main
from roll_envs.testing import COUNTER_CARD, CounterEnv
from trainer.data.metrics import wilson_interval
from trainer.rollout.stream import RecordReader
from trainer.run.measure import pass_at
from trainer.view.episodes import Episodes


class Breaks(CounterEnv):
    """Raises for the targets in ``broken``."""

    broken: set[int] = set()  # noqa: RUF012 - set by tests

    def step(self, action: str) -> Any:
        if self._target in self.broken:
            raise RuntimeError("out of order")
        return super().step(action)


class NoOracle(CounterEnv):
    oracle = roll_envs.TextEnv.oracle


CARD = replace(COUNTER_CARD, id="test/Breaks-v0", entry_point=f"{__name__}:Breaks")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    roll_envs.register(CARD)
    yield
    roll_envs.unregister(CARD.id)
    Breaks.broken = set()


def target(body: dict[str, Any]) -> int:
    """0 for the engine's greeting, which is about nothing."""
    found = re.findall(r"target (\d)", body["messages"][-1]["content"])
    return int(found[-1]) if found else 0


def asked(api: FakeAPI) -> int:
    return sum(target(body) > 0 for body in api.requests)


def knows_even_targets(body: dict[str, Any]) -> str:
    return f"<answer>{'Less' if target(body) % 2 else 'More'}</answer>"


def targets(count: int) -> list[int]:
    env = Breaks()
    return [int(env.reset(seed=1_000_000_000 + i)[0][-1]) for i in range(count)]


def measured(api: FakeAPI, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    arguments = ["eval", CARD.id, "--model", api.url, "--name", "m", "--output", "out", "--json", *more]
    assert main(arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_model_behind_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    right = [t % 2 == 0 for t in targets(20)]
    with serve(knows_even_targets) as api:
        found = measured(api, capsys, "--tasks", "20")
    result = found["result"]
    assert (result["tasks"], result["failed"], found["samples"]) == (20, 0, 1)
    assert result["success"] == sum(right) / 20
    assert (result["interval_low"], result["interval_high"]) == pytest.approx(wilson_interval(sum(right), 20))
    assert found["pass_at"] == {"1": sum(right) / 20}
    assert json.loads(Path("out/summary.json").read_text()) == found
    rows = Episodes(Path("out")).rows(0, 0, seconds=9)["rows"]
    assert len(rows) == 20, "its records are those that the page shows"


def test_the_same_command_plays_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(knows_even_targets) as api:
        first = measured(api, capsys, "--tasks", "6")
        before = asked(api)
        again = measured(api, capsys, "--tasks", "6")
        assert asked(api) == before, "nothing is asked again"
        assert {**again["result"], "seconds": 0} == {**first["result"], "seconds": 0}
        more = measured(api, capsys, "--tasks", "9")
        lengths = [t if t % 2 == 0 else 6 for t in targets(9)]
        assert asked(api) == before + sum(lengths[6:])
    assert more["result"]["tasks"] == 9


def test_what_was_stopped_goes_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.run.measure._SAVE_S", 0.0)
    count = itertools.count()

    from trainer.run.folder import RunFolder

    record = RunFolder.record

    def interrupted(self: RunFolder, given: Any) -> None:
        record(self, given)
        if next(count) == 3:
            raise KeyboardInterrupt

    with serve(knows_even_targets) as api:
        with monkeypatch.context() as patched:
            patched.setattr(RunFolder, "record", interrupted)
            arguments = ["eval", CARD.id, "--model", api.url, "--name", "m", "--output", "out"]
            assert main([*arguments, "--tasks", "12", "--concurrency", "2"]) == 130
        kept = sum(member.episodes for member in RecordReader(Path("out/episodes/stream.jsonl.gz")).members)
        assert 4 <= kept < 12
        before = asked(api)
        found = measured(api, capsys, "--tasks", "12", "--concurrency", "2")
        assert 0 < asked(api) - before <= 6 * (12 - kept)
    assert found["result"]["tasks"] == 12
    assert found["result"]["success"] == sum(t % 2 == 0 for t in targets(12)) / 12


def test_a_failure_is_no_answer_and_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    Breaks.broken = {2}
    known = targets(12)
    whole = [t for t in known if t != 2]
    assert 0 < len(whole) < 12
    with serve(knows_even_targets) as api:
        found = measured(api, capsys, "--tasks", "12")
        assert (found["result"]["tasks"], found["result"]["failed"]) == (len(whole), 12 - len(whole))
        assert found["result"]["success"] == sum(t % 2 == 0 for t in whole) / len(whole)
        Breaks.broken = set()
        found = measured(api, capsys, "--tasks", "12")
        assert (found["result"]["tasks"], found["result"]["failed"]) == (12, 0)
        Breaks.broken = {1, 2, 3, 4}
        arguments = ["eval", CARD.id, "--model", api.url, "--name", "m", "--tasks", "2", "--output", "other"]
        assert main(arguments) != 0
    assert "no episode counts" in capsys.readouterr().err


def test_several_samples(capsys: pytest.CaptureFixture[str]) -> None:
    turn = itertools.count()

    def now_and_then(body: dict[str, Any]) -> str:
        return f"<answer>{'More' if next(turn) % 3 else 'Less'}</answer>"

    with serve(now_and_then) as api:
        found = measured(api, capsys, "--tasks", "8", "--samples", "4", "--temperature", "1", "--concurrency", "1")
    groups = [
        group
        for member in RecordReader(Path("out/episodes/stream.jsonl.gz")).members
        for group in RecordReader(Path("out/episodes/stream.jsonl.gz")).read(member).groups
    ]
    solved = [[e.success for e in group.trajectories] for group in groups]
    assert [len(each) for each in solved] == [4] * 8
    assert found["pass_at"]["4"] == sum(any(each) for each in solved) / 8
    assert found["pass_at"]["1"] == pytest.approx(found["result"]["success"])
    pairs = [any(pair) for each in solved for pair in itertools.combinations(each, 2)]
    assert found["pass_at"]["2"] == pytest.approx(sum(pairs) / len(pairs))
    low, high = found["result"]["interval_low"], found["result"]["interval_high"]
    assert 0 <= low <= found["result"]["success"] <= high <= 1


def test_pass_at_k_is_the_share_of_choices_that_hold_a_solved_one() -> None:
    for n, solved in ((5, 0), (5, 2), (5, 5), (4, 1)):
        outcomes = [i < solved for i in range(n)]
        for k in range(1, n + 1):
            chosen = [any(c) for c in itertools.combinations(outcomes, k)]
            assert pass_at(k, n, solved) == pytest.approx(sum(chosen) / len(chosen))


def test_a_run_is_asked_as_it_was_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = run(tmp_path, steps=1)
    arguments = ["eval", "roll/FrozenLake-v0", "--model", str(folder), "--tasks", "12", "--output", "out"]
    assert main([*arguments, "--temperature", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    last = json.loads((folder / "summary.json").read_text())["phases"][-1]
    for name in ("success", "turns", "mean_return", "valid_action_rate"):
        assert found["result"][name] == pytest.approx(last[name]), "the held-out evaluation of the run, once more"
    assert main([*arguments, "--temperature", "1"]) == 0
    assert "roll-envs view out" in capsys.readouterr().out
    weights = folder / "model" / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(bytes(changed))
    assert main([*arguments, "--temperature", "1"]) == 2, "the episodes there are of other weights"
    assert "other weights of" in capsys.readouterr().err


def test_a_run_without_a_model_yet_is_told_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = run(tmp_path, steps=0)
    (folder / "model").rename(tmp_path / "elsewhere")
    assert main(["eval", CARD.id, "--model", str(folder)]) == 2
    assert "the run is not finished; roll-eval" in capsys.readouterr().err


def test_the_length_of_answers_is_the_runs_or_as_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = run(tmp_path, steps=0)
    for more, most in (([], 3), (["--max-new-tokens", "2"], 2)):
        arguments = ["eval", "roll/FrozenLake-v0", "--model", str(folder), "--tasks", "2", "--output", f"out{most}"]
        assert main([*arguments, *more]) == 0
        assert f"max_new_tokens: {most}\n" in Path(f"out{most}/config.yaml").read_text()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--model", "http://127.0.0.1:9/v1"], "--name says which model"),
        (["--model", "folder", "--name", "m"], "--name is for a model behind a URL"),
        (["--model", "nowhere"], "nowhere"),
        (["--model", "folder", "--tasks", "0"], "--tasks must be 1 or more, not 0"),
        (["--model", "folder", "--samples", "2"], "give a temperature"),
        (["--model", "http://127.0.0.1:9/v1", "--name", "m", "engine.no=1"], "engine.no"),
    ],
)
def test_bad_input(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", CARD.id, *more]) == 2
    assert said in capsys.readouterr().err
    assert not list(Path("evals").rglob("*.gz"))


def test_what_was_given_wrong_leaves_nothing_in_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "test/Brakes-v0", "--model", "random", "--output", "out"]) == 2
    assert not Path("out").exists()
    with serve(knows_even_targets) as api:
        api.models = ()
        arguments = ["eval", CARD.id, "--model", api.url, "--name", "m", "--output", "out", "--tasks", "2"]
        assert main(arguments) == 2
        api.models = ("m",)
        # Keys may follow the options.
        assert main([*arguments, "engine.max_running=3"]) == 0, "nothing was measured with other settings"


def test_a_folder_of_something_else_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(knows_even_targets) as api:
        measured(api, capsys, "--tasks", "2")
        before = Path("out/config.yaml").read_text()
        arguments = ["eval", CARD.id, "--model", api.url, "--name", "m", "--output", "out"]
        assert main([*arguments, "--temperature", "0.5"]) == 2
        assert "another --model or --temperature" in capsys.readouterr().err
        assert Path("out/config.yaml").read_text() == before
        Path("mine").mkdir()
        Path("mine/notes.txt").touch()
        assert main([*arguments[:-1], "mine"]) == 2
        assert "holds something else" in capsys.readouterr().err


def test_players_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    def played(player: str, *more: str) -> dict[str, Any]:
        arguments = ["eval", CARD.id, "--model", player, "--tasks", "40", "--output", f"out-{player}", "--json", *more]
        assert main(arguments) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    best = played("oracle")["result"]
    assert (best["success"], best["valid_action_rate"]) == (1.0, 1.0)
    worse = played("random", "--samples", "4")
    assert worse["result"]["valid_action_rate"] == 1.0
    assert 0.0 < worse["result"]["success"] < 1.0
    assert worse["result"]["mean_return"] < best["mean_return"]
    assert worse["pass_at"]["4"] > worse["pass_at"]["1"]
    again = played("random", "--samples", "4")
    assert {**again["result"], "seconds": 0} == {**worse["result"], "seconds": 0}
    episodes = [
        [[turn.text for turn in e.turns] for e in group.trajectories]
        for member in RecordReader(Path("out-random/episodes/stream.jsonl.gz")).members
        for group in RecordReader(Path("out-random/episodes/stream.jsonl.gz")).read(member).groups
    ]
    assert any(len({tuple(texts) for texts in group}) > 1 for group in episodes), "samples differ"


def test_an_environment_without_an_oracle_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "test/NoOracle-v0", "--model", "oracle", "--tasks", "2"]) == 2
    assert "no environment 'test/NoOracle-v0'" in capsys.readouterr().err
    for entry_point, said in (
        (f"{__name__}:NoOracle", "no oracle; --model random"),
        ("roll_envs.testing:EchoEnv", "no roll_envs.TextEnv"),
    ):
        card = replace(COUNTER_CARD, id="test/NoOracle-v0", entry_point=entry_point, kwargs={})
        roll_envs.register(card)
        try:
            assert main(["eval", card.id, "--model", "oracle", "--tasks", "2"]) == 2
        finally:
            roll_envs.unregister(card.id)
        assert said in capsys.readouterr().err
