"""Commands of other packages: found without an import, isolated when broken, and never in place of a built-in one."""

from __future__ import annotations

from pathlib import Path

from plugins import install, run_commands, run_python

from roll_envs.cli.command import COMMANDS

GOOD = '''\
"""Greets, 100% of the time."""
SUMMARY: str = "say hello" " to 100%"
def add_arguments(parser):
    parser.add_argument("--name", default="you")
def run(options):
    print("hello", options.name, options.json)
    return 3 if options.name == "three" else 0
'''
BROKEN = {
    "missing": ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "raises": ("raises", "ZeroDivisionError: division by zero (raises.py, line 2)"),
    "exits": ("exits", "SystemExit: 3"),
    "empty": ("empty", "empty: it lacks add_arguments, run"),
    "bad-arguments": ("bad_arguments", "its arguments: ArgumentError: argument --json: conflicting"),
    "no-code": ("no_code", "run returned None, not an exit code"),
    "Bad_Name": ("empty", "the name 'Bad_Name' does not fit; allowed: [a-z]"),
}
MODULES = {
    "raises": "SUMMARY = 'never run to be listed'\n1 / 0",
    "exits": "raise SystemExit(3)",
    "empty": "SUMMARY = 1 + 1",
    "bad_arguments": "SUMMARY = ''\ndef add_arguments(p): p.add_argument('--json')\ndef run(options): return 0",
    "no_code": "SUMMARY = ''\ndef add_arguments(p): pass\ndef run(options): pass",
}


def _main(*arguments: str) -> str:
    return f"import sys; from roll_envs.cli import main; sys.exit(main({list(arguments)!r}))"


def _good(folder: Path) -> None:
    install(folder, "hello-world", {"hello": "hello_world"}, {"hello_world": GOOD}, group=COMMANDS.group)


def test_a_command_of_a_package_is_run_with_its_arguments(tmp_path: Path) -> None:
    _good(tmp_path)
    assert run_python(_main("hello", "--name", "me", "--json"), tmp_path) == "hello me True\n"
    three, helped = run_commands(("hello", "--name", "three"), ("hello", "--help"), path=tmp_path)
    assert three == (3, "hello three False\n")
    status, shown = helped
    assert status == 0
    assert "Greets, 100% of the time." in shown
    assert "--name" in shown


def test_listing_imports_nothing(tmp_path: Path) -> None:
    _good(tmp_path)
    install(tmp_path, "edited-tools", {"edit": "edited.command"}, {}, group=COMMANDS.group)
    edited = tmp_path / "elsewhere" / "edited"  # as an editable installation has it: a finder knows the folder
    edited.mkdir(parents=True)
    (edited / "__init__.py").write_text("1 / 0")
    (edited / "command.py").write_text("SUMMARY = 'as edited'")
    program = (
        "import sys, importlib.util as util; from roll_envs.cli import main\n"
        "class Finder:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        place = {str(edited)!r}\n"
        "        if name == 'edited':\n"
        "            return util.spec_from_file_location(\n"
        "                name, place + '/__init__.py', submodule_search_locations=[place])\n"
        "sys.meta_path.append(Finder)\n"
        "main(['--help'])\n"
        "assert not {'hello_world', 'edited'} & {*sys.modules}\n"
        "main(['list', '--json']); assert 'hello_world' not in sys.modules"
    )
    shown = " ".join(run_python(program, tmp_path).split())
    assert "hello say hello to 100%" in shown
    assert "edit as edited" in shown


def test_broken_commands_are_one_line_each_and_break_no_other(tmp_path: Path) -> None:
    install(tmp_path, "bad-tools", {n: target for n, (target, _) in BROKEN.items()}, MODULES, group=COMMANDS.group)
    _good(tmp_path)
    others = [("--help",), ("hello",), ("list",)]
    found = run_commands(*((name,) for name in BROKEN), *others, path=tmp_path)
    for (name, (_, reason)), (status, said) in zip(BROKEN.items(), found, strict=False):
        assert status != 0
        assert said.startswith(f"roll-envs: error: command {name!r} of bad-tools 1.0 cannot be loaded: "), said
        assert reason in said
        assert said.count("\n") == 1
    helped, hello, environments = found[len(BROKEN) :]
    assert helped[0] == 0
    listed = " ".join(helped[1].split())
    for line in (
        "never run to be listed",
        "exits a command of bad-tools 1.0",
        "say hello",
        "broken: the",
    ):
        assert line in listed
    assert hello == (0, "hello you False\n")
    assert environments[0] == 0
    assert "SimpleSokoban" in environments[1]


def test_an_error_while_it_runs_names_the_package_and_the_line(tmp_path: Path) -> None:
    source = (
        "SUMMARY = ''\ndef add_arguments(p): p.add_argument('how')\ndef run(options):\n"
        "    if options.how == 'ours':\n        import roll_envs\n        raise roll_envs.ConfigError('size 0')\n"
        "    raise KeyError('oops')"
    )
    install(tmp_path, "late-tools", {"late": "late_tools"}, {"late_tools": source}, group=COMMANDS.group)
    theirs, ours = run_commands(("late", "theirs"), ("late", "ours"), path=tmp_path)
    said = "roll-envs: error: command 'late' of late-tools 1.0 failed: KeyError: 'oops' (late_tools.py, line 7)\n"
    assert theirs[0] != 0
    assert theirs[1] == said
    assert ours[0] != 0
    assert ours[1] == "roll-envs: error: size 0\n"


def test_nobody_takes_a_built_in_name(tmp_path: Path) -> None:
    install(
        tmp_path,
        "a-thief",
        {"list": "hello_world", "serve-webshop": "hello_world"},
        {"hello_world": GOOD},
        group=COMMANDS.group,
    )
    program = (
        "from roll_envs.cli import main; from roll_envs.cli.command import COMMANDS\n"
        "assert main(['list']) == 0; print(COMMANDS.source('serve-webshop'))"
    )
    *listed, source = run_python(program, tmp_path).splitlines()
    assert "SimpleSokoban" in "\n".join(listed)
    assert source.startswith("roll-envs ")


def test_of_two_packages_with_one_command_both_are_named(tmp_path: Path) -> None:
    _good(tmp_path)
    install(tmp_path, "other-world", {"hello": "hello_world"}, {}, group=COMMANDS.group)
    said = run_python(_main("hello"), tmp_path, fails=True)
    assert "declared by 2 packages (hello-world 1.0, other-world 1.0); uninstall all but one" in said


def test_a_mistyped_command_finds_those_of_packages_too(tmp_path: Path) -> None:
    _good(tmp_path)
    assert "did you mean 'hello'?" in run_python(_main("helo"), tmp_path, fails=True)


def test_a_package_with_unreadable_metadata_is_left_out(tmp_path: Path) -> None:
    install(tmp_path, "half-tool", {"half": "half"}, {}, group=COMMANDS.group)
    (tmp_path / "half_tool-1.0.dist-info" / "entry_points.txt").write_bytes(b"[roll_envs.commands]\n\xff\xfe nothing\n")
    _good(tmp_path)
    assert run_python(_main("hello"), tmp_path) == "hello you False\n"


def test_a_folder_that_hides_a_commands_module_is_named(tmp_path: Path) -> None:
    for place in ("theirs", "mine"):
        (tmp_path / place / "hello_world").mkdir(parents=True)
        (tmp_path / place / "hello_world" / "__init__.py").write_text("")
    (tmp_path / "theirs" / "hello_world" / "tool.py").write_text(GOOD)
    install(tmp_path / "theirs", "hello-world", {"hello": "hello_world.tool"}, {}, group=COMMANDS.group)
    said = run_python(_main("hello"), tmp_path / "mine", tmp_path / "theirs", fails=True)
    assert f"found 'hello_world' at {tmp_path / 'mine' / 'hello_world'}, which hides the one that is meant" in said


def test_our_own_commands_are_found() -> None:
    assert {"webshop", "serve-webshop"} <= set(COMMANDS.names()) - set(COMMANDS.built_in())
