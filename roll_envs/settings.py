"""Settings of parts: how a part declares them, and how those that a user gives are checked before the part is made.

A part declares its settings as a :class:`Settings` model, or by the parameters of the class or function that makes it:
names, annotations and defaults. :func:`settings_model` gives the model in both cases, for checks and for references.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from roll_envs.errors import ConfigError, UnknownNameError

with contextlib.suppress(Exception):
    # For its first model pydantic looks through all installed packages for plugins of its own, which raises when the
    # metadata of one cannot be read. It looks once, so that the models below and elsewhere are made without plugins.
    TypeAdapter(int)

Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
"""A time to wait: above 0, and not for ever: some of what waits takes no more than 24 days."""

_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, protected_namespaces=())


class Settings(BaseModel):
    """Settings of a part, declared beside its code: frozen, strict about types, without unknown keys.

    The docstring under a field describes it in the references; what follows ``Default:`` in it says where the default
    is from (a paper, another trainer, "off"), which ``roll-train explain`` shows. Limits are pydantic's
    (``Field(0.2, ge=0)``). A part without settings of its own uses this class as it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# For classes derived from it: it has no fields, and to look for their docstrings takes a third of this import.
Settings.model_config["use_attribute_docstrings"] = True


def description_and_origin(field: FieldInfo) -> tuple[str, str]:
    """What the docstring under a field of a :class:`Settings` class says, and what it says of the default."""
    description, _, origin = " ".join((field.description or "").split()).partition(" Default: ")
    return description, origin.removesuffix(".")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something that a configuration chooses by name. Each kind of part is a subclass with what it needs."""

    settings: type[Settings] = Settings
    """The model of the settings that this part reads."""

    def problems(self, config: Any) -> list[str]:
        """What the part asks of other sections of a run's configuration and does not find, a sentence each."""
        return []

    def check_machine(self, config: Any) -> None:
        """Raise :class:`ConfigError` or :class:`MissingExtraError` for what the part does not find on this machine: a
        package, say, or a free port. Asked before a run begins, and before its model is loaded."""


def checked_arguments(what: str, make: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments to call ``make`` with, from the settings that a user gave.

    ``what`` names the part in messages ("verifier 'exact'"). Values are checked and handed on as they were given, not
    converted.

    Raises:
        UnknownNameError: ``make`` does not read one of the settings.
        ConfigError: A setting is missing, or its value is not what the declaration allows.
    """
    refuse_unknown(what, make, given)
    model = settings_model(make)
    try:
        checked = model.model_validate(dict(given))
    except ValidationError as error:
        raise ConfigError(f"{what}: {_readable(error, given)}") from error
    return {"settings": checked} if isinstance(checked, Settings) else dict(given)


def refuse_unknown(what: str, make: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise :class:`UnknownNameError` for the first setting in ``given`` that ``make`` does not read."""
    known = accepted_names(make)
    for key in given:
        if known is not None and key not in known:
            raise UnknownNameError(f"setting of {what}:", str(key), known)


def accepted_names(make: Callable[..., Any]) -> tuple[str, ...] | None:
    """Names of the settings that a class or function reads; ``None`` when it takes any, or nobody can tell."""
    model = settings_model(make)
    return None if model.model_config["extra"] == "allow" else tuple(_fields(model))


def settings_model(make: Callable[..., Any]) -> type[BaseModel]:
    """The model of the settings that a class or function reads: its own, or one derived from its parameters.

    Annotations that pydantic cannot check (names imported for type checkers only, protocols) allow any value. Lists
    are allowed where tuples are declared, since configuration files have no tuples.
    """
    return _model(make) if isinstance(make, Hashable) else _model.__wrapped__(make)


# A model takes milliseconds to build, and environments and their verifiers are made again and again.
@functools.lru_cache(maxsize=256)
def _model(make: Callable[..., Any]) -> type[BaseModel]:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some callables written in C
        return create_model("AnySettings", __config__=ConfigDict(extra="allow"))
    fields: dict[str, Any] = {}
    for each in parameters:
        annotation = _annotation(make, each)
        if each.name == "settings" and isinstance(annotation, type) and issubclass(annotation, Settings):
            return annotation
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD):
            default = ... if each.default is each.empty else each.default
            # An alias, because a parameter may have a name that pydantic keeps for itself.
            field = Field(default, alias=each.name, title=_text(each.annotation))
            fields[f"setting_{each.name}"] = (_checkable(annotation), field)
    extra: Literal["allow", "forbid"] = "allow" if any(p.kind is p.VAR_KEYWORD for p in parameters) else "forbid"
    return create_model(
        f"{getattr(make, '__name__', 'Part')}Settings", __config__={**_STRICT, "extra": extra}, **fields
    )


@functools.lru_cache(maxsize=256)
def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The settings of a model by the names that users write."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def required_settings(make: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the settings of a part that have no default."""
    return tuple(name for name, field in _fields(settings_model(make)).items() if field.is_required())


def described_settings(model: type[BaseModel]) -> list[dict[str, str]]:
    """Name, type, default and description of each setting of a model, as texts for a reference."""
    return [
        {
            "name": name,
            "type": field.title or str(getattr(field.annotation, "__name__", field.annotation)),
            "default": "(required)" if field.is_required() else repr(field.default),
            "description": description_and_origin(field)[0],
        }
        for name, field in _fields(model).items()
    ]


def _annotation(make: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation of a parameter as a type; ``Any`` where it has none or it cannot be read."""
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    code = make.__init__ if isinstance(make, type) else make  # type: ignore[misc]
    names = getattr(inspect.unwrap(code), "__globals__", None) or vars(sys.modules[make.__module__])
    if is_dataclass(make) and isinstance(make, type):  # whose fields may come from a class of another module
        homes = (each for each in make.__mro__ if parameter.name in inspect.get_annotations(each))
        names = next((vars(sys.modules[home.__module__]) for home in homes), names)
    try:
        while isinstance(annotation, str):  # typing.get_type_hints would give up all at the first unknown name
            annotation = eval(annotation, dict(names))
    except Exception:  # annotations of others
        return Any
    return annotation


def _text(annotation: Any) -> str:
    """An annotation as it is written; empty where there is none."""
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _checkable(annotation: Any) -> Any:
    """``annotation`` in the form that pydantic checks strictly; ``Any`` where it cannot check it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        annotation = Union[tuple(map(_checkable, arguments))]  # noqa: UP007 - made of a tuple
    elif isinstance(origin, type) and issubclass(origin, Sequence | Mapping | Set):
        annotation = origin[tuple(a if a is ... else _checkable(a) for a in arguments)]  # type: ignore[index]
        if issubclass(origin, tuple | Set):
            annotation = Annotated[annotation, Strict(False)]  # takes lists; what is in them stays strict
    try:
        create_model("Checked", __config__=_STRICT, value=(annotation, ...)).model_rebuild()
    except Exception:  # annotations of others; pydantic raises errors of many types
        return Any
    return annotation


def _readable(error: ValidationError, given: Mapping[str, Any]) -> str:
    """One clause for each setting that is wrong: its name, what is allowed, and the value."""
    clauses: dict[str, list[str]] = {}
    for each in error.errors(include_url=False):
        key = str(each["loc"][0]) if each["loc"] else "settings"
        message = each["msg"].removeprefix("Value error, ").removeprefix("Input ")
        allowed = {"missing": "is required", "sequence_str": "should be a list"}.get(each["type"], message)
        before = clauses.setdefault(key, [])
        before.append(allowed.removeprefix("should be ") if before else allowed)
    return "; ".join(
        f"{key} {' or '.join(dict.fromkeys(allowed))}" + (f", not {given[key]!r}" if key in given else "")
        for key, allowed in clauses.items()
    )
