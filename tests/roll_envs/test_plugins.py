"""Packages of others: found without an import, isolated when broken, and folders of the same name explained."""

from __future__ import annotations

import json
from pathlib import Path

from plugins import CARD, install, run_python

LIST = "from roll_envs.cli import main; main(['list', '--json'])"


def _listed(*path: Path) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for entry in json.loads(run_python(LIST, *path)):
        found.setdefault(entry["id"], []).append(entry)
    return found


def test_a_package_is_found_but_not_imported_until_it_is_made(tmp_path: Path) -> None:
    install(tmp_path, "good-game", {"good/Game-v0": "good_game:CARD"}, {"good_game": CARD.format(id="good/Game-v0")})
    program = (
        "import sys, gymnasium, roll_envs\n"
        "assert 'good/Game-v0' in gymnasium.registry and 'good_game' not in sys.modules\n"
        "gymnasium.make('good/Game-v0').reset(seed=1)\n"
        "assert 'good_game' in sys.modules and 'roll_envs.providers.words' not in sys.modules\n"
        "print(*(e.source for e in roll_envs.environments() if e.id == 'good/Game-v0'))"
    )
    assert run_python(program, tmp_path).strip() == "good-game 1.0"


def test_broken_packages_are_isolated_and_reported(tmp_path: Path) -> None:
    broken = {
        "bad/Missing-v0": ("no_such_module:CARD", "No module named 'no_such_module'"),
        "bad/Raises-v0": ("raises:CARD", "ZeroDivisionError"),
        "bad/Exits-v0": ("exits:CARD", "SystemExit"),
        "bad/NoCard-v0": ("no_card:CARD", "is a int, not an EnvironmentCard"),
        "bad/OtherId-v0": ("other_id:CARD", "has the id 'bad/Another-v0'"),
        "bad/NoAttribute-v0": ("no_card:NOTHING", "has no attribute 'NOTHING'"),
        "unversioned": ("no_card:CARD", "the name 'unversioned' does not fit; allowed: "),
    }
    modules = {
        "raises": "1 / 0",
        "exits": "raise SystemExit(3)",
        "no_card": "CARD = 3",
        "other_id": CARD.format(id="bad/Another-v0"),
        "good_game": CARD.format(id="good/Game-v0"),
    }
    targets = {name: target for name, (target, _) in broken.items()}
    install(tmp_path, "bad-game", {**targets, "good/Game-v0": "good_game:CARD"}, modules)
    listed = _listed(tmp_path)
    for name, (_, reason) in broken.items():
        (entry,) = listed[name]
        assert entry["state"] == "broken"
        assert entry["source"] == "bad-game 1.0"
        assert reason in entry["reason"]
    assert listed["good/Game-v0"][0]["state"] == "ready"
    assert listed["roll/SimpleSokoban-v0"][0]["state"] == "ready"
    for make in ("roll_envs.make", "gymnasium.make"):
        said = run_python(f"import gymnasium, roll_envs\n{make}('bad/Raises-v0')", tmp_path, fails=True)
        assert "PluginError: environment 'bad/Raises-v0' of bad-game 1.0 cannot be loaded: ZeroDivisionError: d" in said
        assert "division by zero (raises.py, line 1)" in said


def test_check_all_reports_a_broken_package_and_checks_the_others(tmp_path: Path) -> None:
    exits = CARD.format(id="bad/Exits-v0").replace("roll_envs.testing.fakes:CounterEnv", "exits:make")
    modules = {
        "raises": "1 / 0",
        "good_game": CARD.format(id="good/Game-v0"),
        "exits": f"{exits}def make(**kwargs): raise SystemExit(3)",
    }
    points = {
        "bad/Raises-v0": "raises:CARD", "bad/Exits-v0": "exits:CARD", "bad/Point-v0": "not a module::CARD",
        "good/Game-v0": "good_game:CARD",
    }  # fmt: skip
    install(tmp_path, "bad-game", points, modules)
    arguments = ["check", "--all", "--rules", "floor", "--seeds", "1", "--json"]
    program = f"""
import sys
from roll_envs import env_registry
from roll_envs.cli import main
all_of_them = env_registry.environments
few = lambda **how: [e for e in all_of_them(**how) if e.id in {[*points, "roll/SimpleSokoban-v0"]}]
env_registry.environments = few  # each other one takes a process
sys.exit(main({arguments}))
"""
    said = run_python(program, tmp_path, fails=True)
    reports = {report["id"]: report for report in json.loads(said)}
    bad = {name: report["results"][0]["detail"] for name, report in reports.items() if not report["ok"]}
    assert set(bad) == set(points) - {"good/Game-v0"}
    assert "ZeroDivisionError" in bad["bad/Raises-v0"]
    assert "cannot be made: SystemExit: 3" in bad["bad/Exits-v0"]
    assert "its entry point 'not a module::CARD' is not of the form module:NAME" in bad["bad/Point-v0"]
    assert {"good/Game-v0", "roll/SimpleSokoban-v0"} <= set(reports)
    said = run_python(
        "import sys; from roll_envs.cli import main; sys.exit(main(['check', 'bad/Raises-v0']))", tmp_path, fails=True
    )
    assert "roll-envs: error: environment 'bad/Raises-v0' of bad-game 1.0 cannot be loaded" in said


def test_a_missing_import_of_an_editable_package_is_not_blamed_on_a_folder(tmp_path: Path) -> None:
    """setuptools finds such packages by a finder of its own, where they are not on ``sys.path``."""
    install(tmp_path / "site", "far-game", {"far/Game-v0": "far_game:CARD"}, {})
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "far_game.py").write_text("import no_such_library")
    finder = f"""
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "far_game":
            return importlib.util.spec_from_file_location(name, {str(tmp_path / "src" / "far_game.py")!r})
sys.meta_path.append(Finder)
import roll_envs
roll_envs.make("far/Game-v0")
"""
    said = run_python(finder, tmp_path / "site", fails=True)
    assert "No module named 'no_such_library'" in said
    assert "hides" not in said


def test_two_packages_with_one_id_are_both_named(tmp_path: Path) -> None:
    modules = {"one": CARD.format(id="dup/Game-v0"), "two": CARD.format(id="dup/Game-v0")}
    install(tmp_path, "one-game", {"dup/Game-v0": "one:CARD"}, modules)
    install(tmp_path, "two-game", {"dup/Game-v0": "two:CARD"}, {})
    entries = _listed(tmp_path)["dup/Game-v0"]
    assert [e["state"] for e in entries] == ["broken", "broken"]
    assert "one-game 1.0, two-game 1.0" in " ".join(e["reason"] for e in entries)
    assert "uninstall" in run_python("import roll_envs; roll_envs.make('dup/Game-v0')", tmp_path, fails=True)


def test_nobody_takes_our_namespace(tmp_path: Path) -> None:
    new = "roll/Stranger-v1"
    install(tmp_path, "a-stranger", {new: "stranger:CARD"}, {"stranger": CARD.format(id=new)})
    (entry,) = _listed(tmp_path)[new]
    assert (entry["state"], entry["reason"]) == (
        "broken", "the namespace 'roll' is that of roll-envs; the package needs one of its own"
    )  # fmt: skip


def test_nobody_takes_an_id_of_ours(tmp_path: Path) -> None:
    ours = "roll/SimpleSokoban-v0"
    install(tmp_path, "a-thief", {ours: "thief:CARD"}, {"thief": CARD.format(id=ours)})
    states = {e["source"].split()[0]: e["state"] for e in _listed(tmp_path)[ours]}
    assert states == {"roll-envs": "ready", "a-thief": "broken"}
    program = f"import roll_envs; print(type(roll_envs.make({ours!r})).__name__)"
    assert run_python(program, tmp_path).strip() == "SokobanEnv"


def test_a_package_with_unreadable_metadata_breaks_nothing(tmp_path: Path) -> None:
    install(tmp_path, "half-game", {"half/Game-v0": "half:CARD"}, {})
    (tmp_path / "half_game-1.0.dist-info" / "entry_points.txt").write_bytes(b"[roll_envs]\n\xff\xfe no equals sign\n")
    listed = _listed(tmp_path)
    assert listed["roll/SimpleSokoban-v0"][0]["state"] == "ready"
    (entry,) = [e for es in listed.values() for e in es if "half_game" in e["id"]]
    assert "cannot be read" in entry["reason"]
    program = "import roll_envs; roll_envs.make('roll/FrozenLake-v0'); roll_envs.make_verifier('f1', threshold=0.5)"
    assert run_python(program, tmp_path) == ""  # pydantic reads all metadata too, and would raise


def test_a_users_own_envs_folder_is_named_with_the_one_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").write_text("")
    wanted = Path(__file__).resolve().parents[2] / "envs"
    for program in (
        "import roll_envs; roll_envs.make('roll/SimpleSokoban-v0')",
        "import gymnasium; gymnasium.make('roll_envs:roll/SimpleSokoban-v0')",
        "import sys; from roll_envs.cli import main; sys.exit(main(['show', 'roll/SimpleSokoban-v0']))",
    ):
        said = run_python(program, cwd=tmp_path, fails=True)
        assert f"found 'envs' at {tmp_path / 'envs'}" in said
        assert f"meant, at {wanted}" in said
        assert "rename" in said


def test_a_users_own_envs_file_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "envs.py").write_text("")
    said = run_python("import roll_envs; roll_envs.make('roll/FrozenLake-v0')", tmp_path, fails=True)
    assert f"found 'envs' at {tmp_path / 'envs.py'}" in said


def test_a_users_trainer_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("")
    program = "import sys; from roll_envs.launch import roll_train; sys.exit(roll_train())"
    said = run_python(program, tmp_path, fails=True)
    assert said.startswith(f"roll-train: error: Python found 'trainer' at {tmp_path / 'trainer'}")
    assert str(Path(__file__).resolve().parents[2] / "trainer") in said
    assert said.count("\n") == 1
