"""Fixtures for the tests of the trainer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fake_vllm import FakeVLLM

    from trainer.engines.remote import RemoteEngine
    from trainer.model.network import LanguageModel


def pytest_collection_finish() -> None:
    if forked := sys.modules.get("forked"):  # some test that was collected uses it
        forked.start_server()


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end with a stand-in for their learning curve: to draw one takes a third of the time of a tiny run."""

    def plot(folder: Path) -> None:
        (folder / "learning_curve.png").write_bytes(b"\x89PNG, but for a picture")

    monkeypatch.setattr("trainer.run.loop.plot_run", plot)


@pytest.fixture
def head_given_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the head of a Ray cluster looked at often; given up at once, unless Ray is told to wait for it for long."""
    from trainer.cluster import ray_cluster

    def set_up(address: str, reconnect_s: int = 30) -> None:
        monkeypatch.setattr(ray_cluster, "_LOOK_S", 0.01)
        monkeypatch.setattr(ray_cluster, "_LEAST_S", 0.05)
        monkeypatch.setattr(ray_cluster, "_head_address", lambda: address)
        monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", str(reconnect_s))

    return set_up


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    """A run chooses torch's threads by the size of its model; the next test has those of before."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    yield
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)


# -- a vLLM engine over a fake server; nothing of it is loaded where no test asks for it -------------------------------


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    """A model that answers as the fake server does."""
    from vllm_engines import blank_model

    return blank_model()


@pytest.fixture
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake servers are forked from a process that has loaded PyTorch: a program takes seconds to. One test of each kind
    of server starts it as a program."""
    from forked import popen

    known = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    monkeypatch.setattr("trainer.engines.server.subprocess", known)


@pytest.fixture(scope="module")
def forked_ranks() -> Iterator[None]:
    """Ranks of learners in this process are forked likewise; those of runs in processes of their own are programs."""
    from forked import RankProcess

    known = SimpleNamespace(**{**vars(subprocess), "Popen": RankProcess})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.cluster.crew.subprocess", known)
        yield


@pytest.fixture
def fake() -> Iterator[tuple[str, FakeVLLM]]:
    """The address of a fake server, and the server."""
    from fake_vllm import running_fake

    with running_fake() as found:
        yield found


@pytest.fixture
def engine(model: LanguageModel, fake: tuple[str, FakeVLLM]) -> Iterator[RemoteEngine]:
    """An engine over that server."""
    from vllm_engines import connect

    made = connect(model, fake[0])
    yield made
    made.close()
