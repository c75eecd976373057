"""The shop in a real Chromium without a window: an episode played by clicking, its replay by keys and by itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from webshop_small import SHOES, small_catalogue

import roll_envs
from envs.webshop.env import WebShopEnv

pytest.importorskip("uvicorn", reason="needs the optional part 'service'")
pytest.importorskip("jinja2", reason="needs the optional part 'service'")

pytestmark = pytest.mark.slow

SHOES_GOAL = 1


def _make(_: str = "", kwargs: Any = None) -> WebShopEnv:
    env = roll_envs.make("roll/WebShop-v0", catalogue=small_catalogue(), **(kwargs or {}))
    assert isinstance(env, WebShopEnv)
    return env


class _Served:
    """An application on a free port of this machine, in a thread."""

    def __init__(self, records: tuple[Any, ...] = ()) -> None:
        import uvicorn

        from envs.webshop.serve.app import make_app
        from envs.webshop.serve.command import _listen

        self._socket = _listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        app = make_app(_make, _make, records)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        _until(lambda: self._server.started, "the server")
        return self.url

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()
        assert not self._thread.is_alive()


def _until(true: Callable[[], Any], what: str, timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.03)


def _text(browser: Any, css: str) -> str:
    return " ".join(browser.find_element("css selector", css).text.split())


def _click(browser: Any, action: str) -> None:
    """Click what plays ``action`` and wait for the page after it."""
    before = browser.find_element("tag name", "html")
    browser.find_element("css selector", f"main [data-action='{action}']").click()
    _until(lambda: _gone(before), f"the page after {action}")


def _gone(element: Any) -> bool:
    from selenium.common.exceptions import StaleElementReferenceException

    try:
        element.is_enabled()
    except StaleElementReferenceException:
        return True
    return False


def _complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


def test_an_episode_is_played_by_clicking_and_then_watched(browser: Any, tmp_path: Path) -> None:
    from envs.webshop.serve.replay import shop_records

    with _Served() as url:
        browser.get(f"{url}/?session={SHOES_GOAL}")
        assert "red light weight running shoes" in _text(browser, ".task")
        box = browser.switch_to.active_element  # the search box is ready to type in
        box.send_keys("running shoes")
        _click(browser, "search[…]")
        assert _text(browser, "h1") == "1 result"
        _click(browser, f"click[{SHOES.lower()}]")
        assert _text(browser, ".price") == "$20.0"
        _click(browser, "click[red]")
        assert _text(browser, ".option.chosen") == "red"
        _click(browser, "click[8]")
        assert len(browser.find_elements("css selector", ".option.chosen")) == 2
        _click(browser, "click[reviews]")
        assert "Very good." in _text(browser, ".review")
        _click(browser, "click[< prev]")
        browser.find_element("css selector", "#agent summary").click()
        assert "click[buy now]" in _text(browser, "#agent .actions")
        assert _text(browser, ".turn-count") == "Turn 6 of 100"
        _click(browser, "click[buy now]")
        assert _text(browser, ".score") == "1 out of 1"
        assert _text(browser, ".parts tfoot .number") == "1"
        cookies = {cookie["name"]: cookie["value"] for cookie in browser.get_cookies()}
        saved = httpx.get(f"{url}/episode.json", cookies=cookies).json()
    path = tmp_path / "episode.json"
    path.write_text(json.dumps({**saved, "kwargs": {}}))
    with _Served(tuple(shop_records(path))) as url:
        _watch(browser, url)
    assert [entry["message"] for entry in browser.get_log("browser")] == []  # nothing missing, nothing refused


def _watch(browser: Any, url: str) -> None:
    """Look at the replay of the episode above: by a click, by keys, and by itself."""
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

    def press(key: str, page: str) -> None:
        browser.find_element("tag name", "body").send_keys(key)
        _until(lambda: browser.current_url == f"{url}/watch/1/{page}", f"step {page}")

    browser.get(f"{url}/watch")
    browser.find_element("css selector", ".records a").click()
    _until(lambda: browser.current_url == f"{url}/watch/1", "the replay")
    assert [e.text for e in browser.find_elements("css selector", ".steps code")][:2] == [
        "search[running shoes]",
        f"click[{SHOES.lower()}]",
    ]
    press(keys.ARROW_RIGHT, "1")
    assert browser.find_elements("css selector", ".card.next")
    press(keys.ARROW_RIGHT, "2")
    assert _text(browser, ".button.next") == "red"
    browser.find_element("css selector", "#agent summary").click()
    press(keys.ARROW_LEFT, "1")
    assert "click[back to search]" in _text(browser, "#agent .actions")  # as open as it was
    press(keys.ARROW_RIGHT, "2")
    assert browser.find_elements("css selector", ".notice.stop") == []
    browser.get(f"{url}/watch/1/5?play=1")
    _until(lambda: browser.current_url == f"{url}/watch/1/7", "the last step")
    assert _text(browser, ".score") == "1 out of 1"
    assert _text(browser, ".steps [aria-current]") == "7 click[buy now] +1"


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_their_window(browser: Any, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    with _Served() as url:
        for path in ("/?session=0", "/?session=1", "/watch", "/nope"):
            browser.get(url + path)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, path
        browser.get(f"{url}/?session=0")
        browser.find_element("name", "query").send_keys("script lamp")
        _click(browser, "search[…]")
        for action in ("click[b000000002]", "click[a]b]", "click[description]", "click[< prev]", "click[buy now]"):
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width, action
            _click(browser, action)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_is_played_without_javascript(browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        with _Served() as url:
            browser.get(f"{url}/?session={SHOES_GOAL}")
            browser.find_element("name", "query").send_keys("running shoes\n")
            for action in (f"click[{SHOES.lower()}]", "click[buy now]"):
                _until(lambda a=action: browser.find_elements("css selector", f"[data-action='{a}']"), action)
                browser.find_element("css selector", f"[data-action='{action}']").click()
            _until(lambda: browser.find_elements("css selector", ".score"), "the last page")
            assert _text(browser, ".score") == "0.5 out of 1"
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
