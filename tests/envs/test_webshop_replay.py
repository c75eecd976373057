"""Watching recorded episodes: both forms of records, what a replay says when it differs, and files that are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from webshop_browser_page import PageReader
from webshop_small import HOSTILE, LAMP, SHOES, small_catalogue

pytest.importorskip("starlette", reason="needs the optional part 'service'")
pytest.importorskip("jinja2", reason="needs the optional part 'service'")

from starlette.testclient import TestClient

import roll_envs
from envs.webshop.env import WebShopEnv
from envs.webshop.serve.app import make_app
from envs.webshop.serve.replay import Replay, play_again, shop_records
from roll_envs.cli.session import Session

SHOES_GOAL = 1
ID = "roll/WebShop-v0"
ACTIONS = [
    "search[running shoes]",
    f"click[{SHOES.lower()}]",
    "click[blue]",
    "click[red]",
    "click[8]",
    "click[buy now]",
]


def _make(_: str, kwargs: Mapping[str, Any]) -> WebShopEnv:
    env = roll_envs.make(ID, catalogue=small_catalogue(), **kwargs)
    assert isinstance(env, WebShopEnv)
    return env


def _record(actions: list[str] = ACTIONS, **kwargs: Any) -> dict[str, Any]:
    env = _make(ID, kwargs)
    session = Session(env, 5, {"session": SHOES_GOAL})
    for action in actions:
        session.answer(env.action_format.write(action))
    record: dict[str, Any] = json.loads(json.dumps({**session.record(), "kwargs": kwargs}))
    return record


def _replay(tmp_path: Path, content: Any, *, lines: bool = False) -> list[Replay]:
    path = tmp_path / "episodes.json"
    path.write_text("\n".join(map(json.dumps, content)) if lines else json.dumps(content))
    return [play_again(record, _make) for record in shop_records(path)]


def _pages(replays: list[Replay]) -> TestClient:
    return TestClient(make_app(lambda: _make(ID, {}), _make, [replay.record for replay in replays]))


def _page(client: TestClient, path: str) -> PageReader:
    response = client.get(path)
    assert response.status_code == 200
    assert HOSTILE not in response.text
    return PageReader(response.text)


def test_a_record_is_played_again_exactly(tmp_path: Path) -> None:
    (replay,) = _replay(tmp_path, _record())
    assert (replay.problem, replay.first_difference, replay.compared) == ("", None, True)
    assert [step.action for step in replay.steps] == ["", *ACTIONS]
    assert [step.page.kind for step in replay.steps] == ["search", "results", *["item"] * 4, "done"]
    assert replay.steps[-1].total == 1.0
    assert replay.outcome is not None
    assert [(part.name, part.points, part.most) for part in replay.outcome.parts] == [
        ("Attributes", 0.25, 0.25), ("Options", 0.5, 0.5), ("Price", 0.25, 0.25),
    ]  # fmt: skip


def test_every_step_has_a_page_with_the_next_action_marked(tmp_path: Path) -> None:
    client = _pages(_replay(tmp_path, _record()))
    for number in range(len(ACTIONS) + 1):
        page = _page(client, f"/watch/1/{number}")
        assert f"Turn {number} of 100" in page.text
        assert "i need red light weight running shoes" in page.text
        assert "does not give" not in page.text
        assert page.enabled() == set()  # nothing can be played here
        links = {a for a in page.addresses if a.startswith("/watch/1/")}
        assert {f"/watch/1/{n}" for n in range(len(ACTIONS) + 1)} <= links
    assert _page(client, "/watch/1/1").next == [f"click[{SHOES.lower()}]"]
    assert _page(client, "/watch/1/2").next == []  # click[blue] is on no page
    assert "click[blue] not valid" in _page(client, "/watch/1/2").text
    assert _page(client, "/watch/1/3").next == ["click[red]"]
    last = _page(client, "/watch/1/6")
    assert "1 out of 1 Exactly what was asked for" in last.text
    assert "✓ red" in last.text
    assert client.get("/watch/1/7").status_code == 404
    assert client.get("/watch/2/0").status_code == 404
    assert _page(client, "/watch/1").text == _page(client, "/watch/1/0").text


def test_a_replay_goes_on_by_itself_and_stops_at_the_end(tmp_path: Path) -> None:
    client = _pages(_replay(tmp_path, _record()))
    assert 'content="2;url=/watch/1/4?play=1"' in client.get("/watch/1/3?play=1").text
    assert 'content="2;url=/watch/1/6"' in client.get("/watch/1/5?play=1").text
    for path in ("/watch/1/6?play=1", "/watch/1/3", "/watch/1/3?play=0"):
        assert "http-equiv" not in client.get(path).text


def test_the_trainers_episodes_are_read(tmp_path: Path) -> None:
    episodes = pytest.importorskip("trainer.rollout.records", reason="needs the trainer")
    from roll_envs.types import Completion, Outcome, Task, Trajectory, Turn

    env = _make(ID, {"action_format": "think-answer"})
    observation, _ = env.reset(seed=1, options={"split": "test"})
    turns = []
    for action in ACTIONS:
        text = env.action_format.write(action, thought="so")
        after, reward, terminated, truncated, info = env.step(text)
        completion = Completion(ids=(1, 2), logprobs=(-0.5, -0.25), finish="stop", weight_version=3)
        turns.append(
            Turn(
                prompt_ids=(1,), completion=completion, prompt_observation=observation, text=text, observation=after,
                reward=reward, terminated=terminated, truncated=truncated, info=info, timings={},
            )
        )  # fmt: skip
        observation = after
    task = Task(env_id=ID, split="held-out", index=7, seed=1, kwargs={"action_format": "think-answer"})
    trajectory = Trajectory(task=task, member=0, turns=tuple(turns), outcome=Outcome(kind="completed"))
    first, second = _replay(tmp_path, [episodes.episode_record(trajectory)] * 2, lines=True)
    for replay in (first, second):
        assert (replay.problem, replay.first_difference, replay.compared) == ("", None, True)
        assert [step.action for step in replay.steps] == ["", *ACTIONS]
        assert replay.steps[-1].total == 1.0
        assert replay.goal_number == 1
    client = _pages([first, second])
    assert "episodes.json · 2" in _page(client, "/watch").text
    assert "The answer was <think>so</think>" in _page(client, "/watch/2/3").text


def test_differences_are_named(tmp_path: Path) -> None:
    record = _record()
    record["turns"][1]["observation"] = f"another shop {HOSTILE}"
    record["turns"][5]["reward"] = 0.5
    replays = _replay(tmp_path, record)
    assert replays[0].first_difference == 2
    assert replays[0].steps[6].differences == ("reward 1, recorded 0.5",)
    client = _pages(replays)
    said = _page(client, "/watch/1/2").text
    assert "This replay does not give what was recorded , from step 2 on" in said
    assert "Here: another observation." in said
    assert f"Recorded observation another shop {HOSTILE}" in said
    assert "Here:" not in _page(client, "/watch/1/1").text
    assert "reward 1, recorded 0.5" in _page(client, "/watch/1/6").text


def test_an_episode_that_ends_elsewhere_is_named(tmp_path: Path) -> None:
    longer, shorter, unseen = _record(), _record(ACTIONS[:2]), _record()
    longer["turns"] += [{"answer": "click[buy now]"}, {"answer": "more"}]
    shorter["turns"][1]["terminated"] = True
    unseen["turns"] = [{"answer": turn["answer"]} for turn in unseen["turns"]]
    found = _replay(tmp_path, [longer, shorter, unseen])
    assert found[0].problem == "The episode ended here, but 2 more recorded turns followed."
    assert found[1].steps[2].differences == ("the episode goes on, but ended",)
    assert (found[2].compared, found[2].first_difference, found[2].steps[-1].total) == (False, None, 1.0)
    client = _pages(found)
    assert "2 more recorded turns followed" in _page(client, "/watch/1/0").text
    assert "holds no observations" in _page(client, "/watch/3/0").text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kwargs": {"max_turn": 3}}, "did you mean 'max_turns'"),
        ({"kwargs": {"max_turns": HOSTILE}}, "max_turns"),
        ({"options": {"session": 99}}, "0 to 1, not 99"),
        ({"options": {"split": "train"}}, "is empty"),
        ({"seed": -1}, ""),
    ],
    ids=str,
)
def test_what_cannot_be_started_has_a_page_that_says_why(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    replays = _replay(tmp_path, {**_record(), **change})
    assert replays[0].steps == ()
    assert replays[0].problem.startswith("It cannot be played on: ")
    assert problem in replays[0].problem
    assert "cannot be replayed" in _page(_pages(replays), "/watch/1").text


def test_turns_run_out_in_a_replay_too(tmp_path: Path) -> None:
    replays = _replay(tmp_path, _record(ACTIONS[:2], max_turns=2))
    assert replays[0].steps[-1].over
    assert replays[0].outcome is None
    assert "Out of turns." in _page(_pages(replays), "/watch/1/2").text


def test_hostile_answers_are_escaped(tmp_path: Path) -> None:
    odd = ["search[script lamp]", f"click[{LAMP.lower()}]", HOSTILE, "\ud800 lone", "x" * 100_000]
    client = _pages(_replay(tmp_path, _record(odd)))
    for number in range(6):
        assert "script" not in _page(client, f"/watch/1/{number}").tags - {"script"}
        assert client.get(f"/watch/1/{number}").text.count("<script") == 1  # our own, for the arrow keys


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no episode"),
        ("[]", "holds no episode"),
        ("{", "line 1 is not JSON"),
        ('{"id": 1}\nnonsense', "line 2 is not JSON"),
        ("[1]", "entry 1 is a number, not an object"),
        ("null", "entry 1 is null"),
        ("[" * 100_000, "is not JSON"),
        ('{"id": "roll/WebShop-v0"}', "'turns' is missing"),
        ('{"id": "roll/WebShop-v0", "turns": [3], "seed": 1}', "turn 1 is a number"),
        ('{"id": "roll/WebShop-v0", "turns": [{}], "seed": 1}', "turn 1: 'answer' is missing"),
        ('{"id": "roll/WebShop-v0", "turns": [], "seed": "1"}', "'seed' is a text"),
        ('{"id": "roll/WebShop-v0", "turns": [], "seed": true}', "'seed' is true or false"),
        ('{"id": "roll/WebShop-v0", "turns": [], "seed": 1, "kwargs": []}', "'kwargs' is a list"),
        ('{"id": "roll/FrozenLake-v0", "turns": [], "seed": 1}', "an episode of 'roll/FrozenLake-v0'"),
        ('{"id": "roll/WebShp-v0", "turns": [], "seed": 1}', "did you mean 'roll/WebShop"),
        ('{"task": 3, "turns": []}', "'task' is a number"),
    ],
    ids=lambda value: value[:30],
)
def test_a_file_that_is_no_record_is_one_clear_error(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(roll_envs.RollError) as caught:
        shop_records(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value) or isinstance(caught.value, roll_envs.UnknownNameError)
    with pytest.raises(roll_envs.ConfigError, match="cannot be read"):
        shop_records(tmp_path / "missing.json")
