"""Building the catalogue on disk: the same bytes however the work is cut or broken off, and clear errors."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from webshop_made import build_in_segments, make_data

from envs.webshop.disk import CatalogueError, Progress, build_index, is_index, open_index
from envs.webshop.disk import segments as segments_module
from envs.webshop.disk.format import WORK
from roll_envs.errors import ConfigError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), 1500)


@pytest.fixture(scope="module")
def built(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_in_segments(data, tmp_path_factory.mktemp("built") / "index", seed=5, segment_products=400)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the same bytes, however it was built -------------------------------------------------------------------------


@pytest.mark.parametrize(("segment_products", "workers"), [(1500, 0), (97, 0), (250, 3)])
def test_bytes_do_not_depend_on_how_the_work_was_cut(
    data: Path, built: Path, tmp_path: Path, segment_products: int, workers: int
) -> None:
    again = build_in_segments(data, tmp_path / "i", seed=5, segment_products=segment_products, workers=workers)
    assert contents(again) == contents(built)


def test_postings_are_merged_a_few_at_a_time(
    data: Path, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_index(built).manifest.counts["postings"] > 10_000
    monkeypatch.setattr(segments_module, "_REPORTED_TERMS", 100)
    reports: list[Progress] = []
    again = build_in_segments(data, tmp_path / "i", seed=5, segment_products=500, workers=0, progress=reports.append)
    assert sum(report.stage == "postings" for report in reports) > 5
    assert contents(again) == contents(built)


class Stop(BaseException):
    """What a kill is stood in for with: nothing catches it."""


def test_a_build_stopped_at_any_point_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 60)
    whole = contents(build_in_segments(data, tmp_path / "whole", segment_products=20, workers=0))
    reports: list[Progress] = []
    build_in_segments(data, tmp_path / "counted", segment_products=20, workers=0, progress=reports.append)
    assert [report.stage for report in reports[-1:]] == ["done"]
    assert sum(report.stage == "segments" for report in reports) == 4  # 60 products by 20, and the start
    for stop_at in range(len(reports)):
        out = tmp_path / f"stopped{stop_at}"
        heard = 0

        def listen(_: Progress, stop_at: int = stop_at) -> None:
            nonlocal heard
            heard += 1
            if heard == stop_at + 1:
                raise Stop

        with pytest.raises(Stop):
            build_in_segments(data, out, segment_products=20, workers=0, progress=listen)
        assert not out.exists()
        with pytest.raises(CatalogueError, match="is unfinished; run `roll-envs webshop build-index`"):
            open_index(out)
        resumed: list[Progress] = []
        build_in_segments(data, out, segment_products=20, workers=0, progress=resumed.append)
        assert contents(out) == whole
        done = [report for report in reports[: stop_at + 1] if report.stage == "segments"]
        if done:  # finished segments are not made again
            assert sum(r.stage == "segments" for r in resumed) <= 5 - len(done)
        assert sorted(path.name for path in tmp_path.glob("stopped*")) == [
            *sorted(f"stopped{n}" for n in range(stop_at + 1))
        ]


KILLED_AT = (
    "import os, sys\n"
    "from envs.webshop.disk import build, build_index\n"
    "build.SEGMENT_PRODUCTS = 400\n"
    "def kill(progress):\n"
    "    if progress.stage == sys.argv[3] and (sys.argv[4] == 'early' or progress.fraction > 0.2):\n"
    "        os.kill(os.getpid(), 9)\n"
    "build_index(*sys.argv[1:3], seed=5, workers=0, progress=kill)\n"
)


@pytest.mark.parametrize(
    ("stage", "when"),
    [
        ("side files", "early"),
        ("side files", "late"),
        ("segments", "early"),
        ("segments", "late"),
        ("products", "early"),
        ("goals", "early"),
        ("postings", "early"),
        ("done", "late"),
    ],
)
def test_a_build_killed_in_any_stage_goes_on_to_the_same_bytes(
    data: Path, built: Path, tmp_path: Path, stage: str, when: str
) -> None:
    out = tmp_path / "index"
    command = [sys.executable, "-c", KILLED_AT, str(data), str(out), stage, when]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    reports: list[Progress] = []
    build_in_segments(data, out, seed=5, workers=0, segment_products=400, progress=reports.append)
    assert contents(out) == contents(built)
    # What was finished is not made again.
    done = {"side files": 0, "segments": int(when == "late")}.get(stage, 4)
    assert sum(report.stage == "segments" for report in reports) == (5 - done if done < 4 else 0)
    assert any(report.stage == "side files" for report in reports) == (stage == "side files")


def test_a_damaged_unfinished_build_is_an_error(data: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "goals":
            raise Stop

    with pytest.raises(Stop):
        build_index(data, tmp_path / "i", workers=0, progress=stop)
    whole = (tmp_path / "i.unfinished" / WORK).read_bytes()
    for damaged in (whole[: len(whole) // 2], bytes(5000) + whole[5000:], b"no database" * 999):
        (tmp_path / "i.unfinished" / WORK).write_bytes(damaged)
        with pytest.raises(CatalogueError, match=r"building .*i' failed \(.*or remove .*i.unfinished"):
            build_index(data, tmp_path / "i", workers=0)
    (tmp_path / "i.unfinished" / WORK).write_bytes(whole)
    assert len(open_index(build_index(data, tmp_path / "i", workers=0)).store) == 1500


def test_what_an_older_release_left_unfinished_is_begun_anew(data: Path, built: Path, tmp_path: Path) -> None:
    (tmp_path / "i.unfinished" / "work").mkdir(parents=True)
    (tmp_path / "i.unfinished" / "job.json").write_text('{"version": 2}')
    assert contents(build_index(data, tmp_path / "i", seed=5, workers=0)) == contents(built)
    assert not (tmp_path / "i.unfinished").exists()


def test_a_source_that_was_changed_is_noticed(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "goals":
            raise Stop

    data = make_data(tmp_path / "data", 60)
    with pytest.raises(Stop):
        build_index(data, tmp_path / "i", workers=0, progress=stop)
    path = data / "items_ins_v2.json"
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))
    with pytest.raises(CatalogueError, match=r"was begun with other input \(files: .*items_ins_v2.json"):
        build_index(data, tmp_path / "i", workers=0)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Processes that any thread of a process started."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_killed_build_leaves_no_process_and_goes_on(data: Path, built: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    code = (
        "import sys; from envs.webshop.disk import build; build.SEGMENT_PRODUCTS = 100; "
        "build.build_index(*sys.argv[1:3], seed=5)"
    )
    rng = random.Random(11)
    workers: set[int] = set()
    kills = 0
    while not out.exists():
        process = subprocess.Popen([sys.executable, "-c", code, str(data), str(out)], stderr=subprocess.PIPE)
        deadline = time.monotonic() + rng.uniform(0.1, 0.6) + 0.6 * kills
        while process.poll() is None and time.monotonic() < deadline:
            workers.update(children(process.pid))
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        _, problem = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), problem.decode()
        kills += process.returncode != 0
        assert kills < 60
    assert kills >= 1
    assert workers
    assert contents(out) == contents(built)
    deadline = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if alive(pid)]


def test_a_worker_that_dies_is_an_error_and_the_build_goes_on(data: Path, tmp_path: Path) -> None:
    def kill_workers(progress: Progress) -> None:
        if progress.stage == "segments" and progress.fraction > 0:
            for worker in multiprocessing.active_children():
                worker.kill()

    with pytest.raises(CatalogueError, match=r"terminated abruptly.* \(out of memory\?\); the same command goes on"):
        build_in_segments(data, tmp_path / "i", seed=5, segment_products=100, progress=kill_workers)
    assert len(open_index(build_in_segments(data, tmp_path / "i", seed=5, segment_products=100)).store) == 1500


def test_one_build_at_a_time(data: Path, tmp_path: Path) -> None:
    def second(_: Progress) -> None:
        build_index(data, tmp_path / "i", workers=0)

    with pytest.raises(CatalogueError, match="another process is building in"):
        build_index(data, tmp_path / "i", workers=0, progress=second)


def test_an_unfinished_build_is_not_gone_on_with_from_other_input(data: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.stage == "goals":
            raise Stop

    with pytest.raises(Stop):
        build_index(data, tmp_path / "i", workers=0, num_products=50, progress=stop)
    for change, message in (
        ({"num_products": 51}, "num_products: 50 then, 51 now"),
        ({"num_products": 50, "seed": 1}, "seed: 0 then, 1 now"),
    ):
        with pytest.raises(CatalogueError, match=message):
            build_index(data, tmp_path / "i", workers=0, **change)
    with pytest.raises(CatalogueError, match=r"i.unfinished' is unfinished; run"):
        open_index(tmp_path / "i.unfinished")
    assert is_index(tmp_path / "i.unfinished")
    assert is_index(tmp_path / "i")
    assert not is_index(tmp_path / "j")
    catalogue = open_index(build_index(data, tmp_path / "i", workers=0, num_products=50))
    assert len(catalogue.store) == 49  # one of the 50 records has a number that is too long
    assert is_index(tmp_path / "i")
    assert not is_index(data)


# --- what can be wrong with the input -----------------------------------------------------------------------------


def write(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "items_shuffle.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("workers", [0, 1])
def test_records_that_are_no_products(tmp_path: Path, workers: int) -> None:
    good = {"asin": "A1", "name": "a lamp"}
    path = write(tmp_path, json.dumps([good, {"asin": "A2", "name": 7}]))
    with pytest.raises(ConfigError, match=r"items_shuffle.json, record 1 \(A2\): 'name' must be a text, not 7"):
        build_index(path, tmp_path / "i", workers=workers)


def test_what_cannot_be_built(data: Path, built: Path, tmp_path: Path) -> None:
    for source, message in (
        (tmp_path / "nowhere", "there is no file .*nowhere' .for products."),
        (tmp_path, "no items_shuffle.* in"),
        (write(tmp_path / "empty", "[]"), "holds no product"),
        (write(tmp_path / "cut", '[{"asin": "A1"}, {"asin": "A'), "truncated in a record .*character 17, record 1"),
    ):
        with pytest.raises(CatalogueError, match=message):
            build_index(source, tmp_path / source.parent.name / "i", workers=0)
    with pytest.raises(CatalogueError, match="exists already; choose another name"):
        build_index(data, built)
    with pytest.raises(CatalogueError, match="for attributes"):
        build_index(data, tmp_path / "j", attributes=tmp_path / "none.json")
    for name in ("num_products", "workers"):
        with pytest.raises(ConfigError, match=f"{name} must be a whole number"):
            build_index(data, tmp_path / "j", **{name: -1})
    assert not (tmp_path / "j").exists()


def test_too_many_combinations_are_refused(tmp_path: Path) -> None:
    many = {name: [{"value": str(n)} for n in range(2000)] for name in "abc"}
    path = write(tmp_path, json.dumps([{"asin": "A0"}, {"asin": "A1", "customization_options": many}]))
    (tmp_path / "items_ins_v2.json").write_text(
        json.dumps({"A1": {"attributes": [], "instruction": "Find", "instruction_attributes": ["x"]}})
    )
    with pytest.raises(CatalogueError, match=r"8000000000 synthetic goals, more than .* come from product 1 "):
        build_index(path, tmp_path / "i", workers=0)
