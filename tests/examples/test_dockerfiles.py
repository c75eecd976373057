"""The Dockerfiles of examples/docker name releases and optional parts as the rest of the project does."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from trainer.engines import sglang, vllm

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = {path.stem: path.read_text() for path in sorted((REPOSITORY / "examples" / "docker").glob("*.Dockerfile"))}
MIRRORS = {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST"}


def test_there_is_one_for_each_engine_of_its_own() -> None:
    assert set(FILES) == {"cpu", "vllm", "sglang"}


@pytest.mark.parametrize("name", FILES)
def test_what_is_named_is_there(name: str) -> None:
    text = FILES[name]
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert set(extras.split(",")) <= set(setup["options.extras_require"])
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert {"constraints.txt", "trainer", "configs"} <= set(copied)
    assert [word for word in copied if not (REPOSITORY / word).exists()] == []
    stage = text[: text.rindex("pip install")].rpartition("\nFROM ")[2]
    assert set(re.findall(r"^ARG (\w+)", stage, re.MULTILINE)) >= MIRRORS
    assert "-c constraints.txt" in text
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["${UID}"]


def test_engines_are_the_tested_releases_in_environments_of_their_own() -> None:
    for name, tested in (("vllm", vllm.GPU_BUILD), ("sglang", sglang.TESTED)):
        pinned = f"/roll/.venv-{name}/bin/pip install {name}=={tested[name]}\n"
        assert pinned in FILES[name]
        assert f"{name},openai" in FILES[name]


def test_megatron_is_the_release_of_the_makefile() -> None:
    (release,) = re.findall(r"megatron-core==([\d.]+)", (REPOSITORY / "Makefile").read_text())
    for name in ("vllm", "sglang"):
        assert f"pip install --no-deps megatron-core=={release}\n" in FILES[name]
