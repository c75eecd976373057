"""Tests of rows as in BigCodeBench: data frames as values, and objects of libraries that stay with the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll_envs.sandbox import Sandbox, make_sandbox
from roll_envs.verifiers import Score, make_verifier
from roll_envs.verifiers.code.inside.values import decode, encode

pd = pytest.importorskip("pandas", reason="needs pandas, which the extra 'data' brings")


@pytest.fixture(scope="module")
def boxes() -> Iterator[dict[str, Sandbox]]:
    path = [str(Path(pd.__file__).parents[1])]
    with make_sandbox("local", python_paths=path) as one, make_sandbox("local", python_paths=path) as other:
        yield {"sandbox": one, "tests_sandbox": other}


def verdict(boxes: dict[str, Sandbox], code: str, checks: str, imports: str = "pandas as pd, pathlib, re") -> Score:
    test = f"import unittest\nimport {imports}\nclass TestCases(unittest.TestCase):\n    def test_1(self):\n"
    test += "".join(f"        {line}\n" for line in checks.strip().splitlines())
    judge = make_verifier("code", time_s=30.0, total_s=120.0, memory_mb=1024, **boxes)
    found = judge(code, {"test": test, "entry_point": "task_func"})
    assert isinstance(found, Score), found
    assert "can_be_cheated" not in found.parts
    return found


FRAME = """import pandas as pd
def task_func(n):
    return pd.DataFrame({'a': range(n), 'b': [x * 1.5 for x in range(n)]})
"""
CHECKS = """
df = task_func(3)
self.assertIsInstance(df, pd.DataFrame)
self.assertEqual((df.shape, list(df.columns)), ((3, 2), ['a', 'b']))
self.assertEqual(df['b'].tolist(), [0, 1.5, 3.0])
pd.testing.assert_frame_equal(df, pd.DataFrame({'a': [0, 1, 2], 'b': [0, 1.5, 3.0]}))
self.assertTrue(df['a'].equals(pd.Series([0, 1, 2], name='a')))
"""


@pytest.mark.parametrize(
    ("code", "checks"),
    [
        (FRAME, CHECKS),
        (
            "def task_func(df):\n    return int(df['a'].sum())\n",
            "self.assertEqual(task_func(pd.DataFrame({'a': [1, 3]})), 4)",
        ),
        (
            "def task_func(df):\n    df['c'] = df['a'] * 2\n    df.drop(index=0, inplace=True)\n",
            "df = pd.DataFrame({'a': [1, 3]})\ntask_func(df)\n"
            "self.assertEqual(df.to_dict('list'), {'a': [3], 'c': [6]})",
        ),
        (
            "def task_func(s):\n    return pd.to_datetime(s).max()\nimport pandas as pd\n",
            "self.assertEqual(task_func(pd.Series(['2024-01-02', '2023-01-02'])), pd.Timestamp('2024-01-02'))",
        ),
        (
            "import pathlib\ndef task_func():\n    return pathlib.Path('/a/b')\n",
            "found = task_func()\nself.assertIsInstance(found, pathlib.Path)\nself.assertEqual(found.name, 'b')",
        ),
        (
            "import re\ndef task_func():\n    return re.compile('a+')\n",
            "self.assertIsInstance(task_func(), re.Pattern)\nself.assertTrue(task_func().match('aa'))",
        ),
    ],
    ids=["frame", "given", "changed in place", "times", "path", "pattern"],
)
def test_a_right_answer_passes(boxes: dict[str, Sandbox], code: str, checks: str) -> None:
    found = verdict(boxes, code, checks)
    assert found.passed, found.detail


@pytest.mark.parametrize(
    ("code", "checks"),
    [
        (FRAME.replace("1.5", "1.25"), CHECKS),
        (FRAME.replace("pd.DataFrame(", "("), CHECKS),
        ("def task_func():\n    return 'a'\n", "self.assertIsInstance(task_func(), pathlib.Path)"),
        # It claims to be what compares as the test likes.
        (
            "class Approx:\n    __module__ = 'unittest.mock'\n    def __eq__(self, other):\n        return True\n"
            "Approx.__qualname__ = '_ANY'\ndef task_func():\n    return Approx()\n",
            "self.assertEqual(task_func(), 5)",
        ),
        (
            "class Frame:\n    __module__ = 'pandas'\n"
            "    def __getattr__(self, name):\n        return lambda *a, **k: True\n"
            "Frame.__qualname__ = 'DataFrame'\ndef task_func(n):\n    return Frame()\n",
            CHECKS,
        ),
    ],
    ids=["other values", "no frame", "a text", "equal to all", "a forged frame"],
)
def test_a_wrong_answer_is_zero(boxes: dict[str, Sandbox], code: str, checks: str) -> None:
    assert not verdict(boxes, code, checks, "pandas as pd, pathlib, unittest.mock").passed


def _handle(value: Any) -> Any:
    raise TypeError(type(value).__name__)


def _there_and_back(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, _handle))), _handle)


DAYS = pd.date_range("2024-01-01", periods=3, freq="D", name="day")


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": [1, 2, 3], "b": [0.5, np.nan, 1e300], "c": ["x", None, "z"], "d": [True, False, True]}),
        pd.DataFrame(),
        pd.DataFrame(columns=["a", "b"]),
        pd.DataFrame(index=[1, 2]),
        pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]),
        pd.DataFrame({"t": DAYS, "z": DAYS.tz_localize("Europe/Berlin"), "td": DAYS - DAYS[1]}, index=DAYS),
        pd.DataFrame({"c": pd.Categorical(["a", "b", None], categories=["b", "a"], ordered=True)}),
        pd.DataFrame({"l": [[1, 2], {"a": (1, 2)}, pd.NaT]}),
        pd.DataFrame({"i": pd.array([1, None], dtype="Int64"), "f": np.array([1, 2], dtype="float32")}),
        pd.DataFrame({"u": np.array([1, 255], dtype="uint8"), "n": pd.array([1, None], dtype="UInt16")}),
        pd.DataFrame({("x", "a"): [1, 2], ("x", "b"): [3, 4]}, index=pd.MultiIndex.from_tuples([("p", 1), ("q", 2)])),
        pd.DataFrame({"a": [1, 1, 2], "b": [1, 2, 3]}).groupby("a").sum(),
    ],
)  # fmt: skip
def test_frames_arrive_as_they_are(frame: Any) -> None:
    found = _there_and_back(frame)
    pd.testing.assert_frame_equal(found, frame, check_freq=True)
    assert type(found.index) is type(frame.index)
    for name in dict.fromkeys(frame.columns):
        if isinstance(frame[name], pd.Series):
            pd.testing.assert_series_equal(_there_and_back(frame[name]), frame[name])


def test_times_arrive_as_they_are() -> None:
    for time in (pd.Timestamp("2024-01-01 01:02:03.004005006"), pd.Timestamp("2024-01-01", tz="US/Eastern"),
                 pd.Timedelta("1 days 00:00:01")):  # fmt: skip
        assert (type(_there_and_back(time)), str(_there_and_back(time))) == (type(time), str(time))
    assert _there_and_back(pd.NA) is pd.NA


def test_a_frame_with_other_objects_stays_with_the_answer() -> None:
    for values in ([object()], pd.period_range("2024", periods=2)):
        with pytest.raises(TypeError, match="Series"):
            _there_and_back(pd.Series(values))


@pytest.mark.parametrize(
    "data",
    [
        ["pd"],
        ["pd", "DataFrame"],
        ["pd", "Series", ["range", ["l", [None]], 0, 2, 1], ["a1000000000", ["l", [1, 2]]], None],
        ["pd", "Series", ["range", ["l", [None]], 0, 10**12, 1], ["int64", ["l", [1, 2]]], None],
        ["pd", "Series", ["range", ["l", [None]], 0, 2, 1], ["datetime64[ns, Nowhere/X]", [1, 2]], None],
        ["pd", "other", ["range", ["l", [None]], 0, 2, 1]],
    ],
)
def test_forged_frames_are_refused(data: Any) -> None:
    with pytest.raises(Exception) as found:  # noqa: PT011  whatever pandas raises
        decode(data, _handle)
    assert not isinstance(found.value, MemoryError)
