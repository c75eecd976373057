"""The web application: every page of the shop, the list of recorded episodes and their steps.

Plain forms and links; without JavaScript only the arrow keys of a replay are missing. Nothing is loaded from another
host. Every visitor has an environment of their own (see :mod:`envs.webshop.serve.visits`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from envs.webshop.env import WebShopEnv
from envs.webshop.serve.forms import read_form, whole_number
from envs.webshop.serve.pictures import drawing, tint
from envs.webshop.serve.replay import MakeShop, Replay, play_again
from envs.webshop.serve.scene import of_replay, of_visit
from envs.webshop.serve.visits import Visit, Visits
from roll_envs.errors import RollError
from roll_envs.records import Record

__all__ = ["make_app"]

MOST_VISITS = 64
_REMEMBERED_REPLAYS = 16
_FILES = {"style.css": "text/css", "watch.js": "text/javascript"}
# no-store: a page shows the state of an episode, which a stored copy would not.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_SAID = {
    404: "There is no such page.",
    405: "That address does not work in this way.",
    500: "Something went wrong on our side. The shop goes on.",
}


def make_app(
    make_env: Callable[[], WebShopEnv],
    make_shop: MakeShop,
    records: Sequence[Record] = (),
    *,
    cookie: str = "roll_webshop",
    most_visits: int = MOST_VISITS,
) -> Starlette:
    """The application. ``make_env`` makes a visitor's environment, ``make_shop`` that of a recorded episode."""
    site = _Site(Visits(make_env, most_visits), make_shop, records, cookie)
    routes = [
        Route("/", site.shop),
        *(Route(f"/{name}", site.change, methods=["POST"]) for name in _CHANGES),
        Route("/episode.json", site.episode),
        Route("/watch", site.watch_list),
        Route("/watch/{record}", site.watch),
        Route("/watch/{record}/{step}", site.watch),
        Route("/static/{name}", _static),
    ]
    handlers: Any = {HTTPException: site.error, Exception: site.error}
    return Starlette(routes=routes, exception_handlers=handlers)


def _act(visit: Visit, form: dict[str, str]) -> None:
    action = form.get("action", "")
    if "query" in form:
        words = " ".join(form["query"].split())
        action = f"search[{words}]" if words else ""
    visit.act(action, whole_number(form.get("turn"), "The turn"))


def _toggle(visit: Visit, _: dict[str, str]) -> None:
    visit.agent_view = not visit.agent_view


_CHANGES: dict[str, Callable[[Visit, dict[str, str]], None]] = {
    "act": _act,
    "undo": lambda visit, _: visit.undo(),
    "hint": lambda visit, _: visit.hint(),
    "again": lambda visit, _: visit.again(),
    "next": lambda visit, _: visit.start(),
    "agent-view": _toggle,
}
"""What a form can do, by its address."""


class _Site:
    def __init__(self, visits: Visits, make_shop: MakeShop, records: Sequence[Record], cookie: str) -> None:
        self._visits, self._make_shop, self._records, self._cookie = visits, make_shop, records, cookie
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("envs.webshop.serve"), autoescape=True, undefined=jinja2.StrictUndefined
        )
        self._templates.filters["dollars"] = lambda value: f"${value:,.2f}"
        self._templates.filters |= {"tint": tint, "drawing": drawing}
        self._templates.filters["points"] = lambda value: f"{value:.3f}".rstrip("0").rstrip(".")
        self._replaying = threading.Lock()
        self._replay = lru_cache(maxsize=_REMEMBERED_REPLAYS)(self._play_again)

    async def shop(self, request: Request) -> Response:
        """The visitor's page; ``?session=N`` or ``?seed=N`` starts an episode first."""
        goal = whole_number(request.query_params.get("session"), "The session")
        seed = whole_number(request.query_params.get("seed"), "The seed")
        if goal is None and seed is None:
            return await self._with_visit(request, self._show)

        def start(visit: Visit) -> Response:
            try:
                visit.start(seed=seed, goal=goal)
            except RollError as error:
                raise HTTPException(400, str(error)) from error
            return RedirectResponse("/", 303)

        return await self._with_visit(request, start)

    async def change(self, request: Request) -> Response:
        """Do what a form says, then show the page by a GET, so that reloading it plays nothing again."""
        form = await read_form(request)
        function = _CHANGES[request.url.path.removeprefix("/")]

        def apply(visit: Visit) -> Response:
            function(visit, form)
            return RedirectResponse("/", 303)

        return await self._with_visit(request, apply)

    async def episode(self, request: Request) -> Response:
        """The episode so far as JSON, for ``--record``."""

        def dump(visit: Visit) -> Response:
            name = f"webshop-goal-{visit.goal_number}.json"
            headers = {"Content-Disposition": f'attachment; filename="{name}"'}
            text = json.dumps(visit.record(), indent=2, default=str)
            return Response(text, media_type="application/json", headers=headers)

        return await self._with_visit(request, dump)

    async def watch_list(self, request: Request) -> Response:
        """All recorded episodes."""
        return self._page("records.html", records=self._records)

    async def watch(self, request: Request) -> Response:
        """One step of a recorded episode; ``?play=1`` goes on by itself."""
        number = whole_number(request.path_params["record"], "The number of an episode")
        if number is None or not 1 <= number <= len(self._records):
            raise HTTPException(404, f"There are {len(self._records)} recorded episodes, counted from 1.")
        replay = await run_in_threadpool(self._replay_once, number - 1)
        step = whole_number(request.path_params.get("step", "0"), "The number of a step") or 0
        if not replay.steps:
            return self._page("broken.html", number=number, replay=replay)
        last = len(replay.steps) - 1
        if step > last:
            raise HTTPException(404, f"This episode has the steps 0 to {last}.")
        playing = request.query_params.get("play") == "1" and step < last
        scene = of_replay(replay, step)
        many = len(self._records)
        return self._page(
            "watch.html", scene=scene, replay=replay, number=number, many=many, last=last, playing=playing
        )

    async def error(self, request: Request, error: Exception) -> Response:
        """The error page."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        said = error.detail if isinstance(error, HTTPException) and status not in (405,) else ""
        plain = not said or said == "Not Found"
        return self._page("error.html", status, status=status, message=_SAID.get(status, "") if plain else said)

    async def _with_visit(self, request: Request, function: Callable[[Visit], Response]) -> Response:
        given = request.cookies.get(self._cookie)

        def use() -> tuple[str, Response]:
            with self._visits.visit(given) as (name, visit):
                return name, function(visit)

        # A step may take a while, and other visitors must not wait for it.
        name, response = await run_in_threadpool(use)
        if name != given:
            response.set_cookie(self._cookie, name, httponly=True, samesite="lax")
        return response

    def _show(self, visit: Visit) -> Response:
        return self._page("shop.html", scene=of_visit(visit), records=self._records)

    def _page(self, template: str, code: int = 200, **values: Any) -> Response:
        html = self._templates.get_template(template).render(**values)
        # A lone surrogate, which JSON can hold, is no UTF-8.
        return HTMLResponse(html.encode("utf-8", "replace"), code, headers=_HEADERS)

    def _replay_once(self, index: int) -> Replay:
        with self._replaying:  # two requests for one episode replay it once
            return self._replay(index)

    def _play_again(self, index: int) -> Replay:
        return play_again(self._records[index], self._make_shop)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        raise HTTPException(404)
    content = resources.files("envs.webshop.serve").joinpath("static", name).read_bytes()
    return Response(content, media_type=_FILES[name], headers=_HEADERS)
