"""The visitors of the shop: one environment and episode each, at most so many at a time."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from envs.webshop.env import WebShopEnv
from roll_envs.cli.session import Session
from roll_envs.errors import RollError

__all__ = ["MOST_ACTION_CHARS", "Visit", "Visits"]

MOST_ACTION_CHARS = 2_000


class Visit:
    """One visitor: an environment, the episode in progress and what to say on the next page."""

    def __init__(self, env: WebShopEnv) -> None:
        self.env = env
        self.session = Session(env, None)
        self.lock = threading.Lock()
        self.agent_view = False
        """Whether the panel with the agent's view stays open and every action is written out."""
        self._notice = ""

    @property
    def goal_number(self) -> int:
        """The number of the goal in the catalogue."""
        return int(self.env.snapshot()["goal"])

    def say(self, notice: str) -> None:
        """Show ``notice`` on the next page."""
        self._notice = notice

    def take_notice(self) -> str:
        """What to show now; it is shown once."""
        notice, self._notice = self._notice, ""
        return notice

    def start(self, *, seed: int | None = None, goal: int | None = None) -> None:
        """A new episode: of a goal by number, else of a seed, else of a seed that is drawn. Raises ``ConfigError``."""
        self._notice = ""
        self.session.start(seed if goal is None else goal, None if goal is None else {"session": goal})

    def again(self) -> None:
        """The same episode from its start."""
        self.session.start(self.session.seed, self.session.options)

    def act(self, action: str, turn: int | None) -> None:
        """Play an action, unless the page it was sent from is not the one that is shown any more."""
        session = self.session
        now = len(session.turns)
        if turn is not None and turn != now:
            self.say(f"That was a page of turn {turn}, and the shop is at turn {now}. Nothing was played.")
        elif session.over:
            self.say("The episode is over: undo the last turn, or start another one.")
        elif len(action) > MOST_ACTION_CHARS:
            self.say(f"That was not sent: an action here has {MOST_ACTION_CHARS:,} characters at most.")
        elif not action.strip():
            self.say("Nothing was typed, so nothing was played.")
        else:
            self._step(action)

    def _step(self, action: str) -> None:
        try:
            self.session.answer(self.env.action_format.write(action))
        except RollError as error:
            self.say(str(error))
        except Exception as error:  # an environment's fault is shown, and the visit goes on
            self.say(f"The environment failed: {type(error).__name__}: {error}")
        else:
            if not self.session.info.get("action_is_valid", True):
                self.say(f"“{_short(action)}” is not an action of this page. The turn is used up.")

    def undo(self) -> None:
        """Take the last turn back."""
        self.session.undo()
        # The message is the only sign that nothing was undone.
        if self.session.message.startswith("nothing"):
            self.say("There is nothing to undo.")

    def hint(self) -> None:
        """Show the next answer of the oracle as a notice."""
        self.session.hint()
        self.say(self.session.message[:1].upper() + self.session.message[1:])

    def record(self) -> dict[str, Any]:
        """The episode so far, in the form of ``roll-envs play --json``."""
        return self.session.record()


class Visits:
    """Visits by a secret name. When there are too many, the least recently used one ends."""

    def __init__(self, make: Callable[[], WebShopEnv], most: int) -> None:
        self._make, self._most = make, most
        self._visits: OrderedDict[str, Visit] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._visits)

    @contextmanager
    def visit(self, name: str | None) -> Iterator[tuple[str, Visit]]:
        """The visit called ``name``, or a new one with a new name; no other request uses it until the block ends."""
        with self._lock:
            found = self._visits.get(name) if name else None
        if found is None or name is None:
            name, found = secrets.token_urlsafe(16), Visit(self._make())
        with self._lock:
            self._visits[name] = found
            self._visits.move_to_end(name)
            # A request that still uses it holds a reference of its own.
            while len(self._visits) > self._most:
                self._visits.popitem(last=False)
        with found.lock:
            yield name, found


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 80 else flat[:77] + "..."
