"""Entry points of other packages are found by name, and broken ones are told to those who ask for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_builders import install

from roll_envs.errors import ConfigError, PluginError, UnknownNameError
from roll_envs.registry import Registry

GROUP = "roll_envs.test_parts"


def parts() -> Registry[object]:
    return Registry("part", GROUP, lambda name, found: found)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, first on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_plugin_is_loaded_by_name(site: Path) -> None:
    install(site, "part_good", "VALUE = 41 + 1\n", "answer = part_good:VALUE", group=GROUP)
    assert parts().names() == ("answer",)
    assert parts().find("answer") == 42
    with pytest.raises(UnknownNameError, match="question"):
        parts().find("question")
    with pytest.raises(UnknownNameError, match="answer"):
        Registry("part", "roll_envs.other_parts", lambda name, found: found).find("answer")


@pytest.mark.parametrize(
    ("module", "code", "reason"),
    [
        (
            "part_lost",
            "import there_is_no_such_module\n",
            "ModuleNotFoundError: No module named 'there_is_no_such_module'",
        ),
        ("part_empty", "VALUES = 1\n", "AttributeError"),
        ("part_falls", "1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_broken_plugin_is_named_with_the_reason_and_harms_no_other(
    site: Path, module: str, code: str, reason: str
) -> None:
    install(site, module, code, f"broken = {module}:VALUE", group=GROUP)
    install(site, "part_sound", "VALUE = 1\n", "sound = part_sound:VALUE", group=GROUP)
    assert parts().names() == ("broken", "sound")
    assert parts().find("sound") == 1
    with pytest.raises(
        PluginError, match=rf"part 'broken' of {module.replace('_', '-')} 1.0 cannot be loaded: {reason}"
    ) as raised:
        parts().find("broken")
    assert "hides" not in str(raised.value)  # the module stands where its package is installed


def test_errors_meant_for_users_pass_unchanged(site: Path) -> None:
    code = "from roll_envs.errors import ConfigError\nraise ConfigError('set COLOUR first')\n"
    install(site, "part_asks", code, "asks = part_asks:VALUE", group=GROUP)
    with pytest.raises(ConfigError, match="set COLOUR first"):
        parts().find("asks")


def test_one_name_of_two_packages_is_refused(site: Path) -> None:
    install(site, "part_one", "VALUE = 1\n", "same = part_one:VALUE", group=GROUP)
    install(site, "part_two", "VALUE = 2\n", "same = part_two:VALUE", group=GROUP)
    with pytest.raises(PluginError, match=r"declared by 2 packages \(part-one 1.0, part-two 1.0\); uninstall"):
        parts().find("same")
