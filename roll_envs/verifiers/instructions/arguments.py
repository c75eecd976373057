"""The arguments of one instruction, read by pydantic with the types that its kind declares.

A kind is a function from the text and the instruction's arguments, each annotated with what it may be (:data:`Whole`,
:data:`Text`, ...), to whether the text follows it. ``None`` counts as missing: data sets that keep all instructions in
the same columns fill the others with it, and for the same reason whole numbers may come as floats.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, create_model

from roll_envs.errors import ConfigError, UnknownNameError

Check = Callable[[str], bool]
"""Whether a text follows an instruction."""
Kind = Callable[..., bool]

_Integer = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)]
Whole = Annotated[_Integer, Field(ge=0)]
Positive = Annotated[_Integer, Field(ge=1)]
Verbatim = Annotated[str, StringConstraints(pattern=r"\S")]
"""A text as it stands; like each text here, more than whitespace."""
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Lower = Annotated[Text, StringConstraints(to_lower=True)]
Letter = Annotated[Lower, StringConstraints(max_length=1)]
Texts = Annotated[tuple[Verbatim, ...], Field(min_length=1, strict=False)]
Relation = Annotated[Literal["less than", "at least"], Field()]


def read_arguments(name: str, kind: Kind, given: Mapping[str, Any]) -> Check:
    """The check of an instruction of that name and kind. Raises :class:`ConfigError` for unusable arguments, and
    :class:`UnknownNameError` for one that would not be read: the row asks for more than would be checked."""
    model = _model(kind)
    given = {key: value for key, value in given.items() if value is not None}
    for key, value in given.items():
        if key not in model.model_fields:
            raise UnknownNameError(f"argument of {name}:", key, model.model_fields)
        # Some rows of IFEvalG have a list of one text for the text.
        if model.model_fields[key].annotation is str and isinstance(value, list) and len(value) == 1:
            given[key] = value[0]
    try:
        arguments = dict(model.model_validate(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        said = f"{first['msg']}, not {repr(first['input'])[:100]}" if first["type"] != "missing" else "it is missing"
        raise ConfigError(f"{name}: argument {first['loc'][0]!r}: {said}") from None
    return functools.partial(kind, **arguments)


@functools.cache
def _model(kind: Kind) -> type[BaseModel]:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    return create_model("Arguments", __config__=ConfigDict(strict=True), **fields)


def holds(count: int, relation: str, threshold: int) -> bool:
    """Whether a count is ``relation`` (see :data:`Relation`) ``threshold``."""
    return count < threshold if relation == "less than" else count >= threshold
