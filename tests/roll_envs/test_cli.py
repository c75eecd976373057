"""The command roll-envs: its outputs, its JSON, its exit codes, and a game in a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import roll_envs
from roll_envs.cli import common, listing, main
from roll_envs.cli.common import parse_kwargs
from roll_envs.cli.play import action_keys, draw, legend
from roll_envs.cli.session import Session
from roll_envs.parsing import make_action_format, make_free_format
from roll_envs.testing import COUNTER_CARD, CounterEnv

COUNTER = COUNTER_CARD.id
SOKOBAN = "roll/SimpleSokoban-v0"


class Lettered(CounterEnv):
    """Its actions are called like commands of ``play``."""

    def __init__(self) -> None:
        super().__init__(highest=1)
        self.action_format = make_action_format("word", ("u", "h"))


@pytest.fixture(autouse=True)
def counter() -> Iterator[None]:
    roll_envs.register(COUNTER_CARD)
    yield
    roll_envs.unregister(COUNTER)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def _typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    found = {entry["id"]: entry for entry in _json(capsys, "list")}
    assert found[COUNTER] == {
        "id": COUNTER,
        "source": "registered in this process",
        "state": "ready",
        "reason": "",
        "summary": "A counter to bring to its target.",
    }
    assert found[SOKOBAN]["source"].startswith("roll-envs ")
    assert main(["list"]) == 0
    assert SOKOBAN in capsys.readouterr().out


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _json(capsys, "show", COUNTER, "--seed", "3", "--kwargs", "highest=9")
    assert shown["reward_range"] == [-0.6, 0.9]
    assert shown["accepted_kwargs"] == {"highest": 4, "max_turns": 6, "action_format": "answer"}
    assert shown["example"]["observation"].startswith("counter 0, target")
    assert "Less and More" in shown["example"]["instructions"]
    assert main(["show", SOKOBAN]) == 0
    text = capsys.readouterr().out
    assert all(part in text for part in ("######", "num_boxes = 1", "differences", "v0: ", "-1 to 10.9"))


def test_show_without_what_an_example_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "roll/OpenEnv-v0"]) == 0
    shown = capsys.readouterr().out
    assert "url = (required)\n" in shown
    assert "reset = {}\n" in shown
    assert "give --kwargs url=..." in shown
    assert main(["show", "roll/OpenEnv-v0", "--kwargs", "ulr=x"]) == 2
    assert "did you mean 'url'" in capsys.readouterr().err


def test_show_an_environment_of_gymnasium(capsys: pytest.CaptureFixture[str]) -> None:
    gymnasium.register("only/Counter-v0", entry_point="roll_envs.testing:CounterEnv")
    try:
        assert main(["show", "only/Counter-v0"]) == 2
    finally:
        gymnasium.registry.pop("only/Counter-v0")
    assert "Gymnasium alone knows it" in capsys.readouterr().err


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    (report,) = _json(capsys, "check", COUNTER, "--seeds", "2", "--rules", "floor", "oracle")
    assert report["ok"]
    assert [r["rule"] for r in report["results"]] == ["floor", "oracle"]
    assert main(["check", COUNTER, "--rules", "floor", "--kwargs", "max_turns=2"]) == 0
    assert "1 passed, 0 failed" in capsys.readouterr().out


def test_a_failed_check_has_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    roll_envs.register(replace(COUNTER_CARD, reward_range=(-0.6, 0.5)), replace=True)
    (report,) = _json(capsys, "check", COUNTER, "--rules", "reward_range", code=1)
    assert not report["ok"]
    assert "mend it" in report["results"][0]["detail"]
    reports = _json(capsys, "check", COUNTER, SOKOBAN, "--rules", "reward_range", "--seeds", "2", code=1)
    assert [r["ok"] for r in reports] == [False, True]


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    (figures,) = _json(capsys, "bench", COUNTER, "--seconds", "0.02")
    assert figures["id"] == COUNTER
    assert figures["resets_per_s"] > 100
    assert figures["steps_per_s"] > 100
    assert main(["bench", COUNTER, "--seconds", "0.02"]) == 0
    assert "steps/s" in capsys.readouterr().out


def test_play_from_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    env = roll_envs.make(COUNTER, highest=1)
    env.reset(seed=3)
    _typed(monkeypatch, "less", "u", "h", "bogus", "=bogus", "<answer>More</answer>", "More")
    record = _json(capsys, "play", COUNTER, "--seed", "3", "--kwargs", "highest=1")
    assert [t["answer"] for t in record["turns"]] == ["bogus", "<answer>More</answer>"]
    assert record["success"]
    assert record["total_reward"] == pytest.approx(0.8)
    assert (record["id"], record["seed"], record["over"]) == (COUNTER, 3, True)


def test_play_shows_what_happens(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _typed(monkeypatch, "less", "u", "u", "h", "bogus", "?", "r", "Less", "q", "More")
    assert main(["play", COUNTER, "--seed", "3"]) == 0
    out = capsys.readouterr().out
    for part in (
        "seed 3",
        "seed 4",
        "counter -1",
        "back at turn 0",
        "nothing to undo",
        "hint: More",
        "'bogus' is not an action",
    ):
        assert part in out
    assert "\x1b" not in out
    assert out.endswith("stopped after 1 turns, return -0.1\n")


def test_undo_goes_back_to_what_was_shown_and_no_further_than_the_episode() -> None:
    env = roll_envs.make(COUNTER)
    session = Session(env, 3)
    shown = [session.observation]
    for action in ("More", "Less"):
        session.act(action)
        shown.append(session.observation)
    assert len(set(shown[:2])) == 2
    for count in (1, 0):
        session.undo()
        assert (len(session.turns), session.observation, env.render()) == (count, shown[count], shown[count])
    session.undo()
    assert session.message == "nothing to undo"
    session.act("Less")
    session.start()
    session.undo()
    assert (session.message, session.seed, session.observation) == ("nothing to undo", 4, env.render())


def test_a_step_that_raised_is_no_turn_to_take_back(monkeypatch: pytest.MonkeyPatch) -> None:
    env = roll_envs.make(COUNTER)
    session = Session(env, 3)
    session.act("Less")
    with monkeypatch.context() as patch:
        patch.setattr(env, "render", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.act("Less")
    session.undo()
    assert (session.message, session.turns) == ("back at turn 0", [])
    session.undo()
    assert session.message == "nothing to undo"


def test_an_action_that_is_called_like_a_command_wins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    roll_envs.register(replace(COUNTER_CARD, entry_point=f"{__name__}:Lettered"), replace=True)
    _typed(monkeypatch, "u", "h", " h ", "q")
    record = _json(capsys, "play", COUNTER, "--seed", "3")
    assert ([t["answer"] for t in record["turns"]], record["success"]) == (["u", "h", " h "], True)


def test_an_error_of_ours_is_not_blamed_on_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "run", lambda options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["list"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["play", "roll/SimpleSokobn-v0"], "did you mean 'roll/SimpleSokoban-v0'"),
        (["show", "roll/SimpleSokoban"], "ids end in a version"),
        (["play", SOKOBAN, "--kwargs", "max_turn=3"], "did you mean 'max_turns'"),
        (["play", SOKOBAN, "--kwargs", "max_turns"], "not of the form key=value"),
        (["play", SOKOBAN, "--kwargs", "max_turns=0"], "max_turns"),
        (["play", SOKOBAN, "--kwargs", "max_turns=1", "max_turns=2"], "given twice"),
        (["bench", COUNTER, "--seconds", "0"], "above 0"),
        (["check"], "give environment ids, or --all"),
        (["check", COUNTER, "--rules", "flor"], "did you mean 'floor'"),
        (["check", COUNTER, "--seeds", "0"], "1 or more"),
        (["lst"], "did you mean 'list'"),
        (["list", "--nonsense"], "unrecognized arguments"),
        ([], "a COMMAND comes first (see"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_help_keeps_the_lines_of_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--help"]) == 0
    assert "\nroll-envs replay episode.json\n" in capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "bench" in capsys.readouterr().out


def test_kwargs_are_read_as_json_then_python_then_text() -> None:
    pairs = ["a=1", "b=[2,3]", "c=word", "d=true", "e=None", "f=(4,5)", "g=x=y", 'h="1"', "i="]
    assert parse_kwargs(pairs) == {
        "a": 1, "b": [2, 3], "c": "word", "d": True, "e": None, "f": (4, 5), "g": "x=y", "h": "1", "i": "",
    }  # fmt: skip


def test_keys() -> None:
    assert action_keys(["Up", "Jump"]) == {"up": "Up", "w": "Up", "1": "Jump"}
    assert action_keys([str(i) for i in range(20)]) == {}


def test_boards_are_coloured_by_the_meaning_of_their_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    meanings = legend("Symbols:\n#: wall, P: player\nUse: any.")
    assert meanings == {"#": "wall", "P": "player"}
    assert draw("##\n#P", meanings, gap=" ") == "# #\n# P"
    assert draw("# #\n# P", meanings, gap=" ") == "# #\n# P"
    monkeypatch.setattr(common, "coloured", lambda: True)
    assert draw("##\n#P", meanings, gap="").count("\x1b[2m#\x1b[0m") == 3
    assert draw("##\n#P", meanings, gap="").count("\x1b[36;1mP\x1b[0m") == 1
    assert draw("Hello P\n#", meanings, gap=" ") == "Hello P\n#"
    assert draw("#P", meanings, gap=" ") == "#P"
    painted = [(common.paint("a", "red"), "1"), ("long", "2")]
    assert common.table(painted) == "\x1b[31ma\x1b[0m     1\nlong  2"


def test_keys_in_a_terminal() -> None:
    terminal, inner = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "roll_envs", "play", SOKOBAN, "--seed", "7"],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(inner)
    seen = ""

    def press(keys: str, until: str) -> None:
        nonlocal seen
        os.write(terminal, keys.encode())
        seen, deadline = "", time.monotonic() + 20
        while until not in seen:
            assert time.monotonic() < deadline, f"waited for {until!r} in {seen!r}"
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    seen += os.read(terminal, 65536).decode(errors="replace")
                except OSError:  # the child has closed the terminal
                    break

    try:
        press("", "turn 0 of 10")
        press("h", "hint: ")
        press("\x1b[C", "Right: ")
        press("w", "turn 2 of 10")
        press("u", "back at turn 1")
        press("?", "any key goes back")
        press("x", "back at turn 1")
        press("\x1b[D\x1bOA\x1b[5~é", "'é' does nothing here")  # keys that come at once are keys one by one
        press("uu", "back at turn 1")
        press("\x1b", "back at turn 1")
        press("t", "answer> ")
        press("left\n", "Left: ")
        press("q", "unfinished after 2 turns")
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait()
        os.close(terminal)


def test_json_in_a_terminal_shows_the_game_beside_it() -> None:
    terminal, inner = pty.openpty()
    os.write(terminal, b"h\nRight\nq\n")
    played = subprocess.run(
        [sys.executable, "-m", "roll_envs", "play", SOKOBAN, "--seed", "7", "--json", "--typed"],
        stdin=inner,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    os.close(inner)
    os.close(terminal)
    assert len(json.loads(played.stdout)["turns"]) == 1
    assert "hint: " in played.stderr
    assert "You have 10 turns" in played.stderr


# -- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["play", "show"])
def test_a_seed_below_0_is_refused(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, COUNTER, "--seed", "-1"]) == 2
    assert "'-1' is no seed; give a whole number of 0 or more" in capsys.readouterr().err


def test_an_environment_of_numbers_is_not_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "CartPole-v1"]) == 2
    said = capsys.readouterr().err
    assert "CartPole-v1 is not played with text, but with actions of Discrete(2); roll_envs.adapt" in said


def test_a_free_answer_is_played_in_the_form_of_the_environment() -> None:
    env = CounterEnv()
    env.action_format = make_free_format("answer", example="5")  # type: ignore[assignment]
    session = Session(env, 0)
    assert session.read("blue shoes") == "<answer>blue shoes</answer>"
    assert session.read("<answer>blue shoes</answer>") == "<answer>blue shoes</answer>"


def test_a_terminal_of_few_letters_shows_the_rest_as_question_marks() -> None:
    said = subprocess.run(
        [sys.executable, "-c", f"import sys, roll_envs.cli as cli; sys.exit(cli.main(['show', {SOKOBAN!r}]))"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert "?: box on target" in said.stdout


# -- a package of one's own --------------------------------------------------------------------------------------------


def test_init_writes_a_package(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/examples installs, checks and trains it."""
    monkeypatch.chdir(tmp_path)
    assert _json(capsys, "init", "word-hunt") == {"folder": "word-hunt", "id": "word-hunt/WordHunt-v0"}
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    inside = ("README.md", "pyproject.toml", "test_env.py", "train.yaml", "word_hunt/__init__.py", "word_hunt/env.py")
    assert files == {f"word-hunt/{name}" for name in inside}
    assert not any("$" in (tmp_path / file).read_text() for file in files)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My_Game", "NAME is 'My_Game'; give small letters"),
        ("../up", "NAME is '../up'; give small letters"),
        ("trainer", "Python has a module 'trainer' already"),
        ("here", "here exists already; choose another NAME"),
    ],
)
def test_init_writes_nothing_where_it_cannot(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    assert main(["init", name]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_init_leaves_no_half_of_a_package(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write = Path.write_text

    def full(path: Path, *args: Any, **kwargs: Any) -> int:
        if path.name == "train.yaml":
            raise OSError("no space left on device")
        return write(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["init", "word-hunt"]) == 2
    assert "word-hunt cannot be written: no space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
