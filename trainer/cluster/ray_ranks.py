"""Ranks that are actors of a Ray cluster, together in one placement group. Ray is imported when it is used.

An actor runs the same :func:`~trainer.cluster.rank.serve` as a process does; its frames go through two queues, which
methods of the actor fill and empty. A node needs the trainer and its learner's backend.
"""

from __future__ import annotations

import contextlib
import os
import threading
from queue import Queue, SimpleQueue
from typing import Any

from roll_envs.errors import ConfigError
from trainer.cluster.ray_cluster import ClusterWish, check_cluster, connect
from trainer.config import RunConfig

_THREADS = 4
"""Calls of an actor at one time: one waits for what it says, one for its end, the others bring what it is told."""


class RayLinks:
    """Actors, each with its share of processors and GPUs; :class:`~trainer.cluster.crew.Links` to them."""

    def __init__(self, config: RunConfig) -> None:
        """On the cluster that is there, or is started for them.

        Raises :class:`ConfigError` where no cluster answers, or it has no room within ``start_timeout_s``.
        """
        placed = config.placement.learner
        self.count = placed.ranks
        check_cluster(cluster_wish(config))
        self._ours = connect(cluster_wish(config))
        self._actors: list[Any] = []
        self._said: dict[Any, int] = {}
        self._lives: list[Any] = []
        self._reasons: dict[int, str] = {}
        self._group: Any = None
        self._over = False
        try:
            self._place(placed.cpus, placed.gpus, placed.start_timeout_s)
        except BaseException:
            self.end()
            raise

    def _place(self, cpus: float, gpus: float, timeout_s: float) -> None:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
        _check_room(bundle, self.count, ray.cluster_resources())
        self._group = placement_group([bundle] * self.count, strategy="PACK")
        if not self._group.wait(timeout_s):
            raise _no_room(
                bundle, self.count, f"had no room for them within {timeout_s:g} s", ray.available_resources()
            )
        for rank in range(self.count):
            options = ray.remote(RankActor).options(
                num_cpus=cpus,
                num_gpus=gpus,
                max_concurrency=_THREADS,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank),
            )
            self._actors.append(options.remote(rank, self.count, gpus=bool(gpus)))
            self._said[self._actors[-1].take.remote()] = rank
            self._lives.append(self._actors[-1].live.remote())

    def name(self, rank: int) -> str:
        return f"actor {self._actors[rank]._actor_id.hex()[:8]}"

    def send(self, rank: int, frame: bytes) -> None:
        try:
            self._actors[rank].put.remote(frame)
        except Exception as error:  # Ray was shut down
            raise OSError(str(error)) from error

    def receive(self, timeout_s: float) -> tuple[int, bytes | None] | None:
        import ray

        # Rank 0 sends the streams, which must not hide what the others say.
        waiting = sorted(self._said, key=lambda said: -self._said[said])
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout_s)
        if not ready:
            return None
        rank = self._said.pop(ready[0])
        try:
            frame: bytes = ray.get(ready[0])
        except Exception as error:  # the actor, its node or the whole cluster is gone, or it could not be made
            self._reasons[rank] = str(error).strip()
            return rank, None
        self._said[self._actors[rank].take.remote()] = rank
        return rank, frame

    def gone(self, rank: int) -> bool:
        import ray

        if self._over:
            return True
        over, _ = ray.wait([self._lives[rank]], timeout=0)
        if over:
            try:
                ray.get(over)
            except Exception as error:
                self._reasons[rank] = str(error).strip()
        return bool(over)

    def ended(self, rank: int) -> str:
        return f"was lost ({self._reasons.get(rank, 'Ray was shut down')})"

    def end(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        if self._over:  # Ray would connect again for a call that comes after its end
            return
        self._over = True
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        if self._group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(self._group)
        if self._ours:
            ray.shutdown()


class RankActor:
    """A rank as an actor: a thread that serves, and the two queues that lead to it."""

    def __init__(self, rank: int, count: int, *, gpus: bool) -> None:
        import ray

        if not gpus:
            # Without a share in them it must not see the GPUs of its node, which belong to others. A runtime_env could
            # say so, too, but with one Ray starts no process of a Python whose path has a space.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""

        from trainer.cluster.rank import Rank, serve

        self._told: SimpleQueue[bytes] = SimpleQueue()
        self._says: Queue[bytes] = Queue(maxsize=2)  # a stream of weights waits for the driver
        host = Rank(rank, count, ray.util.get_node_ip_address())
        threading.Thread(target=serve, args=(host, rank, self._told.get, self._say), daemon=True).start()

    def put(self, frame: bytes) -> None:
        """Take a frame of the driver."""
        self._told.put(frame)

    def take(self) -> bytes:
        """The next frame for the driver."""
        return self._says.get()

    def live(self) -> None:
        """Return never: the call fails when the actor is gone."""
        threading.Event().wait()

    def _say(self, frame: bytes) -> None:
        self._says.put(frame)


def cluster_wish(config: RunConfig) -> ClusterWish:
    """The cluster that ``cluster: ray`` asks for."""
    placed = config.placement.learner
    return ClusterWish(
        asks="cluster 'ray'",
        section="placement",
        address=config.placement.address,
        workers=placed.ranks,
        num_cpus=placed.cpus,
    )


def _check_room(bundle: dict[str, float], count: int, there: dict[str, float]) -> None:
    """Raise :class:`ConfigError` where the cluster will never have room as it is."""
    if any(count * amount > there.get(name, 0.0) for name, amount in bundle.items()):
        raise _no_room(bundle, count, "is too small for them", there)


def _no_room(bundle: dict[str, float], count: int, why: str, there: dict[str, float]) -> ConfigError:
    each = " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())
    has = ", ".join(f"{there.get(name, 0.0):g} {name}" for name in bundle)
    return ConfigError(
        f"placement.learner.ranks {count} with {each} each: the Ray cluster {why} (it has {has}); lower "
        "placement.learner.ranks, cpus or gpus, raise placement.learner.start_timeout_s, or add nodes"
    )
