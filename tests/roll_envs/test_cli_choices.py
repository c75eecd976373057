"""Actions that an environment lists: choosing them by number, filling in forms, and playing so in a terminal."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import counter_shop
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roll_envs
from roll_envs.cli import main
from roll_envs.cli.session import Choices, available_actions

SHOP = counter_shop.CARD.id


@pytest.fixture(autouse=True)
def shop() -> Iterator[None]:
    roll_envs.register(counter_shop.CARD, replace=True)
    yield
    roll_envs.unregister(SHOP)


def _play(monkeypatch: pytest.MonkeyPatch, *lines: str, arguments: tuple[str, ...] = ()) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert main(["play", SHOP, "--seed", "0", *arguments]) == 0


@pytest.mark.parametrize(
    ("typed", "action"),
    [
        ("1", "click[red]"),
        (" 2 ", "click[buy now]"),
        ("0", None),
        ("3", None),
        ("9" * 5000, None),
        ("CLICK[Red]", "click[red]"),
        ("click[blue]", None),
        ("s blue  shoes ", "search[blue  shoes]"),
        ("search red", "search[red]"),
        ("s", None),
        ("search[green]", "search[green]"),
        ("SEARCH[green]", "SEARCH[green]"),
        ("search[]", None),
        ("search[<words>]", "search[<words>]"),
        ("shoes", None),
        ("", None),
    ],
)
def test_what_can_be_typed(typed: str, action: str | None) -> None:
    choices = Choices(["search[<words>]", "click[red]", "click[buy now]", "click[red]"])
    assert choices.read(typed) == action


def test_a_letter_that_is_taken_is_no_name_of_a_form() -> None:
    choices = Choices(["use[<thing>]", "say[<words>]", "send[<words>]"], taken="uh")
    assert choices.forms == {"use": "use[<thing>]", "s": "say[<words>]", "send": "send[<words>]"}
    assert choices.read("u key") is None
    assert choices.read("use key") == "use[key]"
    assert (
        choices.usage()
        == "use and words for use[<thing>], s and words for say[<words>], send and words for send[<words>]"
    )


def test_numbers_stand_beside_the_text_they_choose() -> None:
    choices = Choices(["click[back]", "click[red shoes]", "search[<words>]", "wait"])
    shown = choices.view("Shop [SEP] Back [SEP] Red  Shoes [SEP] so cheap", width=60)
    assert shown.split("\n") == [
        "      Shop",
        "  [1] Back",
        "  [2] Red  Shoes",
        "      so cheap",
        "  [3] wait",
        "  [s ...] search[<words>]",
    ]
    marked = choices.view("[button] Back [button_]\n  [clicked button] red shoes [clicked button_]", width=60)
    assert marked.split("\n")[:3] == ["  [1] Back", "  [2] red shoes (clicked)", "  [3] wait"]
    wrapped = choices.view("word " * 30, width=40)
    assert max(map(len, wrapped.split("\n"))) <= 40


def test_only_texts_are_actions() -> None:
    assert available_actions({"available_actions": ["a", 3, "", " ", "b"]}) == ("a", "b")
    assert available_actions({"available_actions": "abc"}) == ()
    assert available_actions({"available_actions": 7}) == available_actions({}) == ()


@given(st.lists(st.text(), max_size=6), st.text(), st.text())
def test_any_text_can_be_read_and_shown(available: list[str], typed: str, observation: str) -> None:
    choices = Choices(available, taken="uh")
    read = choices.read(typed)
    assert read is None or read in available or choices.forms
    assert isinstance(choices.view(observation, width=50), str)


def test_an_episode_by_numbers_and_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _play(monkeypatch, "s salt", "u", "h", "7", "s tea", "2", "1")
    out = capsys.readouterr().out
    for part in (
        "      Wanted: tea\n      You said: nothing\n  [1] Leave\n  [2] click[look around]\n  [s ...] say[<words>]\n",
        "turn 1 of 4 · say[salt]: reward +0\n",
        "back at turn 0",
        "hint: say[tea] (2 turns to go)",
        "'7' is not an action here; type a number from 1 to 2, s and words for say[<words>] (='text' plays any text)",
        "click[look around]: not a valid answer; reward +0",
    ):
        assert part in out
    assert out.count("[SEP]") == 0
    assert "lost reward +0; return +0 in 3 turns" in out


@pytest.mark.parametrize("form", ["word", "answer"])
def test_the_record_says_how_to_play_it_again(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _play(
        monkeypatch,
        "s salt", "<answer>click[leave]</answer>" if form == "answer" else "click[leave]",
        arguments=("--json", "--options", "wanted=salt", "--kwargs", f"action_format={form}"),
    )  # fmt: skip
    record = json.loads(capsys.readouterr().out)
    assert record["kwargs"] == {"action_format": form}
    assert record["options"] == {"wanted": "salt"}
    assert record["seed"] == 0
    wanted = ["say[salt]", "click[leave]"]
    assert [t["answer"] for t in record["turns"]] == [
        f"<answer>{w}</answer>" if form == "answer" else w for w in wanted
    ]
    assert record["success"]


def test_options_that_do_not_fit_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", SHOP, "--seed", "0", "--options", "wanted=milk"]) == 2
    assert "reset with seed 0 and options {'wanted': 'milk'} failed: there is no 'milk'" in capsys.readouterr().err
    assert main(["play", SHOP, "--options", "wanted"]) == 2
    assert "--options: 'wanted' is not of the form key=value" in capsys.readouterr().err
