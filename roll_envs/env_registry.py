"""The registry of environments: entry points of the group ``roll_envs``, over Gymnasium's own registry.

:func:`discover` reads package metadata only; a package's code is imported when one of its ids is made or shown. A
package that cannot be used is recorded with the reason and breaks nothing else. Left out: everything about playing.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import logging
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from roll_envs import providers
from roll_envs.env import AnyEnv, EnvironmentCard, TextEnv
from roll_envs.errors import ConfigError, DeadlineExceededError, EnvironmentFaultError, PluginError, UnknownNameError
from roll_envs.registry import Registration, Registry, why_not_found

T = TypeVar("T")
_log = logging.getLogger(__name__)

_VECTOR = "vector/"
_ID = r"[\w-]+/[\w.-]+-v\d+"


def _accept(name: str, found: object) -> EnvironmentCard:
    if not isinstance(found, EnvironmentCard):
        raise TypeError(f"it is a {type(found).__name__}, not an EnvironmentCard")
    if found.id != name:
        raise TypeError(f"the card has the id {found.id!r}; entry point and card must agree")
    return found


class _Environments(Registry[EnvironmentCard]):
    """Those of packages with entry points, and those of providers, which come behind."""

    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*super().names(), *providers.provided()}))

    def __contains__(self, name: str) -> bool:
        return super().__contains__(name) or name in providers.provided()

    def _is_provided(self, name: str) -> bool:
        return not super().__contains__(name) and name in providers.provided()  # in this order: the latter imports

    def source(self, name: str) -> str:
        return providers.source_of(name) if self._is_provided(name) else super().source(name)

    def registrations(self, *, load: bool = False) -> tuple[Registration, ...]:
        found = super().registrations(load=load)
        broken = [
            Registration(id=f"{name}/...", source=f"provider {name}", state="broken", reason=why)
            for name, why in providers.problems().items()
        ]
        return tuple(sorted((*found, *broken), key=lambda registration: registration.id))

    def find(self, name: str) -> EnvironmentCard:
        return _accept(name, providers.card_of(name)) if self._is_provided(name) else super().find(name)


ENVIRONMENTS = _Environments("environment", "roll_envs", _accept, name_pattern=_ID)
"""Environment id -> its card."""


def _accept_vector(name: str, found: object) -> Callable[..., VectorEnv[Any, Any]]:
    if not (isinstance(found, type) and issubclass(found, VectorEnv)):
        raise TypeError(f"it must be a class derived from gymnasium.vector.VectorEnv, not {found!r}")
    return found


VECTOR_ENVIRONMENTS = Registry("vector environment", "roll_envs.vector", _accept_vector, name_pattern=_ID)
"""Environment id -> the class behind ``gymnasium.make_vec(id, vectorization_mode="vector_entry_point")``, for
environments that have one. It is made with ``num_envs`` and the arguments of a single environment."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., AnyEnv]:
        """A function that makes the environment ``name``, with the class's ``metadata``, which Gymnasium looks at; for
        ``vector/<id>`` one that makes a batch of them.

        Gymnasium's registry points to ``roll_envs.env_registry:<id>``. A string keeps the ``EnvSpec`` serialisable and
        nothing of the environment's package imported until it is made, also in worker processes of ``make_vec``.
        """
        if "/" not in name:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name.count("/") == 2:
            return functools.partial(_build_vector, name.removeprefix(_VECTOR))

        def create(**kwargs: Any) -> AnyEnv:
            return build(name, kwargs)

        create.metadata = dict(getattr(environment_class(name), "metadata", TextEnv.metadata))
        return create


def discover(*, provided: bool = False) -> None:
    """Make every installed environment known to Gymnasium, those of providers too where ``provided``; ids that it knows
    already stay as they are.

    Called once when ``roll_envs`` is imported; imports nothing of any package and never raises for a broken one.
    """
    vectors = VECTOR_ENVIRONMENTS.names()
    for name in ENVIRONMENTS.names() if provided else Registry.names(ENVIRONMENTS):
        if re.fullmatch(_ID, name) and name not in gymnasium.registry:
            with contextlib.suppress(gymnasium.error.Error):  # it has an unversioned id of the same name
                batch = _target(_VECTOR + name) if name in vectors else None
                gymnasium.register(name, entry_point=_target(name), vector_entry_point=batch)


def _target(id: str) -> str:
    return f"{__name__}:{id}"


def register(card: EnvironmentCard, *, replace: bool = False) -> None:
    """Register an environment in this process: for tests, notebooks and modules that are not a package.

    Raises :class:`ConfigError` for a malformed id, or one that is taken unless ``replace`` (or the card is equal).
    """
    ENVIRONMENTS.register(card.id, card, replace=replace)
    discover()


def unregister(id: str) -> None:
    """Forget an id that was registered in this process, here and in Gymnasium. Raises :class:`UnknownNameError`."""
    ENVIRONMENTS.unregister(id)
    gymnasium.registry.pop(id, None)
    discover()  # a package may declare the id too


def environments(*, load: bool = False) -> tuple[Registration, ...]:
    """Every known id in order, with its state; ``load=True`` imports the packages to find out which are broken."""
    return ENVIRONMENTS.registrations(load=load)


def card(id: str) -> EnvironmentCard:
    """The card of an id; ``module:id`` imports the module first.

    Raises :class:`UnknownNameError`, or :class:`PluginError` with the reason.
    """
    name = _imported(id)
    try:
        return ENVIRONMENTS.find(name)
    except UnknownNameError as error:
        hint = "" if re.search(r"-v\d+$", name) else "(ids end in a version, such as -v0)"
        namespace, slash, _ = name.rpartition("/")
        if namespace in providers.without_ids():
            hint = f"(the package behind {namespace}/... is not installed; docs/add_an_environment.md says how)"
        # Some ids of the namespace are perhaps known to Gymnasium alone.
        also = {id for id in gymnasium.registry if slash and id.startswith(f"{namespace}/")}
        raise UnknownNameError("environment", name, also.union(error.known), hint) from None


def _imported(id: str) -> str:
    """``id`` without its module, which is imported."""
    module, _, name = id.rpartition(":")
    if module and module != __package__:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise PluginError(f"cannot import {module!r} of {id!r}: {why_not_found(module) or error}") from error
    return name


def make(id: str, **kwargs: Any) -> gymnasium.Env[str, str]:
    """The environment without Gymnasium's checking wrappers: a :class:`~roll_envs.env.TextEnv`, or any other
    ``gymnasium.Env`` whose observations and actions are text, of a card or known to Gymnasium by its id.

    Raises :class:`UnknownNameError` for an id or argument that does not exist, :class:`PluginError` when the package
    that registers it is broken, :class:`ConfigError` when its spaces are not text.
    """
    env = build(id, kwargs)
    for space in ("observation_space", "action_space"):
        found = getattr(env, space, None)
        if not isinstance(env, TextEnv) and (not isinstance(found, gymnasium.Space) or found.dtype != np.dtype(str)):
            env.close()
            raise ConfigError(
                f"environment {id!r} has the {space} {found}, which is not text; roll_envs.make takes spaces such as "
                f"roll_envs.AnyText() and gymnasium.spaces.Text(80); gymnasium.make({id!r}) makes any environment"
            )
    return env


def make_within(seconds: float, id: str, kwargs: Mapping[str, Any]) -> gymnasium.Env[str, str]:
    """:func:`make`, for ``seconds`` at most; raises as it and :func:`within` do."""
    return within(seconds, f"the making of {id}", lambda: make(id, **kwargs))


def within(seconds: float, what: str, call: Callable[[], T]) -> T:
    """``call()`` in a thread, which is left behind where it takes more than ``seconds``.

    Raises :class:`DeadlineExceededError` then, and what it raises; :class:`EnvironmentFaultError` for an interrupt,
    which is not the user's there (signals come to the main thread), and for an exit, which would end the process.
    """
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except (KeyboardInterrupt, SystemExit) as error:
            done.set_exception(EnvironmentFaultError(f"{what} raised {error!r}"))
        except BaseException as error:  # handed to who waits for it
            done.set_exception(error)

    threading.Thread(target=work, name=what, daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():  # its own
            raise
        raise DeadlineExceededError(what, seconds) from None


def build(id: str, kwargs: Mapping[str, Any]) -> AnyEnv:
    """Like :func:`make`, whatever the spaces are."""
    # Imports pydantic, which importing the hub must not.
    from roll_envs.settings import Settings, accepted_names, checked_arguments, refuse_unknown, settings_model

    name = _imported(id)
    try:
        found = card(name)
    except UnknownNameError:
        if name not in gymnasium.registry:
            raise
        # Of Gymnasium's wrappers, those that check calls are left out; one that limits the steps is part of the game.
        spec = copy.deepcopy(gymnasium.registry[name])
        spec.order_enforce = False
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)
    cls = _class_of(found)
    given = {**found.kwargs, **kwargs}
    accepted = accepted_names(cls)
    # gymnasium.make hands a render mode to every environment, also to those that take none.
    render_mode = None if accepted is None or "render_mode" in accepted else given.pop("render_mode", None)
    what = f"environment {found.id!r}"
    refuse_unknown(what, cls, given)
    # Parameters are the class's own business; settings declared as a model are checked as those of any part.
    env = cls(**(checked_arguments(what, cls, given) if issubclass(settings_model(cls), Settings) else given))
    if not isinstance(env, gymnasium.Env):
        raise PluginError(f"{what}: {found.entry_point} made a {type(env).__name__}, not an Env")
    if render_mode is not None:
        env.render_mode = render_mode
    # With a spec of its own the bare environment can be made again by gymnasium.make(env.spec), as wrapped ones can.
    if env.spec is None:
        env.spec = EnvSpec(found.id, _target(found.id), kwargs=dict(kwargs))
        env.spec.order_enforce, env.spec.disable_env_checker = False, True
    return env


def _build_vector(id: str, num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any]:
    """``num_envs`` environments of an id as one; raises as :func:`build` does."""
    from roll_envs.settings import refuse_unknown  # imports pydantic, which importing the hub must not

    found = card(id)
    given = {**found.kwargs, **kwargs}
    refuse_unknown(f"environment {id!r}", _class_of(found), {k: v for k, v in given.items() if k != "autoreset_mode"})
    return VECTOR_ENVIRONMENTS.find(id)(num_envs=num_envs, **given)


def discard(env: AnyEnv, seconds: float = 30.0) -> None:
    """Close an environment that nobody needs any more, for ``seconds`` at most: what goes wrong in that is logged, and
    ends nothing."""
    name = type(getattr(env, "unwrapped", env)).__name__
    try:
        within(seconds, f"the closing of {name}", env.close)
    except Exception as error:
        _log.warning("closing %s raised %s: %s", name, type(error).__name__, error)


def drawing(id: str, kwargs: Mapping[str, Any]) -> Callable[[str], str | None] | None:
    """What draws observations of an environment made with ``kwargs``, as HTML; ``None`` where its card names nothing.

    Raises as :func:`card` does.
    """
    found = card(id)
    if not found.drawing:
        return None
    draw = ENVIRONMENTS.load(found.id, EntryPoint(found.id, found.drawing, ""))
    arguments = {**found.kwargs, **kwargs}
    return lambda observation: draw(observation, arguments)


def settings_to_give(id: str) -> tuple[str, ...]:
    """Settings that an environment cannot be made without, such as the address of a server. Raises as :func:`card`."""
    from roll_envs.settings import required_settings  # imports pydantic, which importing the hub must not

    found = card(id)
    return tuple(name for name in required_settings(_class_of(found)) if name not in found.kwargs)


def environment_class(id: str) -> type[AnyEnv]:
    """The class behind an id, imported. Raises as :func:`card` does."""
    return _class_of(card(id))


def _class_of(found: EnvironmentCard) -> type[AnyEnv]:
    cls: type[AnyEnv] = ENVIRONMENTS.load(found.id, EntryPoint(found.id, found.entry_point, ""))
    if not callable(cls):
        raise PluginError(ENVIRONMENTS.broken(found.id, f"{found.entry_point!r} names no class; write 'module:Class'"))
    return cls
