"""The shop in a browser, page by page: what can be clicked is what can be played, and nothing typed breaks it."""

from __future__ import annotations

import gc
import json
import random
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from webshop_browser_page import PageReader
from webshop_data import recorded, webshop_folder
from webshop_small import HOSTILE, LAMP, SHOES, small_catalogue

pytest.importorskip("starlette", reason="needs the optional part 'service'")
pytest.importorskip("jinja2", reason="needs the optional part 'service'")

from starlette.testclient import TestClient

from envs.webshop.env import WebShopEnv
from envs.webshop.serve.app import make_app
from envs.webshop.serve.visits import Visits

LAMP_GOAL, SHOES_GOAL = 0, 1
ANSWERS = ["search[running shoes]", f"click[{SHOES.lower()}]", "click[red]", "click[features]", "click[< prev]"]


def _env(**kwargs: Any) -> WebShopEnv:
    return WebShopEnv(catalogue=small_catalogue(), **kwargs)


def _client(**kwargs: Any) -> TestClient:
    def make_shop(_: str, own: Mapping[str, Any]) -> WebShopEnv:
        return _env(**own)

    return TestClient(make_app(lambda: _env(**kwargs), make_shop, most_visits=4))


def _read(response: Any, status: int = 200) -> PageReader:
    assert response.status_code == status, response.text[:500]
    return PageReader(response.text)


def _play(client: TestClient, *actions: str, start: int = SHOES_GOAL) -> PageReader:
    page = _read(client.get(f"/?session={start}"))
    for action in actions:
        page = _read(client.post("/act", data={"action": action}))
    return page


def test_a_whole_episode_page_by_page() -> None:
    client = _client()
    page = _play(client)
    assert page.has_search_box
    assert page.enabled() == set()
    assert "Goal 1 of 2" in page.text
    page = _read(client.post("/act", data={"query": "running  shoes", "turn": "0"}))
    assert "1 result" in page.text
    assert "Red Running Shoes & Laces" in page.text
    assert page.enabled() == {"click[back to search]", "click[next >]", f"click[{SHOES.lower()}]"}
    page = _read(client.post("/act", data={"action": f"click[{SHOES.lower()}]", "turn": "1"}))
    assert "Not chosen yet: color, size" in page.text
    assert "Rating 4.5" in page.text
    assert page.pressed == []
    page = _read(client.post("/act", data={"action": "click[red]", "turn": "2"}))
    assert page.pressed == ["click[red]"]
    assert "Not chosen yet: size" in page.text
    for name, shown in (("description", "About Red"), ("features", "Non slip"), ("reviews", "Very good.")):
        page = _read(client.post("/act", data={"action": f"click[{name}]"}))
        assert shown in page.text
        assert page.enabled() == {"click[back to search]", "click[< prev]"}
        page = _read(client.post("/act", data={"action": "click[< prev]"}))
    page = _read(client.post("/act", data={"action": "click[buy now]"}))
    # 1 of 1 attributes, 1 of 2 options, the price: 3 of 4 parts.
    for part in (
        "0.75 out of 1",
        "✓ light weight",
        "✓ red",
        "✗ 8",
        "0.25 of 0.5",
        "0.25 of 0.25",
        "× 1",
        "(running shoes)",
    ):
        assert part in page.text
    assert "✓ at most $60.00; paid $20.00" in page.text
    assert page.enabled() == set()


def test_the_wrong_product_is_explained() -> None:
    page = _play(_client(), "search[plain lamp]", "click[b100000000]", "click[buy now]")
    for part in ("0 out of 1", "✗ light weight", "× 0", "0% of the nouns", f"written for {SHOES}", "paid $100.00"):
        assert part in page.text


def test_task_turns_and_the_agents_view_are_on_every_page() -> None:
    client = _client()
    twin = _env()
    seen, info = twin.reset(options={"session": SHOES_GOAL})
    _play(client)
    for turn, action in enumerate([*ANSWERS, "click[buy now]", ""]):
        page = _read(client.get("/"))
        assert "i need red light weight running shoes in size 8" in page.text
        assert f"Turn {turn} of 100" in page.text
        assert " ".join(seen.split()) in page.text
        assert turn == 6 or all(action in page.text for action in info["available_actions"])
        if action:
            seen, _, _, _, info = twin.step(action)
            _read(client.post("/act", data={"action": action}))


def test_what_can_be_clicked_is_what_can_be_played() -> None:
    client, draw = _client(show_attrs=True), random.Random(0)
    kinds = set()
    for walk in range(12):
        page = _play(
            client, f"search[{draw.choice(['lamp', 'running shoes', 'script', 'nothing at all'])}]", start=walk % 2
        )
        for _ in range(14):
            twin = _env(show_attrs=True)
            twin.reset(options={"session": walk % 2})
            infos = [twin.step(t["answer"])[4] for t in client.get("/episode.json").json()["turns"]]
            available = set(infos[-1]["available_actions"]) if twin.page.kind != "done" else set()
            assert page.enabled() == available - {"search[<content>]"}
            assert page.has_search_box == ("search[<content>]" in available)
            kinds.add(twin.page.kind)
            if not available:
                break
            action = draw.choice(sorted(available)).replace("<content>", "lamp")
            page = _read(client.post("/act", data={"action": action}))
    assert kinds == {"search", "results", "item", "description", "features", "reviews", "attributes", "done"}


def test_recorded_pages_of_the_original_offer_the_same_clicks(shared_dir: Path) -> None:
    folder = webshop_folder(shared_dir)
    kwargs = {"data_dir": folder, "human_goals": False}
    client = TestClient(make_app(lambda: WebShopEnv(**kwargs), lambda _, own: WebShopEnv(**own)))
    pages = 0
    for episode in recorded(folder, "episodes")["synthetic"]:
        page = _read(client.get("/?session=0"))
        for step in episode["steps"]:
            if step["action"] is not None:
                page = _read(client.post("/act", data={"action": step["action"]}))
            clicks = set() if step["done"] else {f"click[{text}]" for text in step["clickables"] if text != "search"}
            assert page.enabled() == clicks, (episode["goal_idx"], step["action"])
            assert page.has_search_box == step["has_search_bar"]
            pages += 1
    assert pages > 50


def test_a_page_that_was_left_plays_nothing() -> None:
    client = _client()
    _play(client, *ANSWERS[:2])
    page = _read(client.post("/act", data={"action": "click[buy now]", "turn": "1"}))
    assert "That was a page of turn 1, and the shop is at turn 2. Nothing was played." in page.text
    assert "Turn 2 of" in page.text
    assert "Nothing was played" not in _read(client.get("/")).text


def test_undo_hint_again_and_another_task() -> None:
    client = _client()
    page = _play(client, *ANSWERS[:3])
    page = _read(client.post("/undo"))
    assert page.pressed == []
    assert "Turn 2 of" in page.text
    page = _read(client.post("/hint"))
    assert "Hint: click[" in page.text
    _play(client, *ANSWERS[:2])
    _read(client.post("/act", data={"action": "click[buy now]"}))
    page = _read(client.post("/act", data={"action": "click[red]"}))
    assert "The episode is over" in page.text
    page = _read(client.post("/again"))
    assert "Turn 0 of" in page.text
    assert "Goal 1 of 2" in page.text
    assert "nothing to undo" in _read(client.post("/undo")).text
    assert "Turn 0 of" in _read(client.post("/next")).text


def test_out_of_turns() -> None:
    client = _client(max_turns=2)
    page = _play(client, *ANSWERS[:2])
    assert "Out of turns." in page.text
    assert page.enabled() == set()
    assert "Turn 2 of 2" in page.text


def test_answers_are_written_in_the_environments_form() -> None:
    client = _client(action_format="answer")
    _play(client, *ANSWERS[:2])
    turns = client.get("/episode.json").json()["turns"]
    assert [t["answer"] for t in turns] == [f"<answer>{a}</answer>" for a in ANSWERS[:2]]
    assert all(t["info"]["action_is_valid"] for t in turns)


@pytest.mark.parametrize(
    "action",
    [
        HOSTILE,
        f"search[{HOSTILE}]",
        "search[]",
        "search[ ]",
        "click[",
        "]" * 500,
        "click[no such thing]",
        "\x00\x1b[31m",
        "\ud83d".encode("utf-8", "surrogatepass").decode("latin-1"),
        "{{ 7 * 7 }}{% endfor %}",
        "search[<c> ]",
        "search[" + "lamp " * 390 + "]",
        "x" * 2_001,
        "",
        "\n\n",
    ],
    ids=repr,
)
def test_any_text_gives_a_page(action: str) -> None:
    client = _client()
    _play(client)
    for data in ({"action": action}, {"query": action}):
        response = client.post("/act", data=data)
        page = _read(response)
        assert HOSTILE not in response.text
        assert "{{ 7" in page.text or "{{" not in action
        assert "Your task" in page.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nope", 404),
        ("/static/../app.py", 404),
        ("/static/..%2fapp.py", 404),
        ("/static/app.py", 404),
        ("/%00", 404),
        ("/<script>", 404),
        ("/" + "a" * 4_000, 404),
        ("/watch/1", 404),
        ("/watch/x", 400),
        ("/watch/" + "9" * 5_000, 400),
        ("/watch/-1", 400),
        ("/watch/1/1/1", 404),
        ("/?session=2", 400),
        ("/?session=x", 400),
        ("/?session=-1", 400),
        ("/?seed=" + "9" * 5_000, 400),
        ("/?session=<script>", 400),
        ("/?seed=9", 200),
        ("/?session=1&session=x&other=1", 400),
        ("/act", 405),
        ("/watch", 200),
    ],
    ids=lambda value: str(value)[:30],
)
def test_any_address_gives_a_page(path: str, status: int) -> None:
    response = _client().get(path)
    page = _read(response, status)
    assert "WebShop" in page.text
    assert "<script>" not in response.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"\xff\xfe%ff%zz=&&;", 200),
        (b"action=" + b"a" * 70_000, 413),
        (b"&".join(b"f%d=1" % n for n in range(99)), 400),
        (b"action=click%5B&turn=x", 400),
        (b'{"action": 1}', 200),
    ],
    ids=["empty", "bytes", "long", "fields", "turn", "json"],
)
def test_any_form_gives_a_page(body: bytes, status: int) -> None:
    for where in ("/act", "/undo"):
        wanted = 200 if where == "/undo" and b"turn" in body else status
        _read(_client().post(where, content=body), wanted)


def test_texts_of_the_catalogue_are_escaped_on_every_page() -> None:
    client = _client(show_attrs=True)
    clicks = ("description", "features", "reviews", "attributes")
    actions = ["search[script lamp]", f"click[{LAMP.lower()}]", "click[<i>x</i>]"]
    actions += [action for name in clicks for action in (f"click[{name}]", "click[< prev]")]
    _play(client, start=LAMP_GOAL)
    _read(client.post("/agent-view"))
    for action in [*actions, "click[buy now]"]:
        response = client.post("/act", data={"action": action})
        page = _read(response)
        assert page.tags.isdisjoint({"script", "img", "i"})
        assert page.attributes.isdisjoint({"onerror", "style", "onclick"})
        assert HOSTILE in page.text
        assert all(a.startswith("/") or a == "data:," for a in page.addresses), page.addresses
    assert page.text.count("bright") >= 1


def test_headers_keep_the_page_to_itself() -> None:
    response = _client().get("/")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    cookie = _client().get("/").headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


def test_style_and_script_are_served() -> None:
    client = _client()
    assert client.get("/static/style.css").headers["content-type"].startswith("text/css")
    script = client.get("/static/watch.js")
    assert "ArrowRight" in script.text
    for text in (client.get("/static/style.css").text, script.text):
        assert "http" not in text


# -- visitors ----------------------------------------------------------------------------------------------------------


def test_visitors_do_not_meet() -> None:
    one = _client()
    two = TestClient(one.app)
    _play(one, *ANSWERS[:2])
    _play(two, start=LAMP_GOAL)
    assert "Turn 2 of" in _read(one.get("/")).text
    assert "a lamp" in _read(two.get("/")).text
    two.cookies.clear()
    two.cookies.set("roll_webshop", "guessed")
    assert "Turn 0 of" in _read(two.get("/")).text
    assert "guessed" not in {cookie.value for cookie in two.cookies.jar if cookie.domain.startswith("testserver")}


def test_the_visitor_of_long_ago_makes_place() -> None:
    first = _client()
    others = [TestClient(first.app) for _ in range(4)]
    _play(first, *ANSWERS[:2])
    for other in others[:3]:
        _play(other, *ANSWERS[:1])
    _read(first.get("/"))  # used again: now the first of the others is the oldest
    _play(others[3], *ANSWERS[:1])
    assert "Turn 2 of" in _read(first.get("/")).text
    assert "Turn 0 of" in _read(others[0].get("/")).text


def test_visits_do_not_pile_up() -> None:
    made: list[weakref.ref[WebShopEnv]] = []

    def make() -> WebShopEnv:
        env = _env()
        made.append(weakref.ref(env))
        return env

    visits = Visits(make, most=3)
    for _ in range(40):
        with visits.visit(None) as (name, visit):
            visit.act("search[lamp]", 0)
    assert len(visits) == 3
    with visits.visit(name) as (same, visit):
        assert same == name
        assert len(visit.session.turns) == 1
    gc.collect()
    assert sum(ref() is not None for ref in made) <= 4  # the three, and the one in `visit`


def test_a_fault_of_the_environment_is_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    client = _client()
    _play(client)

    def broken(self: WebShopEnv, action: str) -> Any:
        raise RuntimeError("torn page")

    with monkeypatch.context() as patch:
        patch.setattr(WebShopEnv, "step", broken)
        page = _read(client.post("/act", data={"action": "search[lamp]"}))
    assert "The environment failed: RuntimeError: torn page" in page.text
    assert "Turn 1 of" in _read(client.post("/act", data={"action": "search[lamp]"})).text


def test_an_episode_can_be_saved() -> None:
    client = _client()
    _play(client, *ANSWERS)
    response = client.get("/episode.json")
    assert 'filename="webshop-goal-1.json"' in response.headers["content-disposition"]
    record = json.loads(response.text)
    assert record["options"] == {"session": SHOES_GOAL}
    assert [t["answer"] for t in record["turns"]] == ANSWERS
