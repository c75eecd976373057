"""Rooms: solvable, from the seed alone, the same with and without the compiled search; the solver is exact."""

from __future__ import annotations

import hashlib
import threading
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.sokoban import generator, search
from envs.sokoban.generator import Room, draw_room, generate_room
from envs.sokoban.search import FLOOR, TARGET, WALL
from envs.sokoban.solver import SolverLimitError, solve
from roll_envs.errors import ConfigError

CASES = [((6, 6), 1, 300, 300), ((8, 8), 2, 10, 120), ((10, 10), 4, 30, 25), ((5, 9), 1, 3, 60), ((4, 6), 1, 20, 60)]


@pytest.mark.parametrize(("size", "num_boxes", "depth", "count"), CASES)
def test_every_room_can_be_solved(size: tuple[int, int], num_boxes: int, depth: int, count: int) -> None:
    for seed in range(count):
        room = generate_room(size, num_boxes, depth, seed)
        assert len(room.boxes) == num_boxes == room.structure.count(TARGET)
        assert room.player not in room.boxes
        assert all(room.structure[cell] == FLOOR for cell in room.boxes), "no box starts on a target"
        assert solve(room.structure, room.width, room.player, room.boxes)


COMPILED = pytest.mark.skipif(not generator.COMPILED, reason="rooms are not compiled (no C compiler)")


@COMPILED
@pytest.mark.parametrize(("size", "num_boxes", "depth", "count"), [*CASES, ((10, 10), 4, 300, 1)])
def test_pure_python_gives_the_same_rooms(
    size: tuple[int, int], num_boxes: int, depth: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = [*range(min(count, 60)), *(2**bits + 5 for bits in (31, 32, 33, 63, 64, 96, 200))]
    compiled = [draw_room(size, num_boxes, depth, seed) for seed in seeds]
    monkeypatch.setattr(generator, "_compiled_draw_room", None)
    assert [draw_room(size, num_boxes, depth, seed) for seed in seeds] == compiled
    assert any(compiled)


@COMPILED
@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(4, 14),
    width=st.integers(5, 14),
    num_boxes=st.integers(1, 6),
    depth=st.integers(-1, 40),
    max_states=st.integers(0, 5000),
    seed=st.integers(0, 2**70),
)
def test_pure_python_agrees_at_every_limit(
    height: int, width: int, num_boxes: int, depth: int, max_states: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MAX_STATES", max_states)
        compiled = draw_room((height, width), num_boxes, depth, seed)
        patch.setattr(generator, "_compiled_draw_room", None)
        assert draw_room((height, width), num_boxes, depth, seed) == compiled


@COMPILED
def test_compiled_code_refuses_what_would_leave_its_arrays() -> None:
    from envs.sokoban import _rooms

    boxes = ((6, 6, 0, 10, 100), (6, 6, 2**31 - 1, 10, 100))
    for numbers in ((3, 6, 1, 10, 100), (6, 101, 1, 10, 100), *boxes, (6, 6, 1, 10, -1)):
        with pytest.raises(ValueError, match="a side must be 4 to 100"):
            _rooms.draw_room(*numbers, bytes(4))
    for seed in (b"", bytes(3), bytes(4 * 625)):
        with pytest.raises(ValueError, match=r"a seed must be below 2\*\*19968"):
            _rooms.draw_room(6, 6, 1, 10, 100, seed)


@pytest.mark.parametrize(
    ("size", "num_boxes", "depth", "count", "digest"),
    [
        ((6, 6), 1, 300, 200, "23cc3aff393bcdd9"),
        ((8, 8), 2, 10, 200, "3326bb89365fa5a0"),
        ((10, 10), 4, 300, 3, "74caddba794cf4f7"),  # the third meets the limit of states
    ],
)
def test_rooms_never_change(size: tuple[int, int], num_boxes: int, depth: int, count: int, digest: str) -> None:
    """A seed is part of a task's identity: any change here needs a new version of the environments."""
    found = hashlib.sha256()
    for seed in range(count):
        room = generate_room(size, num_boxes, depth, seed)
        found.update(room.structure + bytes([room.player, *room.boxes]))
    assert found.hexdigest()[:16] == digest


def test_retry_depends_on_the_seed_alone() -> None:
    seeds = [s for s in range(300) if draw_room((8, 8), 2, 10, s) is None]
    assert seeds, "some seeds give no room at once"
    for seed in seeds:
        following = generator.next_seed(seed)
        assert generate_room((8, 8), 2, 10, seed) == generate_room((8, 8), 2, 10, following)
    assert generator.next_seed(1003) == 121883311


def test_threads_do_not_disturb_each_other() -> None:
    alone = [generate_room((8, 8), 2, 10, s) for s in range(60)]
    found: dict[int, list[Room]] = {}

    def work(name: int) -> None:
        found[name] = [generate_room((8, 8), 2, 10, s) for s in range(60)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(found[i] == alone for i in range(4))


def test_impossible_rooms_end_with_an_error_that_names_the_arguments() -> None:
    with pytest.raises(ConfigError, match=r"\(4, 5\) with num_boxes=5 and search_depth=20.*fewer boxes"):
        generate_room((4, 5), 5, 20, 0)


def breadth_first(room: Room) -> int:
    """Length of the shortest solution by plain search over everything."""
    targets = frozenset(i for i, c in enumerate(room.structure) if c == TARGET)
    start = (room.player, frozenset(room.boxes))
    queue, seen = deque([(start, 0)]), {start}
    while queue:
        (player, boxes), moves = queue.popleft()
        if boxes == targets:
            return moves
        for step in (-room.width, room.width, -1, 1):
            there, after = player + step, boxes
            if there in boxes:
                if there + step in boxes or room.structure[there + step] == WALL:
                    continue
                after = boxes - {there} | {there + step}
            state = (there, after)
            if room.structure[there] != WALL and state not in seen:
                seen.add(state)
                queue.append((state, moves + 1))
    return -1


@pytest.mark.parametrize(("size", "num_boxes", "count"), [((6, 6), 1, 60), ((7, 7), 2, 25), ((7, 6), 3, 12)])
def test_solutions_are_shortest(size: tuple[int, int], num_boxes: int, count: int) -> None:
    for seed in range(count):
        room = generate_room(size, num_boxes, 20, seed)
        path = solve(room.structure, room.width, room.player, room.boxes)
        assert path is not None
        assert len(path) == breadth_first(room)
        assert solve(room.structure, room.width, room.player, room.boxes, max_moves=len(path)) == path
        assert solve(room.structure, room.width, room.player, room.boxes, max_moves=len(path) - 1) is None


def test_solver_knows_dead_ends_and_its_limit() -> None:
    walls = "#####", "#X_P#", "#__O#", "#####"
    structure = bytes({"#": WALL, "O": TARGET}.get(c, FLOOR) for row in walls for c in row)
    assert solve(structure, 5, 8, [6]) is None, "a box in a corner"
    room = generate_room((10, 10), 4, 30, 1)
    with pytest.raises(SolverLimitError, match="10 states"):
        solve(room.structure, room.width, room.player, room.boxes, max_states=10)
