"""Images that the Docker sandbox makes: of a folder with a Dockerfile, and with folders that programs may write to."""

from __future__ import annotations

from pathlib import Path

import pytest
from docker_place import IMAGE, open_sandbox, reason_to_skip, run_python

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Program
from sandboxes.docker.engine import Engine

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    made = tmp_path_factory.mktemp("task")
    (made / "Dockerfile").write_text(
        f"FROM {IMAGE}\nUSER root\nWORKDIR /app\nCOPY numbers.txt /app/\n"
        "RUN mkdir /app/deep && echo hidden > /app/deep/secret && chmod 600 /app/deep/secret\n"
    )
    (made / "numbers.txt").write_text("1 2 3\n")
    return made


def test_programs_write_to_the_folders_and_begin_with_their_content(folder: Path) -> None:
    source = """
        import os, pathlib
        print(open("/app/numbers.txt").read().strip(), open("/app/deep/secret").read().strip(), os.listdir("/logs"))
        pathlib.Path("/app/numbers.txt").write_text("4")
        os.mkdir("/logs/verifier")
        pathlib.Path("/logs/verifier/reward.txt").write_text("1")
        for place in ("/usr/x", "/x", "/.roll/x", "/.roll/app/x"):
            try:
                open(place, "w")
            except OSError as error:
                print(error.strerror)
    """
    with open_sandbox(image=None, build=str(folder), writable=("/app", "/logs/")) as sandbox:
        for _ in range(2):
            result = run_python(sandbox, source, fetch=("logs/verifier/reward.txt",))
            assert result.stdout.decode().splitlines() == ["1 2 3 hidden []", *["Read-only file system"] * 4]
            assert result.files == {"logs/verifier/reward.txt": b"1"}
        assert sandbox.run(Program(source="pwd; ls /app", language="bash")).stdout == b"/tmp/work\ndeep\nnumbers.txt\n"
        with sandbox.session(language="bash") as session:
            session.upload("app/numbers.txt", b"5")
            assert session.run("cat /app/numbers.txt; echo 6 > /app/more").stdout == b"5"
            assert session.download("app/more") == b"6\n"
        with sandbox.session(language="bash") as session:
            assert session.run("ls /app").stdout == b"deep\nnumbers.txt\n"


def test_isolation_is_as_without(folder: Path) -> None:
    with open_sandbox() as plain, open_sandbox(image=None, build=str(folder), writable=("/app",)) as sandbox:
        isolation = run_python(sandbox, "pass").isolation
        assert isolation == run_python(plain, "pass").isolation
        assert "read-only-root" in isolation.layers


def test_the_files_count_for_the_limit(folder: Path) -> None:
    with open_sandbox(image=None, build=str(folder), writable=("/app",)) as sandbox:
        result = run_python(sandbox, "open('/app/big', 'wb').write(bytes(100 << 20))")
        assert b"No space left" in result.stderr


def test_an_image_is_built_once_and_anew_for_another_content(folder: Path) -> None:
    def names() -> set[str]:
        with Engine().client() as client:
            return {tag for image in client.images.list() for tag in image.tags if tag.startswith("roll-envs-task")}

    open_sandbox(image=None, build=str(folder)).close()
    before = names()
    open_sandbox(image=None, build=str(folder)).close()
    assert names() == before
    (folder / "numbers.txt").write_text("7\n")
    open_sandbox(image=None, build=str(folder)).close()
    assert len(names()) == len(before) + 1
    (folder / "numbers.txt").write_text("1 2 3\n")


@pytest.mark.parametrize("place", ["app", "/", "/usr/local", "/tmp/x", "/app/../etc", ""])
def test_places_that_are_not_linked(place: str) -> None:
    with pytest.raises(ConfigError, match="is not the absolute path"):
        open_sandbox(writable=(place,))


def test_what_cannot_be_built(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no Dockerfile"):
        open_sandbox(image=None, build=str(tmp_path))
    with pytest.raises(ConfigError, match="give image or build"):
        open_sandbox(build=str(tmp_path))
    with pytest.raises(ConfigError, match=r"'/app/x' lies in '/app'"):
        open_sandbox(writable=("/app/x", "/app"))
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nUSER root\nRUN echo before && exit 3\n")
    with pytest.raises(ConfigError, match=r"(?s)cannot be built without a network.*before"):
        open_sandbox(image=None, build=str(tmp_path))
    (tmp_path / "Dockerfile").write_text("FROM roll-envs-no-such-image\n")
    with pytest.raises(ConfigError, match="roll-envs-no-such-image"):
        open_sandbox(image=None, build=str(tmp_path))
