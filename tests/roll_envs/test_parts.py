"""Named parts of one installed package: found, made with settings of their own, checked, shown, isolated."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from plugins import install, run_commands, run_python

from roll_envs.errors import ConfigError
from roll_envs.settings import Seconds, checked_arguments

MODULE = '''\
from __future__ import annotations
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal
import roll_envs
from pydantic import Field
from roll_envs import EnvironmentCard, Sandbox, Score
from roll_envs.settings import Settings
from roll_envs.testing import CounterEnv
from roll_envs.tools import Tool, ToolResult, ToolSpec
if TYPE_CHECKING:
    from nowhere import Unknown


class EndsSettings(Settings):
    """Its declaration as a model."""

    ending: str = "."
    "What an answer must end with."
    bonus: float = Field(0.0, ge=0)
    "Added to the value. Default: ours."


class Ends:
    def __init__(self, settings: EndsSettings) -> None:
        self.settings = settings

    def __call__(self, answer, reference=None, context=None):
        passed = answer.endswith(self.settings.ending)
        return Score(value=passed + self.settings.bonus, passed=passed)


class Starts:
    """Its declaration as the parameters of its constructor."""

    def __init__(
        self, *, words: tuple[str, ...], how: Literal["any", "all"] = "any", schema: Unknown = None,
        x: "list[Unknown]" = 1,
    ) -> None:
        self.words = words

    def __call__(self, answer, reference=None, context=None):
        passed = answer.startswith(tuple(self.words))
        return Score(value=float(passed), passed=passed)


class Shout(Tool):
    def __init__(self, *, marks: int = 1) -> None:
        self.marks = marks
        self.spec = ToolSpec(name="shout", description="Shouts.", parameters={"type": "object", "properties": {}})

    def call(self, arguments, *, deadline_s):
        return ToolResult(text="HEY" + "!" * self.marks, ok=True)


class Cell(Sandbox):
    def __init__(self, *, bars: int = 3, names: Sequence[str] = ()) -> None:
        self.bars = bars

    def run(self, program, *, limits=None, timeout_s=60.0):
        raise NotImplementedError

    def session(self, *, language="python", limits=None):
        raise NotImplementedError

    def close(self):
        pass


CARD = EnvironmentCard(
    id="full/Game-v0", entry_point="full_set:Game", summary="-", tests="-", turns="-", reward_range=(-0.6, 0.9),
    rewards="-", success="-",
)


class Game(CounterEnv):
    def __init__(self, *, prize: float = 1.0, **kwargs) -> None:
        super().__init__()
        self.prize = prize


SUMMARY = "measure things"


def add_arguments(parser):
    parser.add_argument("--unit", choices=["m", "ft"], default="m")


def run(options):
    print("in", options.unit)
    return 0
'''
GROUPS = {
    "roll_envs.verifiers": {
        "ends": "full_set:Ends",
        "starts": "full_set:Starts",
        "lost": "no_such_module:X",
        "bare": "needs_more:X [more]",
    },
    "roll_envs.tools": {"shout": "full_set:Shout", "mute": "raises:Mute"},
    "roll_envs.sandboxes": {"cell": "full_set:Cell", "gone": "full_set:NOTHING"},
    "roll_envs.commands": {"measure": "full_set"},
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    modules = {"full_set": MODULE, "raises": "1 / 0", "needs_more": "import no_such_module"}
    install(tmp_path, "full-set", {"full/Game-v0": "full_set:CARD"}, modules, others=GROUPS)
    return tmp_path


def test_every_kind_of_part_comes_from_a_package_with_its_settings(package: Path) -> None:
    program = """\
import sys, roll_envs
from roll_envs.tools import make_tools
assert "full_set" not in sys.modules
ends = roll_envs.make_verifier("ends", ending="!", bonus=0.5)
assert ends("yes!").value == 1.5 and not ends("no").passed
assert roll_envs.make_verifier("ends").settings.ending == "."
starts = roll_envs.make_verifier("starts", words=["a", "b"], schema=object(), x="anything")
assert starts("b c").passed and starts.words == ["a", "b"]
both = roll_envs.make_verifier("all", parts={"one": {"name": "ends", "ending": "d"}, "two": "exact"})
assert both("end", "end").passed
(tool,) = make_tools({"tool": "shout", "marks": 3})
assert tool.call({}, deadline_s=1).text == "HEY!!!"
assert roll_envs.make_sandbox("cell", bars=5, names=("a",)).bars == 5
assert roll_envs.make("full/Game-v0", prize=2.0).prize == 2.0
from roll_envs.cli import main
assert main(["measure", "--unit", "ft"]) == 0
"""
    assert run_python(program, package) == "in ft\n"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            "make_verifier('ends', endin='!')",
            "UnknownNameError: no setting of verifier 'ends': 'endin'; did you mean 'ending'?",
        ),
        (
            "make_verifier('exact', bonus=1.0)",
            "no setting of verifier 'exact': 'bonus'; known: 'strip' ('bonus' is read by 'ends')",
        ),
        (
            "make_verifier('ends', bonus=-1.0)",
            "ConfigError: verifier 'ends': bonus should be greater than or equal to 0, not -1.0",
        ),
        ("make_verifier('ends', bonus='1')", "ConfigError: verifier 'ends': bonus should be a valid number, not '1'"),
        ("make_verifier('starts')", "ConfigError: verifier 'starts': words is required"),
        (
            "make_verifier('starts', words=['a', 3], how='some')",
            "verifier 'starts': words should be a valid string, not ['a', 3]; how should be 'any' or 'all', not 'some'",
        ),
        ("make_tools({'tool': 'shout', 'marks': True})", "tool 'shout': marks should be a valid integer, not True"),
        ("make_tools({'tool': 'shout', 'mark': 2})", "no setting of tool 'shout': 'mark'; did you mean 'marks'?"),
        ("make_sandbox('cell', bars=2.5)", "sandbox 'cell': bars should be a valid integer"),
        ("make_sandbox('cell', names='abc')", "sandbox 'cell': names should be a list, not 'abc'"),
        ("make_sandbox('cell', slots=2)", "known: 'bars', 'names' ('slots' is read by 'docker', 'local')"),
        ("make_sandbox('cel')", "no sandbox 'cel'; did you mean 'cell'"),
        ("make_verifier('lost')", "verifier 'lost' of full-set 1.0 cannot be loaded: ModuleNotFoundError"),
        (
            "make_verifier('bare')",
            "(no module 'no_such_module') needs the optional part 'more': pip install 'full-set[more]'",
        ),
        ("make_tools('mute')", "tool 'mute' of full-set 1.0 cannot be loaded: ZeroDivisionError: division by zero"),
        ("make_sandbox('gone')", "sandbox 'gone' of full-set 1.0 cannot be loaded: AttributeError"),
    ],
    ids=str,
)
def test_wrong_settings_and_broken_parts_are_told(
    package: Path, monkeypatch: pytest.MonkeyPatch, call: str, says: str
) -> None:
    import roll_envs
    from roll_envs.tools import make_tools

    monkeypatch.syspath_prepend(package)
    names = {"make_verifier": roll_envs.make_verifier, "make_sandbox": roll_envs.make_sandbox, "make_tools": make_tools}
    with pytest.raises(roll_envs.RollError) as raised:
        eval(call, names)
    assert says in f"{type(raised.value).__name__}: {raised.value}"


def test_parts_are_shown_with_their_settings(package: Path) -> None:
    everything, shout = run_commands(("parts", "--json"), ("parts", "tool", "shout"), path=package)
    assert everything[0] == 0
    found = {(part["kind"], part["name"]): part for part in json.loads(everything[1])}
    assert found["verifier", "ends"]["source"] == "full-set 1.0"
    assert found["verifier", "ends"]["settings"] == [
        {"name": "ending", "type": "str", "default": "'.'", "description": "What an answer must end with."},
        {"name": "bonus", "type": "float", "default": "0.0", "description": "Added to the value."},
    ]
    assert [s["default"] for s in found["verifier", "starts"]["settings"]] == ["(required)", "'any'", "None", "1"]
    assert found["tool", "shout"]["settings"][0]["type"] == "int"
    assert found["sandbox", "local"]["source"].startswith("roll-envs")
    assert "ModuleNotFoundError" in found["verifier", "lost"]["reason"]
    assert "ZeroDivisionError" in found["tool", "mute"]["reason"]
    assert found["verifier", "exact"]["settings"][0]["name"] == "strip"  # broken ones break no other
    assert shout == (0, "tool shout  (full-set 1.0)\n  marks  int  1\n")


def test_a_wrong_kind_or_name_is_told(package: Path) -> None:
    (kind, no_kind), (name, no_name) = run_commands(("parts", "tools"), ("parts", "tool", "shuot"), path=package)
    assert kind != 0
    assert "no kind of part 'tools'; did you mean 'tool'" in no_kind
    assert name != 0
    assert "no tool 'shuot'; did you mean 'shout'" in no_name


def test_of_two_packages_with_one_verifier_both_are_named_and_ours_stands(tmp_path: Path) -> None:
    theirs = {"ends": "full_set:Ends", "exact": "full_set:Ends"}
    install(tmp_path, "full-set", theirs, {"full_set": MODULE}, group="roll_envs.verifiers")
    install(tmp_path, "other-set", {"ends": "full_set:Ends"}, {}, group="roll_envs.verifiers")
    said = run_python("import roll_envs; roll_envs.make_verifier('ends')", tmp_path, fails=True)
    assert "declared by 2 packages (full-set 1.0, other-set 1.0); uninstall all but one" in said
    program = "import roll_envs; print(type(roll_envs.make_verifier('exact')).__name__)"
    assert run_python(program, tmp_path) == "ExactVerifier\n"


def test_a_package_that_is_installed_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import roll_envs
    from roll_envs.verifiers import verifier_names

    monkeypatch.syspath_prepend(tmp_path)
    assert "late" not in verifier_names()
    install(tmp_path, "late-set", {"late": "roll_envs.verifiers.matching:F1Verifier"}, {}, group="roll_envs.verifiers")
    assert roll_envs.make_verifier("late", threshold=0.5)("b c", "b").passed
    assert "late" in verifier_names()


def test_of_one_package_that_is_installed_twice_the_first_on_the_path_counts(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    install(new, "full-set", {"ends": "full_set:Ends"}, {"full_set": MODULE}, group="roll_envs.verifiers")
    install(old, "full-set", {"ends": "gone:Ends", "ended": "gone:Ends"}, {}, group="roll_envs.verifiers")
    program = (
        "import roll_envs; from roll_envs.verifiers import verifier_names\n"
        "print(type(roll_envs.make_verifier('ends')).__name__, 'ended' in verifier_names())"
    )
    assert run_python(program, new, old) == "Ends False\n"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan, "1"])
def test_no_part_waits_for_ever(seconds: object) -> None:
    def make(wait_s: Seconds = 1.0) -> None: ...

    assert checked_arguments("part 'x'", make, {"wait_s": 0.5}) == {"wait_s": 0.5}
    with pytest.raises(ConfigError, match=r"part 'x': wait_s should be a (finite|valid) number|greater than 0"):
        checked_arguments("part 'x'", make, {"wait_s": seconds})
