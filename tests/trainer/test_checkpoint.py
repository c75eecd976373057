"""Checkpoints come back exactly, are refused when anything is off, and saving never costs an earlier one."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import signal
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disks import fill, full_after, small_disk
from forked import Forked
from safetensors.torch import load_file

from roll_envs.errors import CheckpointError, RollError
from trainer.model.network import WeightSource
from trainer.run import checkpoint
from trainer.run.checkpoint import (
    CheckpointState,
    best_checkpoints,
    capture_random,
    latest_good,
    list_checkpoints,
    list_set_aside,
    load_checkpoint,
    load_newest,
    restore_random,
    save_checkpoint,
    set_aside_after,
    versions,
)


def trained() -> tuple[torch.nn.Linear, torch.optim.AdamW]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def source(tensors: dict[str, torch.Tensor]) -> WeightSource:
    return lambda: iter(tensors.items())


def state(step: int, **more: Any) -> CheckpointState:
    model, optimizer = trained()
    values: dict[str, Any] = {
        "step": step,
        "version": step + 1,
        "model": source(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "random": capture_random(),
        "cursor": 10 * step,
        "progress": {"phase": "train", "seconds": 1.5, "names": ["ä", None]},
    }
    return CheckpointState(**{**values, **more})


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def test_everything_comes_back_exactly(tmp_path: Path) -> None:
    saved = state(7)
    path = save_checkpoint(tmp_path, saved)
    assert path == tmp_path / "step-000007"
    for place in (path, tmp_path):
        loaded = load_checkpoint(place)
        assert (loaded.step, loaded.version, loaded.cursor) == (7, 8, 70)
        assert loaded.progress == saved.progress
        assert_same(dict(sorted(loaded.model())), dict(sorted(saved.model())))
        assert_same(loaded.optimizer, dict(saved.optimizer))


def test_an_optimizer_continues_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = trained()
    save_checkpoint(tmp_path, state(1, model=source(model.state_dict()), optimizer=optimizer.state_dict()))
    loaded = load_checkpoint(tmp_path)
    other = torch.nn.Linear(4, 3)
    other.load_state_dict(dict(loaded.model()))
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(dict(loaded.optimizer))
    for network, optim in ((model, optimizer), (other, again)):
        optim.zero_grad()
        network(torch.full((1, 4), 0.5)).sum().backward()
        optim.step()
    assert torch.equal(model.weight, other.weight)


def test_half_precision_and_tied_weights(tmp_path: Path) -> None:
    weight = torch.randn(3, 2, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    save_checkpoint(tmp_path, state(1, model=source({"embed": weight, "head": weight, "turned": weight.T})))
    model = dict(load_checkpoint(tmp_path).model())
    assert_same(model["embed"], weight)
    assert_same(model["head"], weight)
    assert torch.equal(model["turned"], weight.T)


def test_every_random_state_continues(tmp_path: Path) -> None:
    random.gauss(0, 1)  # leaves a second draw waiting inside the generator
    np.random.standard_normal()
    torch.randn(1)

    def draws() -> list[float]:
        return [
            random.gauss(0, 1),
            random.random(),
            float(np.random.standard_normal()),
            float(np.random.rand()),
            torch.randn(1).item(),
            torch.rand(1).item(),
        ]

    save_checkpoint(tmp_path, state(1))
    expected = draws()
    assert draws() != expected
    for _ in range(2):  # and restoring leaves what was loaded as it is
        restore_random(load_checkpoint(tmp_path).random)
        assert draws() == expected


def test_the_newest_of_so_many_steps_are_kept_and_nothing_is_overwritten(tmp_path: Path) -> None:
    """A step is saved twice where it is evaluated, as the last one is."""
    for step in (1, 2, 9, 10, 10):
        save_checkpoint(tmp_path, state(step), keep=2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-000009", "step-000010-r2"]
    save_checkpoint(tmp_path, state(9), keep=2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-000009-r2", "step-000010-r2"]
    saved = save_checkpoint(tmp_path, state(3), keep=1)
    assert saved.is_dir(), "what was just saved is kept, even when a later step is there"
    assert load_checkpoint(tmp_path).step == 10


def test_going_on_from_an_older_one_sets_newer_ones_aside(tmp_path: Path) -> None:
    paths = [save_checkpoint(tmp_path, state(step)) for step in (1, 2, 3)]
    assert [p.name for p in set_aside_after(paths[0])] == ["set-aside-step-000002", "set-aside-step-000003"]
    assert list_checkpoints(tmp_path) == [paths[0]]
    assert [p.name for p in list_set_aside(tmp_path)] == ["set-aside-step-000002", "set-aside-step-000003"]
    assert load_checkpoint(tmp_path / "set-aside-step-000003").step == 3


def test_where_all_are_damaged_the_newest_whole_one_that_was_set_aside_is_named(tmp_path: Path) -> None:
    paths = [save_checkpoint(tmp_path, state(step)) for step in (1, 2, 3)]
    _, newer = set_aside_after(paths[0])
    flip(paths[0] / "training.pt")
    with pytest.raises(CheckpointError, match=f"is whole; one that was set aside is: roll-train resume {newer}$"):
        load_newest(tmp_path)
    flip(newer / "training.pt")
    with pytest.raises(CheckpointError, match=r"resume \S*/set-aside-step-000002$"):
        load_newest(tmp_path)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """One of an older release, which has no checksum of itself."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda p: flip(p / "model.safetensors"), r"model\.safetensors is corrupt \(its SHA-256"),
        (lambda p: flip(p / "training.pt"), r"training\.pt is corrupt"),
        (lambda p: (p / "progress.json").write_text("{}"), r"progress\.json has 2 bytes where \d+ were written"),
        (lambda p: (p / "training.pt").unlink(), r"training\.pt is missing"),
        (lambda p: (p / "manifest.json").unlink(), r"manifest\.json is missing"),
        (lambda p: (p / "manifest.json").write_text('{"format"'), r"manifest\.json cannot be read \("),
        (lambda p: (p / "manifest.json").write_text("[]"), r"manifest\.json cannot be read \("),
        (lambda p: edit_manifest(p, lambda m: m["files"].pop("training.pt")), r"does not list training\.pt"),
        (
            lambda p: edit_manifest(p, lambda m: m.update(format=1)),
            r"is 1, this release reads 2 and 3; load it",
        ),
        (lambda p: edit_manifest(p, lambda m: m.update(format=4, files="x")), r"its format is 4, .* \(roll-envs \d"),
    ],
)
def test_a_damaged_checkpoint_names_file_reason_and_the_good_one_before(
    tmp_path: Path, damage: Callable[[Path], Any], reason: str
) -> None:
    good, bad = save_checkpoint(tmp_path, state(1)), save_checkpoint(tmp_path, state(2))
    damage(bad)
    for place in (tmp_path, bad):
        with pytest.raises(CheckpointError, match=reason) as caught:
            load_checkpoint(place)
        assert str(bad) in str(caught.value)
        assert str(caught.value).endswith(f"; the newest good one before it is {good}")
    assert latest_good(tmp_path) == good
    assert load_checkpoint(good).step == 1


def test_of_manifest_and_file_the_one_that_changed_is_blamed(tmp_path: Path) -> None:
    """Wherever a bit of the manifest flips, but in the name of its checksum, without which it is an older one's."""
    path = save_checkpoint(tmp_path, state(1, others={"critic": source({"head": torch.arange(4.0)})}))
    manifest = (path / "manifest.json").read_bytes()
    for place in range(0, manifest.rindex(b'"sha256"'), 3):
        (path / "manifest.json").write_bytes(manifest[:place] + bytes([manifest[place] ^ 1]) + manifest[place + 1 :])
        with pytest.raises(CheckpointError, match=r"manifest\.json (cannot be read|is corrupt)"):
            load_checkpoint(path)


def test_an_older_manifest_and_a_file_that_disagree_are_both_named(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, state(1))
    edit_manifest(path, lambda m: m["files"]["training.pt"].update(sha256="0" * 64))
    with pytest.raises(CheckpointError, match=r"training\.pt is corrupt .*; or manifest\.json is corrupt, which lists"):
        load_checkpoint(path)
    edit_manifest(save_checkpoint(tmp_path, state(2)), lambda _: None)
    assert load_checkpoint(tmp_path).step == 2


def test_without_a_good_one_the_message_says_so(tmp_path: Path) -> None:
    flip(save_checkpoint(tmp_path, state(1)) / "model.safetensors")
    assert latest_good(tmp_path) is None
    with pytest.raises(CheckpointError, match="there is no earlier good one"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    import pickle

    path = save_checkpoint(tmp_path, state(1))

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "touched",))

    data = pickle.dumps(Evil())
    (path / "training.pt").write_bytes(data)
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit_manifest(path, lambda m: m["files"].update({"training.pt": entry}))
    with pytest.raises(CheckpointError, match=r"training\.pt cannot be read"):
        load_checkpoint(path)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(("place", "reason"), [("nope", "no checkpoint or run folder"), (".", "no checkpoint in")])
def test_nothing_to_load(tmp_path: Path, place: str, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(tmp_path / place)


def test_a_checkpoint_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(7))
    with pytest.raises(CheckpointError, match=r"no checkpoint or run folder .*step-000003'; there are step-000007"):
        load_checkpoint(tmp_path / "step-000003")


def test_only_plain_values_are_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the optimiser's state has builtins\.object; tensors and plain values only"):
        save_checkpoint(tmp_path, state(1, optimizer={"x": [object()]}))
    with pytest.raises(ValueError, match="JSON"):
        save_checkpoint(tmp_path, state(1, progress={"x": float("nan")}))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_while_saving_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        good = save_checkpoint(disk, state(1), keep=1)
        fill(disk, leave=20_000)
        with pytest.raises(RollError, match=r"the disk is full .*every earlier checkpoint is still there.*Free some"):
            save_checkpoint(disk, state(2), keep=1)
        assert list_checkpoints(disk) == [good]
        assert load_checkpoint(disk).step == 1
        assert {p.name for p in disk.iterdir()} == {"filler", "step-000001"}
        (disk / "filler").unlink()
        save_checkpoint(disk, state(2), keep=1)
        assert load_checkpoint(disk).step == 2


@pytest.mark.parametrize("byte_count", [0, 100, 3000, 12_000])
def test_a_disk_that_fills_up_anywhere_loses_nothing(tmp_path: Path, byte_count: int) -> None:
    large = {"state": {0: {"exp_avg": torch.zeros(10_000)}}}
    save_checkpoint(tmp_path, state(1), keep=1)
    with full_after(byte_count), pytest.raises(RollError, match="the disk is full"):
        save_checkpoint(tmp_path, state(2, optimizer=large), keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]
    assert load_checkpoint(tmp_path).step == 1


def die_in_save(folder: Path, moment: str) -> None:
    """Save a second checkpoint; killed in the middle of the file that ``moment`` writes, or at the first rename."""

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Half:
        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, data: Any) -> None:
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            die()

        def flush(self) -> None:
            pass

    save, write_weights = torch.save, checkpoint.write_weights
    if moment == "replace":
        os.replace = die  # type: ignore[assignment]
    elif moment == "save":
        torch.save = lambda value, file: save(value, Half(file))
    else:
        checkpoint.write_weights = lambda file, source: write_weights(Half(file), source)  # type: ignore[assignment]
    save_checkpoint(folder, state(2), keep=1)


@pytest.mark.parametrize("moment", ["write_weights", "save", "replace"])
def test_killed_while_saving(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, moment: str) -> None:
    good = save_checkpoint(tmp_path, state(1), keep=1)
    assert Forked(die_in_save, tmp_path, moment, log=tmp_path_factory.mktemp("logs") / "log").wait() == -signal.SIGKILL
    leftovers = [p for p in tmp_path.iterdir() if p != good]
    assert len(leftovers) == 1, "the kill did not hit the middle of a save"
    assert list_checkpoints(tmp_path) == [good]
    assert load_checkpoint(tmp_path).step == 1
    save_checkpoint(tmp_path, state(2), keep=2)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-000001", "step-000002"]


def test_the_best_are_kept_beside_the_newest(tmp_path: Path) -> None:
    for step, found in enumerate([0.2, 0.9, None, 0.9, 0.4, 0.3, None]):
        save_checkpoint(tmp_path, state(step, success=found), keep=2, keep_best=1)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-000003", "step-000005", "step-000006"]
    assert [p.name for p in best_checkpoints(tmp_path)] == ["step-000003", "step-000005"]
    (tmp_path / "step-000003" / "progress.json").write_text("{")
    assert [p.name for p in best_checkpoints(tmp_path)] == ["step-000005"]


def test_other_networks_come_back_and_are_checked_too(tmp_path: Path) -> None:
    critic = {"head": torch.arange(4.0)}
    path = save_checkpoint(tmp_path, state(1, others={"critic": source(critic)}))
    assert_same(dict(load_checkpoint(path).others["critic"]()), critic)
    assert load_checkpoint(path).others.keys() == {"critic"}
    raw = bytearray((path / "critic.safetensors").read_bytes())
    raw[-1] ^= 1
    (path / "critic.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"critic\.safetensors is corrupt"):
        load_checkpoint(path)


def test_saving_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    """Python's own allocations during a save stay below 1.2 of one tensor, and no two merged tensors are alive."""
    alive, most = 0, 0

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal alive, most
        for number in range(8):
            tensor = torch.full((250_000,), float(number))  # 1 MB, made for the occasion as a merged layer is
            alive += 1
            most = max(most, alive)
            weakref.finalize(tensor, done)
            yield f"layer.{number}", tensor
            del tensor

    def done() -> None:
        nonlocal alive
        alive -= 1

    optimizer = {"state": {i: {"exp_avg": torch.full((250_000,), float(i))} for i in range(8)}}
    saved = state(1, model=stream, optimizer=optimizer)
    save_checkpoint(tmp_path / "first", saved)  # imports and caches
    most = 0
    tracemalloc.start()
    save_checkpoint(tmp_path / "second", saved)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.2e6
    assert most == 1
    loaded = load_checkpoint(tmp_path / "second")
    assert [float(tensor[-1]) for _, tensor in sorted(loaded.model())] == list(range(8))


def test_weights_of_several_types_are_read_by_the_library(tmp_path: Path) -> None:
    tensors = {
        "flags": torch.tensor([True, False, True]),
        "half": torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.zeros(0, 4),
        "full": torch.arange(6.0).view(2, 3).T,
        "whole": torch.tensor([[2**40, -1]]),
    }
    path = save_checkpoint(tmp_path, state(1, model=source(tensors)))
    found = load_file(path / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_versions_are_read_once_and_a_package_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.run.checkpoint._PACKAGES", ("numpy", "no-such-package"))
    assert versions() == {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "no-such-package": "not installed",
    }
    monkeypatch.setattr("importlib.metadata.version", None)
    assert versions()["numpy"] == np.__version__
