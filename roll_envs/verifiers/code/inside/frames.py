"""Data frames of pandas, their columns, indices and times as plain values and back, in both jails.

Numbers, times, texts, categories and objects that are plain themselves; any other one is for the caller to keep.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

_TIMES = re.compile(r"(?:datetime64|timedelta64)\[[a-z]{1,2}(?:, [\w/+:-]{1,40})?\]")
_DTYPE = re.compile(r"(?:[Uu]?[Ii]nt|[Ff]loat|complex)\d{1,3}|bool(?:ean)?|object|str|string")


class NotPlain(Exception):
    """It has values, or an index, that are not written here."""


def framed(value: Any, write: Callable[[Any], Any]) -> list[Any]:
    """As JSON; ``write`` writes plain values. Raises :class:`NotPlain`."""
    pandas = sys.modules["pandas"]
    kind = type(value)
    if value is pandas.NaT or value is pandas.NA:
        return ["missing", str(value) == "NaT"]
    if kind is pandas.Timestamp:
        return ["Timestamp", value.value, value.tz and str(value.tz)]
    if kind is pandas.Timedelta:
        return ["Timedelta", value.value]
    if kind is pandas.DataFrame:
        columns = [_column(value.iloc[:, number], write) for number in range(value.shape[1])]
        return ["DataFrame", _index(value.index, write), _index(value.columns, write), columns]
    if kind is pandas.Series:
        return ["Series", _index(value.index, write), _column(value, write), write(value.name)]
    if isinstance(value, pandas.Index):
        return ["Index", _index(value, write)]
    raise NotPlain


def _index(index: Any, write: Callable[[Any], Any]) -> list[Any]:
    names = write(list(index.names))
    if type(index).__name__ == "RangeIndex":
        return ["range", names, index.start, index.stop, index.step]
    if index.nlevels > 1:
        return ["levels", names, [_column(index.get_level_values(n), write) for n in range(index.nlevels)]]
    return ["values", names, _column(index, write), getattr(index, "freqstr", None)]


def _column(values: Any, write: Callable[[Any], Any]) -> list[Any]:
    dtype = str(values.dtype)
    if dtype == "category":
        held = getattr(values, "cat", values)
        return [dtype, _column(held.categories, write), [int(code) for code in held.codes], bool(held.ordered)]
    if _TIMES.fullmatch(dtype):
        return [dtype, values.astype("int64").tolist()]
    if not _DTYPE.fullmatch(dtype):
        raise NotPlain
    return [dtype, write(values.astype(object).tolist())]


def read_frame(data: list[Any], read: Callable[[Any], Any]) -> Any:
    """What :func:`framed` wrote. Raises ImportError without pandas, and anything for data in another form."""
    import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]

    kind, *parts = data
    if kind == "missing":
        return pandas.NaT if parts[0] else pandas.NA
    if kind == "Timestamp":
        return pandas.Timestamp(int(parts[0]), tz=parts[1])
    if kind == "Timedelta":
        return pandas.Timedelta(int(parts[0]))
    index = _made_index(parts[0], read)
    if kind == "Index":
        return index
    if kind == "Series":
        return pandas.Series(_made_column(parts[1], read), name=read(parts[2])).set_axis(index)
    columns = [pandas.Series(_made_column(each, read)) for each in parts[2]]
    frame = pandas.DataFrame(dict(enumerate(columns)), index=range(len(index)))
    return frame.set_axis(index, axis=0).set_axis(_made_index(parts[1], read), axis=1)


def _made_index(data: list[Any], read: Callable[[Any], Any]) -> Any:
    import pandas

    kind, names, *parts = data
    names = read(names)
    if kind == "range":
        return pandas.RangeIndex(*map(int, parts), name=names[0])
    if kind == "levels":
        return pandas.MultiIndex.from_arrays([_made_column(each, read) for each in parts[0]], names=names)
    index = pandas.Index(_made_column(parts[0], read), name=names[0])
    if parts[1] is not None:
        index.freq = str(parts[1])[:20]
    return index


def _made_column(data: list[Any], read: Callable[[Any], Any]) -> Any:
    import pandas

    dtype, values, *more = data
    if dtype == "category":
        codes, ordered = more
        return pandas.Categorical.from_codes(codes, pandas.Index(_made_column(values, read)), ordered=bool(ordered))
    if _TIMES.fullmatch(dtype):
        return pandas.Series([int(value) for value in values], dtype="int64").astype(dtype)
    if not _DTYPE.fullmatch(dtype):
        raise ValueError("not a column in the agreed form")
    return pandas.Series(read(values), dtype=dtype)


def take_frame(mine: Any, theirs: Any) -> None:
    """Make a frame or a column equal to another one, in place, for which pandas has nothing public."""
    mine._update_inplace(theirs)
