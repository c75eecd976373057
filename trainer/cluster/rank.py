"""One rank of the learner: does what the driver says, one call at a time, until the driver is gone.

:func:`main` is one in a process of this machine; an actor of a Ray cluster is another. What a call changes are a
:class:`Rank`'s learner, critic and reference, which agree with those of the other ranks by collectives.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import torch
from torch import distributed
from torch._C._distributed_c10d import TCPStore

from roll_envs.errors import ConfigError, RollError
from trainer.cluster import rank_weights
from trainer.cluster.frames import Answer, Call, Failure, Item, Stream, Where, packed, unpacked
from trainer.cluster.ranked import make_phase_learner, releases
from trainer.cluster.roles import check_role_backends, network_of, role_host
from trainer.config import CriticConfig, RoleName, RunConfig
from trainer.config.load import parse_config
from trainer.config.parts import BACKENDS, part_settings
from trainer.engines.buckets import Delivery, Word
from trainer.learner import BackendPart, Learner
from trainer.learner.gradients import Ranks
from trainer.learner.snapshot import SavedFiles, Share
from trainer.model.forward import load_weights
from trainer.model.network import LanguageModel, choose_device

_STORE_S = 300.0

PartName = Literal["learner", "critic", "reference"]


class Rank:
    """A share of the learner, and the critic and reference that stand beside it."""

    def __init__(self, rank: int, count: int, host: str = "127.0.0.1") -> None:
        """``host`` is where the other ranks reach this one."""
        self._rank, self._count, self._host = rank, count, host
        self._ranks = Ranks()
        self._parts: dict[str, Any] = {}
        self._config: RunConfig
        self._model_config: Any = None
        self._share: Share | None = None
        self._writing: threading.Thread | None = None

    def check(self, text: str, theirs: dict[str, str]) -> None:
        """Raise :class:`ConfigError` where this process lacks what the backend of the configuration ``text`` needs, or
        has other :func:`releases` than the driver."""
        config = parse_config(text)
        BACKENDS.find(config.learner.backend).check_machine(config)
        check_role_backends(config)
        own = releases()
        other = [name for name in theirs if own.get(name) != theirs[name]]
        if other:
            raise ConfigError(
                f"rank {self._rank} of the learner, on {socket.gethostname()}, has {_listed(own, other)}, and the "
                f"driver {_listed(theirs, other)}; install the same releases on every node"
            )

    def meet(self) -> tuple[str, int] | None:
        """Where the ranks shall meet: rank 0 listens there from now on."""
        if self._rank:
            return None
        self._store = TCPStore(self._host, 0, is_master=True, wait_for_workers=False)
        return self._host, int(self._store.port)

    def join(self, host: str, port: int, device: str, timeout_s: float) -> None:
        """Meet the other ranks. ``timeout_s`` bounds every collective that follows."""
        if self._rank:
            self._store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_STORE_S))
        cuda = choose_device(device).type == "cuda"
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=self._store,
            rank=self._rank,
            world_size=self._count,
            timeout=timedelta(seconds=timeout_s),
        )
        self._ranks = Ranks(distributed.group.WORLD)

    def make(
        self,
        text: str,
        warm_start: bool,
        model_config: Any,
        threads: int,
        weights: Iterable[tuple[str, torch.Tensor]],
    ) -> None:
        """Make the learner of a phase of the configuration ``text`` anew, of ``weights`` for a network of Hugging Face
        configuration ``model_config``."""
        torch.set_num_threads(threads)
        self._parts.clear()  # before the next ones take memory
        gc.collect()
        config = parse_config(text)
        part: BackendPart = BACKENDS.find(config.learner.backend)
        fills = part.fills(part_settings(config.learner, part))
        network = network_of(model_config, empty=fills)
        if not fills:
            load_weights(network, weights, "the driver's stream")
        model = LanguageModel(network=network, tokenizer=None)  # learners have no use for one
        learner: Any = make_phase_learner(config, model, warm_start=warm_start, threads=threads, ranks=self._ranks)
        if fills:
            learner.load_weights(weights)
        self._parts["learner"] = learner
        self._config, self._model_config = config, model_config

    def add_critic(self, settings: dict[str, Any]) -> None:
        """A critic of the configuration's class, with these ``settings``."""
        self._parts["critic"] = self._learner_of("critic").critic(CriticConfig(**settings))

    def add_reference(self, fixed: bool) -> None:
        self._parts["reference"] = self._learner_of("reference").reference(fixed=fixed)

    def _learner_of(self, name: RoleName) -> Learner:
        return role_host(self._config, name, self._parts["learner"], self._model_config, ranks=self._ranks)

    def part(self, name: PartName, method: str, *arguments: Any, **named: Any) -> Any:
        """What a method of a part gives."""
        return getattr(self._parts[name], method)(*arguments, **named)

    def copy(self, source: PartName, name: PartName) -> None:
        """Give a part the weights of another one."""
        self._parts[name].load_weights(self._parts[source].weights())

    def sees(self, name: PartName, path: str, token: bytes) -> tuple[bool, str]:
        """Whether this process can write to a file of the driver, which begins with ``token``; and where the weights of
        a part are."""
        return rank_weights.sees(path, token), str(next(iter(self._parts[name].weights()))[1].device)

    def deliver(self, name: PartName, delivery: Delivery, bases: bool = False) -> Iterator[Word]:
        """Write and send the weights of a part, or those beside its adapters."""
        weights = self._parts[name].weights()
        return rank_weights.deliver(weights.bases() if bases else weights, delivery, self._rank)

    def bases(self, name: PartName) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of a part beside its adapters."""
        found: Iterator[tuple[str, torch.Tensor]] = self._parts[name].weights().bases()
        return found

    def adapters(self, name: PartName) -> Iterator[tuple[str, torch.Tensor]]:
        """The adapters of a part."""
        found: Iterator[tuple[str, torch.Tensor]] = self._parts[name].weights().adapters()
        return found

    def base_key(self, name: PartName) -> str:
        """What names the weights beside the adapters of a part; each rank has one of its own."""
        key: str = self._parts[name].weights().key()
        return key

    def step(self, name: PartName, batches: Any, denominators: Any, named: dict[str, Any]) -> Any:
        """An optimiser step of a part."""
        return self._parts[name].step(batches, denominators, **named)

    def state(self, name: PartName) -> dict[str, Any]:
        """The state of a part's optimiser, on rank 0; the others take part and give nothing."""
        state: dict[str, Any] = self._parts[name].optimizer_state()
        return {} if self._rank else state

    # -- checkpoints: folders that all ranks see ---------------------------------------------------------------------

    def sees_folder(self, folder: Path) -> bool:
        """Whether a folder of the driver is there for this process, too."""
        return folder.is_dir()

    def sees_file(self, path: str, token: bytes) -> bool:
        """Whether this process may write to the driver's own file: :func:`~trainer.cluster.rank_weights.sees`."""
        return rank_weights.sees(path, token)

    def snapshot(self, networks: dict[str, PartName], trained: dict[str, PartName]) -> dict[str, Any]:
        """Copy this rank's share of a checkpoint: of the weights of ``networks`` and the states of ``trained``, which
        are parts by their names in it. The states without numbers, from rank 0."""
        if self._writing is not None:
            self._writing.join()  # the driver has waited for its end
        self._share = Share(self._rank, self._count)
        for name, part in networks.items():
            self._share.add_weights(name, self._parts[part].weights())
        states = {
            name: self._share.add_state(name, self._parts[part].optimizer_state) for name, part in trained.items()
        }
        return {} if self._rank else states

    def write_share(self, folder: Path) -> None:
        """Begin to write the share into ``folder``; :func:`trainer.learner.snapshot.notes_of` tells when it is done."""
        assert self._share is not None
        self._writing = self._share.write(folder)

    def load_share(self, files: SavedFiles, networks: dict[str, PartName], trained: dict[str, PartName]) -> None:
        """Take weights and states from a checkpoint's files, of which this rank reads what it needs."""
        if trained:
            states = files.training()["optimizer"]
            for name, part in trained.items():
                self._parts[part].load_optimizer_state(states[name])
        for name, part in networks.items():
            self._parts[part].load_weights(files.weights(name))


def _listed(releases: dict[str, str], names: list[str]) -> str:
    return ", ".join(f"{name} {releases.get(name, 'not at all')}" for name in names)


def serve(rank: object, number: int, receive: Callable[[], bytes], send: Callable[[bytes], None]) -> None:
    """Run the calls that ``receive`` gives, as methods of ``rank``, until it raises EOFError or OSError: the process
    ends then, whatever it does. An iterator that a method of rank 0 returns is sent item by item."""
    calls: SimpleQueue[Call | Item] = SimpleQueue()
    working = threading.get_ident()
    lock = threading.Lock()

    def answer(call: int, kind: Any, value: Any = None) -> None:
        frame = packed(Answer(call, kind, value))
        try:
            with lock:
                send(frame)
        except OSError:  # the driver is gone
            os._exit(1)

    def listen() -> None:
        try:
            while True:
                message = unpacked(receive())
                if isinstance(message, Where):
                    stack = traceback.format_stack(sys._current_frames()[working])
                    answer(message.number, "where", "".join(stack))
                else:
                    calls.put(message)
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=listen, daemon=True, name="listen").start()
    pending: Call | None = None

    def items(call: int) -> Iterator[Any]:
        nonlocal pending
        while True:
            answer(call, "more")
            message = calls.get()
            if isinstance(message, Call):
                pending = message
                raise RuntimeError("the driver ended the stream before its last item")
            if message.value is None:
                return
            yield message.value

    while True:
        message: Call | Item = pending or calls.get()
        pending = None
        assert isinstance(message, Call)
        call, method, arguments = message
        try:
            given = [items(call) if isinstance(argument, Stream) else argument for argument in arguments]
            result = getattr(rank, method)(*given)
            if isinstance(result, Iterator):
                for item in result:
                    if number == 0:
                        answer(call, "item", item)
                    del item  # the next one may be gathered from all ranks; no two are alive
                result = None
            answer(call, "done", result)
        except Exception as error:
            ours = error if isinstance(error, RollError) else None
            answer(call, "error", Failure(ours, traceback.format_exc()))
        del message, arguments


def main() -> None:
    """With the arguments FD RANK COUNT: serve the driver at the other end of the pipe FD."""
    fd, rank, count = map(int, sys.argv[1:4])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the driver decides when a rank ends: it saves first
    connection: Connection[Any, Any] = Connection(fd)
    serve(Rank(rank, count), rank, connection.recv_bytes, connection.send_bytes)
