"""Observations as pictures: every cell is drawn as what it is, every button looks like one, and texts stay texts."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

import roll_envs
from envs.drawing import Look, grid
from roll_envs.env_registry import drawing


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("roll/SimpleSokoban-v0", {}),
        ("roll/SimpleSokoban-v0", {"observation_style": "verl-agent"}),
        ("roll/SokobanDifferentGridVocab-v0", {}),
        ("roll/SimpleSokoban-v0", {"symbols": ["<", "<b>", "t", "T", "x", "p", "P"]}),
        ("roll/FrozenLake-v0", {"size": 6}),
        ("roll/FrozenLakeSlippery-v0", {"symbols": ["P", "__", "O", "G", "X", "!"]}),
    ],
)
def test_every_cell_of_a_grid_is_drawn_as_what_it_is(id: str, kwargs: dict[str, Any]) -> None:
    env: Any = roll_envs.make(id, **kwargs)
    draw = drawing(id, kwargs)
    assert draw is not None
    symbols = re.findall(r"^(.*)$", env.instructions.partition("state is:\n")[2], re.MULTILINE)[0].split(", ")
    by_name = {name: symbol for symbol, _, name in (each.rpartition(": ") for each in symbols)}
    seen, over = env.reset(seed=5)[0], False
    plan = env.oracle()
    while True:
        shown = draw(seen)
        assert shown is not None
        names = re.findall(r"<title>([^<]+)</title>", shown)
        rows = [row.split() if "\t" in row else row for row in seen.split("\n")]
        if all(len(symbol) == 1 for symbol in by_name.values()):
            assert [by_name[name] for name in names] == [cell for row in rows for cell in row]
        else:
            assert "".join(by_name[name] for name in names) == seen.replace("\n", "")
        if over:
            break
        seen, _, over, *_ = env.step(plan.pop(0))
    assert any("player on" in name or "box on" in name for name in names)


def test_what_is_no_grid_stays_text() -> None:
    looks = {"#": Look("wall", "#000"), "_": Look("floor", "#fff", (("disc", "red"),))}
    assert grid("#_\n__", looks) is not None
    for text in ("", "#_\n_", "#?\n__", "#_ \n__ ", "<script>"):
        assert grid(text, looks) is None
    assert str(grid("_", {"_": Look("<i>", "#fff")})).count("&lt;i&gt;") == 1


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_pages_of_the_shop_have_their_buttons(mode: str) -> None:
    env: Any = roll_envs.make("roll/WebShop-v0", observation_mode=mode)
    draw = drawing("roll/WebShop-v0", {"observation_mode": mode})
    assert draw is not None
    seen, _ = env.reset(seed=3)
    plan, over = env.oracle(), False
    while not over:
        shown = draw(seen)
        assert shown is not None
        buttons = [unescape(each) for each in re.findall(r"<span[^>]*>([^<]*)</span>", shown)]
        for piece in env._clickables.values():
            if piece.kind == "link":
                assert f"<b>{piece.text}</b>" in shown
            elif piece.kind == "button" or mode == "text_rich":
                assert piece.text.strip() in buttons
        assert '<p class="goal">' in shown
        seen, _, over, *_ = env.step(plan.pop(0))
    assert "Thank you" in str(draw(seen))


def test_a_page_shows_what_was_written_as_text() -> None:
    draw = drawing("roll/WebShop-v0", {})
    assert draw is not None
    shown = draw("Instruction: [SEP] <script>x</script> [SEP] Search")
    assert shown is not None
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert draw("<script>") is None


def test_environments_without_drawings_have_none() -> None:
    assert drawing("roll/Dataset-v0", {}) is None
