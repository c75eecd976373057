"""The page of a run in a real Chromium without a window: live, filtered, side by side, exported, with many episodes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from episode_builders import group, trajectory, turn
from loop_runs import run

from roll_envs import env_registry
from trainer.rollout.stream import RecordWriter, StepRecord
from trainer.view.episodes import Episodes
from trainer.view.server import Viewer, export, make_server

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror='document.title=\"broken\"'></script>\u202e"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, _ = run(tmp_path_factory.mktemp("view"), steps=3)
    return folder


class Served:
    """The page of ``path`` on a free port, in a thread."""

    def __init__(self, path: Path) -> None:
        self._server = make_server(Viewer(Episodes(path)), 0)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(20)


def until(true: Callable[[], Any], what: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.05)


def text(browser: Any, css: str) -> str:
    return " ".join(browser.find_element("css selector", css).text.split())


def all_of(browser: Any, css: str) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", css)
    return found


@pytest.fixture(autouse=True)
def no_complaints(browser: Any) -> Iterator[None]:
    yield
    said = [entry["message"] for entry in browser.get_log("browser") if "favicon" not in entry["message"]]
    browser.get("about:blank")
    assert not said


def test_a_run_is_looked_at(browser: Any, tiny: Path) -> None:
    with Served(tiny) as url:
        browser.get(url)
        until(lambda: re.search(r"episodes.*solved$", text(browser, "#status")), "all episodes, with no record to read")
        until(lambda: text(browser, "h1") == tiny.name, "its name")
        until(lambda: all_of(browser, "#curves polyline"), "the curves")
        browser.find_element("css selector", "[name=phase] option[value=train]").click()
        all_of(browser, "#list .row")[0].click()
        until(lambda: all_of(browser, "#detail .turn"), "an episode")
        assert "roll/FrozenLake-v0 · train task" in text(browser, "h2")
        token = browser.find_element("css selector", ".tokens i")
        until(lambda: "advantage" in (token.get_attribute("title") or ""), "what was learnt of a token")
        members = all_of(browser, ".members button")
        assert len(members) == 4, "three episodes of the group, and side by side"
        members[3].click()
        until(lambda: len(all_of(browser, ".episode")) == 3, "the group side by side")
        browser.find_element("css selector", "#list").send_keys("\ue015")  # arrow down
        until(lambda: all_of(browser, "#list .row.chosen"), "the next episode")


def test_filters_leave_what_they_say(browser: Any, tmp_path: Path) -> None:
    episodes = [trajectory(*[turn(reward=0.25)] * n, member=n) for n in (1, 2, 3, 4)]
    won = trajectory(turn(info={"success": True}), member=5)
    RecordWriter(tmp_path / "s.gz").write(StepRecord(phase="train", step=7, version=7, groups=(group(*episodes, won),)))
    with Served(tmp_path / "s.gz") as url:
        browser.get(url)
        until(lambda: "5 of 5" in text(browser, "#status"), "the episodes")
        for name, value, left in (("turns", "2-3", 2), ("return", "0.75-", 2), ("step", "8", 0), ("text", "7", 5)):
            box = browser.find_element("name", name)
            box.send_keys(value)
            until(lambda n=left: f"{n} of 5" in text(browser, "#status"), f"{name} {value}")
            box.clear()
            box.send_keys(" ")
        browser.find_element("css selector", "option[value=solved]").click()
        until(lambda: "1 of 5" in text(browser, "#status"), "the solved one")


def test_what_comes_later_appears_by_itself(browser: Any, tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "s.gz")
    writer.write(StepRecord(phase="train", step=1, version=1, groups=(group(trajectory(turn())),)))
    with Served(tmp_path / "s.gz") as url:
        browser.get(url)
        until(lambda: "1 of 1" in text(browser, "#status"), "the first episode")
        writer.write(StepRecord(phase="train", step=2, version=2, groups=(group(trajectory(turn())),)))
        until(lambda: "2 of 2" in text(browser, "#status"), "the second one")


def test_what_a_model_writes_is_shown_as_text(browser: Any, tmp_path: Path) -> None:
    hostile = trajectory(turn(anchor=HOSTILE, info={HOSTILE: HOSTILE}))
    RecordWriter(tmp_path / "s.gz").write(StepRecord(phase=HOSTILE, step=1, version=1, groups=(group(hostile),)))
    export(Episodes(tmp_path / "s.gz"), tmp_path / "page.html", 10)
    with Served(tmp_path / "s.gz") as url:
        for page in (url, f"file://{tmp_path}/page.html"):
            browser.get(page)
            until(lambda: all_of(browser, "#list .row"), "the episode")
            all_of(browser, "#list .row")[0].click()
            until(lambda: all_of(browser, "#detail .turn pre"), "its turn")
            assert HOSTILE in browser.find_element("css selector", "#detail .turn pre").get_property("textContent")
            assert "broken" not in browser.title
            assert not all_of(browser, "img")


def test_an_exported_page_needs_no_server(browser: Any, tiny: Path, tmp_path: Path) -> None:
    count = export(Episodes(tiny), tmp_path / "page.html", 12)
    browser.get(f"file://{tmp_path}/page.html")
    until(lambda: f"{count} of {count}" in text(browser, "#status"), "the episodes")
    all_of(browser, "#list .row")[0].click()
    until(lambda: all_of(browser, "#detail .turn"), "an episode")
    assert all_of(browser, "#curves polyline")


def test_ten_thousand_episodes_are_a_short_list(browser: Any, tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "s.gz")
    many = tuple(group(*(trajectory(turn(reward=n), member=n) for n in range(100))) for _ in range(10))
    for step in range(10):
        writer.write(StepRecord(phase="train", step=step, version=step, groups=many))
    with Served(tmp_path / "s.gz") as url:
        browser.get(url)
        until(lambda: "10000 of 10000" in text(browser, "#status"), "all of them", 60)
        assert len(all_of(browser, "#list .row")) < 100, "only what is in sight is drawn"
        browser.execute_script("document.getElementById('list').scrollTop = 5000 * 26")
        drawn = "return [...document.querySelectorAll('#list .row')].map((row) => row.style.top)"
        until(lambda: "130000px" in browser.execute_script(drawn), "the middle")


def test_observations_are_drawn_and_run_nothing(browser: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = env_registry.drawing("roll/FrozenLake-v0", {})
    assert real is not None
    hostile = (
        f"<script>parent.document.title = 'broken'</script><a id=hostile>{HOSTILE}</a><div style='height:200px'></div>"
    )
    monkeypatch.setattr(env_registry, "drawing", lambda id, kwargs: lambda seen: f"{real(seen)}{hostile}")
    with Served(tiny) as url:
        browser.get(url)
        until(lambda: all_of(browser, "#list .row"), "the episodes")
        all_of(browser, "#list .row")[0].click()
        until(lambda: all_of(browser, "#detail iframe"), "a drawing")
        frame = all_of(browser, "#detail iframe")[0]
        until(lambda: frame.size["height"] > 250, "the height of what is drawn")
        browser.switch_to.frame(frame)
        assert len(all_of(browser, "svg > rect:first-of-type, svg > rect")) >= 16
        assert all_of(browser, "#hostile")
        browser.switch_to.default_content()
        assert "broken" not in browser.title
        text = browser.find_element("css selector", "#detail .turn details pre")
        assert not text.is_displayed()
        browser.find_element("css selector", "#detail .turn details summary").click()
        until(text.is_displayed, "the text")
        # What was refused is said on the console; nothing else is.
        said = [entry["message"] for entry in browser.get_log("browser") if "favicon" not in entry["message"]]
        assert all("Blocked script execution" in each or "Content Security Policy" in each for each in said)
