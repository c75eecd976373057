"""The keyword arguments of one instruction, read with their types; and kinds of instructions made of functions.

A kind is a function from the text and the instruction's arguments, each annotated with how it is read
(:data:`Whole`, :data:`Text`, ...), to whether the text follows it; :func:`kind_of` makes a :data:`MakeCheck` of it.

``None`` counts as missing: data sets that keep all instructions in the same columns fill the others with it, and for
the same reason whole numbers may come as floats.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from roll_envs.errors import ConfigError, did_you_mean


class Arguments:
    """The arguments of one instruction. Every method raises :class:`ConfigError` for an unusable value."""

    def __init__(self, instruction: str, arguments: Mapping[str, Any]) -> None:
        self.instruction = instruction
        self._arguments = {name: value for name, value in arguments.items() if value is not None}
        self._read: set[str] = set()

    def whole(self, name: str, least: int = 0) -> int:
        """A whole number of ``least`` or more."""
        value = self._take(name)
        # 3.0 passes, nan and infinity do not.
        usable = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        if not usable or value < least:
            raise ConfigError(f"{self.instruction}: {name} must be a whole number of {least} or more, not {value!r}")
        return int(value)

    def text(self, name: str, *, strip: bool = True) -> str:
        """A text, stripped unless told otherwise; it must not be only whitespace."""
        value = self._take(name)
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{self.instruction}: {name} must be a text, not {value!r}")
        return value.strip() if strip else value

    def texts(self, name: str) -> list[str]:
        """A list of texts, at least one, each as it stands."""
        value = self._take(name)
        if not isinstance(value, list | tuple) or not value or not all(isinstance(v, str) and v.strip() for v in value):
            raise ConfigError(f"{self.instruction}: {name} must be a list of texts, not {value!r}")
        return list(value)

    def choice(self, name: str, allowed: Collection[str]) -> str:
        """One of the texts of ``allowed``."""
        value = self._take(name)
        if not isinstance(value, str) or value not in allowed:
            raise ConfigError(f"{self.instruction}: {name} must be one of {', '.join(sorted(allowed))}, not {value!r}")
        return value

    def finish(self) -> None:
        """Raise for an argument that was not read: the row asks for more than would be checked."""
        for name in self._arguments:
            if name not in self._read:
                known = f"; it takes {', '.join(sorted(self._read)) or 'none'}"
                hint = did_you_mean(name, self._read) or known
                raise ConfigError(f"{self.instruction}: there is no argument {name!r}{hint}")

    def _take(self, name: str) -> Any:
        if name not in self._arguments:
            raise ConfigError(f"{self.instruction}: the argument {name!r} is missing")
        self._read.add(name)
        return self._arguments[name]


Check = Callable[[str], bool]
"""Whether a text follows an instruction."""
MakeCheck = Callable[[Arguments], Check]
"""One kind of instruction: reads its arguments and gives the check. Raises what :class:`Arguments` raises."""

RELATIONS = ("less than", "at least")
Whole = Annotated[int, Arguments.whole]
Positive = Annotated[int, lambda arguments, name: arguments.whole(name, 1)]
Text = Annotated[str, Arguments.text]
Lower = Annotated[str, lambda arguments, name: arguments.text(name).lower()]
"""A text in small letters."""
Texts = Annotated[list[str], Arguments.texts]
Relation = Annotated[str, lambda arguments, name: arguments.choice(name, RELATIONS)]


def kind_of(follows: Callable[..., bool]) -> MakeCheck:
    """The kind of instruction that a function of a text and of annotated arguments checks."""
    hints = typing.get_type_hints(follows, include_extras=True)
    readers = {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    return lambda arguments: functools.partial(
        follows, **{name: read(arguments, name) for name, read in readers.items()}
    )


def holds(count: int, relation: str, threshold: int) -> bool:
    """Whether a count is ``relation`` (one of :data:`RELATIONS`) ``threshold``."""
    return count < threshold if relation == "less than" else count >= threshold
