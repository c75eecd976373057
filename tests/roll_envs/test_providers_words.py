"""The words that games ask NLTK for come from packages, and nothing is downloaded."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable

import pytest

import roll_envs
from roll_envs.errors import ConfigError
from roll_envs.providers import words
from roll_envs.providers.words import words_at_hand


def test_nltk_is_left_to_itself_where_the_packages_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "folder_of", lambda package: None)
    before = set(sys.modules)
    with words_at_hand("a game"):
        assert set(sys.modules) == before


def needs_words(test: Callable[..., None]) -> Callable[..., None]:
    """Slow, since ``make test-slow`` installs them."""
    absent = any(importlib.util.find_spec(package) is None for package in ("textarena", *words._PACKAGES))
    return pytest.mark.slow(pytest.mark.skipif(absent, reason="needs words: make .venv/providers.stamp")(test))


@needs_words
def test_basic_english_is_nltks_own_file_to_the_letter() -> None:
    file = "\n".join(words._basic()) + "\n"
    # The file's own digest, as those who keep it in Git LFS have it.
    own = "b00de5c6438714a6abaa906ec85f063f63c0606f713cbe8728b21c42664e5fce"
    assert hashlib.sha256(file.encode()).hexdigest() == own


@needs_words
def test_nltk_has_the_words_within_and_is_as_before_afterwards() -> None:
    import nltk
    import nltk.corpus

    before = (nltk.download, nltk.pos_tag, nltk.corpus.words)
    with words_at_hand("a game"):
        both = nltk.corpus.words.words()
        assert both == nltk.corpus.words.words("en") + nltk.corpus.words.words("en-basic")
        assert (len(both), both[:3], both[-1]) == (235_970 + 850, ["A", "a", "aa"], "young")
        assert nltk.pos_tag(["apple"]) == [("apple", "NN")]
        assert nltk.pos_tag(["quickly"]) == [("quickly", "RB")]
        assert nltk.download("no such thing") is True
    assert (nltk.download, nltk.pos_tag, nltk.corpus.words) == before
    assert "words" not in vars(nltk.corpus.words)


@needs_words
def test_who_imported_them_before_has_the_words_too() -> None:
    from nltk import pos_tag
    from nltk.corpus import words as imported

    with words_at_hand("a game"):
        assert len(imported.words("en-basic")) == 850
        assert pos_tag(["quickly"]) == [("quickly", "RB")]


@needs_words
def test_who_leaves_first_takes_nothing_from_who_is_still_within() -> None:
    import nltk

    before = nltk.pos_tag
    first, second = words_at_hand("a game"), words_at_hand("another")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert nltk.pos_tag(["quickly"]) == [("quickly", "RB")]
    second.__exit__(None, None, None)
    assert nltk.pos_tag is before


@needs_words
def test_gems_words_are_there_when_an_episode_begins() -> None:
    pytest.importorskip("gem")
    env = roll_envs.make("gem/WordSearch-easy-v0")
    assert env.reset(seed=0)[0] == env.reset(seed=0)[0]


def test_a_game_without_its_words_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "folder_of", lambda package: None)
    with pytest.raises(ConfigError, match="a game needs word lists"), words_at_hand("a game"):
        raise LookupError("Resource 'words' not found.")
    with pytest.raises(KeyError), words_at_hand("a game"):
        raise KeyError("a fault of the game's")


@needs_words
@pytest.mark.parametrize("name", ["Wordle", "Hangman"])
def test_a_game_with_words_is_won(name: str) -> None:
    env = roll_envs.make(f"textarena/{name}-v0")
    env.reset(seed=0)
    state = env.unwrapped._game.state.game_state
    secret = state["secret_word"] if name == "Wordle" else state["target_word"]
    _, reward, terminated, _, info = env.step(f"<answer>[{secret}]</answer>")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
