"""The stream of episodes: loss-free, compact, readable after any cut, whole on a full disk."""

from __future__ import annotations

import gzip
import itertools
import json
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disks import full_after
from episode_builders import TASK, group, trajectory, turn
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_envs.errors import RollError
from roll_envs.types import Completion, Group, Outcome, Trajectory, Turn, VersionSpan
from trainer.rollout.records import episode_record
from trainer.rollout.stream import RecordReader, RecordWriter, StepRecord

# -- what comes back ---------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec=None), max_size=6)
FLOATS = st.floats(allow_nan=False) | st.floats(allow_nan=False, width=32)
INFO = st.dictionaries(
    TEXTS,
    st.recursive(st.none() | st.booleans() | st.integers() | FLOATS | TEXTS, lambda x: st.lists(x, max_size=2)),
    max_size=3,
)
IDS = st.lists(st.integers(0, 200_000), max_size=4)


@st.composite
def turns(draw: st.DrawFn, before: Turn | None) -> Turn:
    """One that sometimes goes on from the turn before, sometimes from a part of it."""
    spans = tuple(VersionSpan(*span) for span in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2)))))
    count = sum(tokens for _, tokens in spans)
    completion = Completion(
        ids=tuple(draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))),
        logprobs=tuple(draw(st.lists(FLOATS, min_size=count, max_size=count))),
        finish=draw(st.sampled_from(["stop", "length", "abort"])),
        weight_version=min((version for version, _ in spans), default=draw(st.integers(0, 9))),
        spans=spans,
    )
    known = () if before is None else (*before.prompt_ids, *before.completion.ids)
    observation = "" if before is None else before.observation
    return Turn(
        prompt_ids=(*known[: draw(st.integers(0, len(known)))], *draw(IDS)),
        completion=completion,
        prompt_observation=draw(st.just(observation) | TEXTS),
        text=draw(TEXTS),
        observation=draw(TEXTS),
        reward=draw(FLOATS),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
        info=draw(INFO),
        timings={"generate_s": draw(FLOATS)},
    )


@st.composite
def episodes(draw: st.DrawFn, member: int = 0, *, attempt: bool = False) -> Trajectory:
    played: list[Turn] = []
    for _ in range(draw(st.integers(0, 3))):
        played.append(draw(turns(played[-1] if played else None)))
    kind = draw(st.sampled_from(["completed", "truncated", "failed", "cancelled"]))
    task = replace(TASK, kwargs=draw(INFO)) if draw(st.integers(0, 4)) == 0 else TASK
    return Trajectory(
        task=task,
        member=member,
        turns=tuple(played),
        outcome=Outcome(kind=kind, reason=draw(TEXTS), traceback=draw(TEXTS), answer=draw(st.none() | TEXTS)),
        attempts=draw(st.integers(1, 3)),
        failed_attempts=() if attempt else tuple(draw(st.lists(episodes(member, attempt=True), max_size=1))),
    )


@st.composite
def records(draw: st.DrawFn) -> StepRecord:
    groups, kept = [], []
    for index in range(draw(st.integers(0, 3))):
        task = replace(TASK, index=index)
        played = tuple(draw(episodes(member=m)) for m in range(draw(st.integers(0, 3))))
        groups.append(Group(task=task, trajectories=played))
        if draw(st.booleans()):
            kept.append(Group(task=task, trajectories=played[: draw(st.integers(0, 3))]))
    return StepRecord(
        phase=draw(st.sampled_from(["train", "evaluation"])),
        step=draw(st.integers(0, 9)),
        version=draw(st.integers(0, 99)),
        groups=tuple(groups),
        kept=tuple(kept),
        greedy=tuple(draw(st.lists(episodes(), max_size=2))),
        # Of a task that may have been played in the same step.
        cancelled=tuple(Group(task=TASK, trajectories=(e,)) for e in draw(st.lists(episodes(), max_size=2))),
    )


@settings(max_examples=20)  # each is hundreds of draws
@given(st.lists(records(), min_size=1, max_size=3))
def test_what_was_written_is_read(written: list[StepRecord]) -> None:
    path = fresh()
    writer = RecordWriter(path)
    members = [writer.write(record) for record in written]
    reader = RecordReader(path)
    assert (list(reader.members), reader.cut) == (members, 0)
    assert [reader.read(member) for member in reader.members] == written
    assert [member.episodes for member in members] == [len(record.episodes) for record in written]


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FOLDER, COUNT
    FOLDER, COUNT = tmp_path_factory.mktemp("streams"), 0


FOLDER, COUNT = Path(), 0


def fresh() -> Path:
    """A path for each example of a property."""
    global COUNT
    COUNT += 1
    return FOLDER / f"{COUNT}.jsonl.gz"


def record(step: int, *, phase: str = "train", text: str = "P_G") -> StepRecord:
    played = group(trajectory(turn(anchor=text, reward=0.1 * step)), trajectory(turn(sampled=(3, 4)), member=1))
    return StepRecord(phase=phase, step=step, version=step, groups=(played,), kept=(played,))


def steps(path: Path) -> list[tuple[str, int]]:
    reader = RecordReader(path)
    return [(found.phase, found.step) for found in map(reader.read, reader.members)]


def test_values_without_a_form_in_json_become_the_nearest() -> None:
    path, info = fresh(), {"seen": np.array([1, 2]), "n": np.float32(0.5), 3: {"x": {4}}}
    played = group(trajectory(turn(info=info), turn(info={(1, 2): 3})))  # type: ignore[dict-item]
    RecordWriter(path).write(StepRecord(phase="train", step=1, version=0, groups=(played,)))
    one, other = RecordReader(path).find("train").groups[0].trajectories[0].turns
    assert one.info == {"seen": [1, 2], "n": 0.5, "3": {"x": [4]}}
    assert other.info == {"(1, 2)": 3}


def test_values_that_loop_never_end_or_break_are_texts() -> None:
    class Broken:
        def tolist(self) -> Any:
            raise RuntimeError("no list")

    loop: dict[str, Any] = {}
    loop["deep"] = loop["again"] = loop
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    infos: list[Any] = [loop, {"deep": deep}, {"n": 10**5000}, {"n": itertools.count()}, {"n": Broken()}]
    path, played = fresh(), group(trajectory(*(turn(info=info) for info in infos)))
    RecordWriter(path).write(StepRecord(phase="train", step=1, version=0, groups=(played,)))
    turns = RecordReader(path).find("train").groups[0].trajectories[0].turns
    assert [t.info["n"] for t in turns[2:]] == [hex(10**5000), "<count>", "<Broken>"]
    assert json.dumps(episode_record(played.trajectories[0]))


def test_zcat_reads_it() -> None:
    path = fresh()
    writer = RecordWriter(path)
    for step in (1, 2):
        writer.write(record(step))
    lines = [json.loads(line) for line in subprocess.run(["zcat", path], capture_output=True).stdout.splitlines()]
    assert [(line["format"], line["step"], line["episodes"]) for line in lines if "format" in line] == [
        (1, 1, 2), (1, 2, 2),
    ]  # fmt: skip
    assert lines[1]["episodes"][0]["turns"][0]["shown"] == "P_G"


def test_a_conversation_takes_the_room_of_what_is_new_in_it() -> None:
    """Prompts that grow: what a turn takes doesn't grow with them, and members of a group share their beginning."""
    rng = np.random.default_rng(0)
    ids = [int(i) for i in rng.integers(0, 100_000, 8000)]
    logprobs = [float(np.float32(x)) for x in -rng.random(20)]

    def conversation(turn_count: int, member: int) -> Trajectory:
        played, prompt = [], ids[:2000]
        for number in range(turn_count):
            sampled = ids[2000 + 97 * number : 2020 + 97 * number]
            played.append(turn(prompt, sampled, logprobs=logprobs, anchor=f"{number} " + "board " * 50))
            prompt = [*prompt, *sampled, *ids[5000 + number : 5030 + number]]
        played = [replace(t, observation=n.prompt_observation) for t, n in pairwise(played)]
        return trajectory(*played, member=member)

    def size(turn_count: int, members: int) -> int:
        path, played = fresh(), group(*(conversation(turn_count, m) for m in range(members)))
        one = StepRecord(phase="train", step=1, version=0, groups=(played,))
        length = RecordWriter(path).write(one).length
        assert RecordReader(path).find("train") == one
        first, *others = json.loads(gzip.decompress(path.read_bytes()).splitlines()[1])["episodes"]
        assert {len(t["prompt"]) for t in first["turns"][1:]} == {30}, "neither the prompt nor the answer before it"
        assert all(episode["turns"][0]["prompt"] == [] for episode in others)
        return length

    short, long, many = size(10, 1), size(30, 1), size(10, 5)
    assert long - short < 20 * 500, "20 more turns of 50 new tokens"
    assert many - short < 4 * 10 * 500, "4 more episodes without their common prompt of 2,000 ids"
    plain = len(gzip.compress(json.dumps(episode_record(conversation(30, 0))).encode(), 3))
    assert long < plain / 3


# -- cuts and damage ---------------------------------------------------------------------------------------------------


@given(st.data())
def test_a_cut_anywhere_costs_what_is_behind_it(data: st.DataObject) -> None:
    path = fresh()
    writer = RecordWriter(path)
    members = [writer.write(record(step)) for step in (1, 2, 3)]
    at = data.draw(st.integers(0, members[-1].end))
    whole = [m for m in members if m.end <= at]
    with path.open("ab") as file:
        file.truncate(at)
    index = path.with_name(path.name + ".index")
    what = data.draw(st.sampled_from(["whole", "missing", "cut"]))
    if what == "missing":
        index.unlink()
    elif what == "cut":
        index.write_bytes(index.read_bytes()[: data.draw(st.integers(0, index.stat().st_size))])
    reader = RecordReader(path)
    assert list(reader.members) == whole
    assert reader.cut == at - (whole[-1].end if whole else 0)
    again = RecordWriter(path)
    assert again.cut == reader.cut
    again.write(record(9))
    assert steps(path) == [*(("train", m.step) for m in whole), ("train", 9)]
    assert RecordReader(path).cut == 0
    assert len(index.read_text().splitlines()) == len(whole) + 1


def test_an_index_of_another_file_is_not_believed() -> None:
    path, other = fresh(), fresh()
    for file, text in ((path, "P_G"), (other, "other")):
        writer = RecordWriter(file)
        for step in (1, 2):
            writer.write(record(step, text=text))
    index = path.with_name(path.name + ".index")
    index.write_bytes(other.with_name(other.name + ".index").read_bytes())
    assert RecordReader(path).find("train", 2) == record(2)
    index.write_text("no JSON\n")
    assert steps(path) == [("train", 1), ("train", 2)]
    index.write_text('{"phase": "train", "step": 1, "episodes": 2, "offset": 0, "length": 3, "crc": 0}\n')
    assert steps(path) == [("train", 1), ("train", 2)]


def test_a_damaged_record_is_named_and_the_others_are_read() -> None:
    path = fresh()
    writer = RecordWriter(path)
    members = [writer.write(record(step)) for step in (1, 2, 3)]
    content = bytearray(path.read_bytes())
    content[members[1].offset + 40] ^= 0xFF
    path.write_bytes(content)
    reader = RecordReader(path)
    with pytest.raises(RollError, match=rf"{path.name}: the record of train step 2 .* cannot be read .*others can"):
        reader.find("train", 2)
    assert reader.find("train", 3) == record(3)


def test_a_record_of_another_format_is_refused() -> None:
    path = fresh()
    header = {"format": 2, "phase": "train", "step": 1, "episodes": 0}
    path.write_bytes(gzip.compress(json.dumps(header).encode() + b"\n"))
    with pytest.raises(RollError, match="has format 2; this release reads 1"):
        RecordReader(path).find("train", 1)


def test_what_is_not_there_is_said() -> None:
    path = fresh()
    with pytest.raises(RollError, match=r"no record of train .*none: the key `records`"):
        RecordReader(path).find("train")
    RecordWriter(path).write(record(2))
    with pytest.raises(RollError, match=r"no record of train step 7 .*there are steps 2$"):
        RecordReader(path).find("train", 7)


# -- rewinding and full disks ------------------------------------------------------------------------------------------


def test_a_rewind_cuts_what_came_after() -> None:
    path = fresh()
    writer = RecordWriter(path)
    writer.write(record(0, phase="evaluation"))
    for step in (1, 2):
        writer.write(record(step))
    writer.write(record(2, phase="evaluation"))
    writer.write(record(3))
    size = path.stat().st_size
    RecordWriter(path).rewind({"train": 3, "evaluation": 2})
    assert path.stat().st_size == size
    again = RecordWriter(path)
    again.rewind({"train": 2, "evaluation": 0})
    assert steps(path) == [("evaluation", 0), ("train", 1), ("train", 2)]
    again.write(record(3, text="another"))
    assert RecordReader(path).find("train") == record(3, text="another")
    index = path.with_name(f"{path.name}.index").read_text().splitlines()
    assert [tuple(json.loads(line).values()) for line in index] == list(map(tuple, again.members))
    again.rewind({"train": 0, "evaluation": -1})
    assert (steps(path), path.stat().st_size) == ([], 0)


def test_nothing_is_made_where_nothing_was_written() -> None:
    path = fresh()
    RecordWriter(path).rewind({"train": 0})
    assert RecordReader(path).members == ()
    assert not path.exists()


@pytest.mark.parametrize("room", [0, 1, 100, 150])
def test_a_full_disk_leaves_the_records_before(room: int) -> None:
    path, big = fresh(), "".join(map(chr, range(40, 2000)))
    writer = RecordWriter(path)
    size = writer.write(record(1)).end
    with full_after(size + room), pytest.raises(OSError, match="large"):
        writer.write(record(2, text=big))
    assert path.stat().st_size == size
    writer.write(record(2))
    assert steps(path) == [("train", 1), ("train", 2)]


def test_an_index_without_room_is_done_without() -> None:
    path: Path = fresh()
    writer, index = RecordWriter(path), path.with_name(path.name + ".index")
    index.mkdir()
    for step in (1, 2):
        writer.write(record(step))
    index.rmdir()
    writer.write(record(3))
    assert steps(path) == [("train", 1), ("train", 2), ("train", 3)]
    assert len(index.read_text().splitlines()) == 3  # with what there was no room for


def test_a_file_that_another_process_cut_is_not_filled_up() -> None:
    path = fresh()
    writer: Any = RecordWriter(path)
    for step in (1, 2):
        writer.write(record(step))
    path.write_bytes(b"")
    with pytest.raises(OSError, match="another process"):
        writer.write(record(3))
