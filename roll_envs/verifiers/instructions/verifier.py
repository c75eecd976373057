"""``instructions``: does an answer follow instructions that a program can check? In the form of IFEval's data.

A row names its instructions in ``instruction_id_list`` and their arguments in ``kwargs``, a list as long. The data that
is trained on with IFEvalG (IF-RLVR) has ``instruction_id`` instead, in a list of one such row written as Python's text.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import PositiveInt

from roll_envs.errors import ConfigError, UnknownNameError
from roll_envs.verifiers.extract import after_thinking
from roll_envs.verifiers.instructions.arguments import Check, Kind, read_arguments
from roll_envs.verifiers.instructions.ifbench import IFBENCH
from roll_envs.verifiers.instructions.ifeval import IFEVAL
from roll_envs.verifiers.instructions.ifeval_g import IFEVAL_G
from roll_envs.verifiers.types import Failed, Score, Verdict

_IDS, _RLVR_IDS, _KWARGS = "instruction_id_list", "instruction_id", "kwargs"

INSTRUCTIONS: dict[str, Kind] = {**IFEVAL, **IFBENCH, **IFEVAL_G}
"""Every kind of instruction by its public id; programs may add their own."""


def read_instructions(row: Any) -> list[tuple[str, Check]]:
    """The checks of a row with their ids, in order.

    ``row``: a mapping with ``instruction_id_list`` (or ``instruction_id``) and ``kwargs``, a list of one, or the text
    of these, JSON or Python. Raises :class:`ConfigError` (:class:`UnknownNameError` for an id) for a row that cannot
    be checked as it is meant.
    """
    if isinstance(row, str):
        row = _parsed(row)
    if _is_list(row) and len(row) == 1:
        return read_instructions(row[0])
    ids = row.get(_IDS, row.get(_RLVR_IDS)) if isinstance(row, Mapping) else None
    if ids is None:
        raise ConfigError(f"instructions need {_IDS!r} and {_KWARGS!r}; there are {str(row)[:100]!r}")
    kwargs = row.get(_KWARGS)
    if not _is_list(ids) or not ids:
        raise ConfigError(f"{_IDS} must be a list of at least one id, not {str(ids)[:100]!r}")
    if kwargs is None:
        kwargs = [{}] * len(ids)
    if not _is_list(kwargs) or len(kwargs) != len(ids):
        raise ConfigError(f"{_KWARGS} must be a list of {len(ids)} objects, one for each id, not {str(kwargs)[:100]!r}")
    return [(str(name), _read(name, arguments)) for name, arguments in zip(ids, kwargs, strict=True)]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise ConfigError(f"the instructions {text[:100]!r} are no JSON: {error}") from None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _read(name: Any, arguments: Any) -> Check:
    if name not in INSTRUCTIONS:
        raise UnknownNameError("instruction", str(name), INSTRUCTIONS)
    if not isinstance(arguments, Mapping | None):
        raise ConfigError(f"{name}: kwargs must be an object, not {str(arguments)[:100]!r}")
    return read_arguments(str(name), INSTRUCTIONS[name], arguments or {})


def loose_forms(answer: str) -> list[str]:
    """The eight texts of IFEval's loose scoring: with and without ``*``, the first line, the last line."""
    lines = answer.split("\n")
    cut = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    return list(dict.fromkeys(form for text in (answer, *cut) for form in (text, text.replace("*", ""))))


@dataclass(kw_only=True, eq=False)
class InstructionsVerifier:
    """The share of instructions that an answer follows, or 1.0 only when it follows all.

    ``reference``: the row (see :func:`read_instructions`); without one, ``context`` is. ``mode``: ``strict`` reads the
    answer as it is; in ``loose`` an instruction is followed when one of :func:`loose_forms` follows it. ``value``:
    ``share`` or ``all``; ``passed`` is always all. Thoughts before ``</think>`` are not part of the answer.
    An empty answer, or one beyond ``max_chars``, follows nothing.

    Parts: each instruction's id (a second one of an id is ``id#2``), and ``strict_all``, ``strict_share``,
    ``loose_all``, ``loose_share``, the four numbers of the paper.
    """

    mode: Literal["strict", "loose"] = "strict"
    value: Literal["share", "all"] = "share"
    max_chars: PositiveInt = 200_000

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        try:
            checks = read_instructions(context if reference is None else reference)
        except (ConfigError, UnknownNameError) as error:
            return Failed(reason=str(error))
        text = after_thinking(answer)
        if len(text) > self.max_chars:
            text = ""
        strict = [_follows(check, [text]) for _, check in checks]
        others = loose_forms(text)
        loose = [done or _follows(check, others) for done, (_, check) in zip(strict, checks, strict=True)]
        followed = strict if self.mode == "strict" else loose
        share = sum(followed) / len(followed)
        parts = dict(zip(_names([name for name, _ in checks]), map(float, followed), strict=True))
        parts |= {"strict_all": float(all(strict)), "strict_share": sum(strict) / len(strict)}
        parts |= {"loose_all": float(all(loose)), "loose_share": sum(loose) / len(loose)}
        broken = [name for (name, _), done in zip(checks, followed, strict=True) if not done]
        return Score(
            value=share if self.value == "share" else float(not broken),
            passed=not broken,
            detail=f"not followed: {', '.join(broken)}" if broken else "",
            parts=parts,
        )


def _follows(check: Check, forms: Sequence[str]) -> bool:
    # An empty text would follow many instructions, such as "no comma".
    return any(form.strip() and check(form) for form in forms)


def _names(ids: Sequence[str]) -> list[str]:
    earlier = [ids[:place].count(name) for place, name in enumerate(ids)]
    return [name if not count else f"{name}#{count + 1}" for name, count in zip(ids, earlier, strict=True)]
