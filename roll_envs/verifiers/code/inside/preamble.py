"""Names that published rows take for granted, below the answer's own, so tests never find them there; and limits and
functions as public judges have them."""
# ruff: noqa: F401, F403, F405, I001, UP029
# mypy: disable-error-code="assignment"

from bisect import *
from collections import *
from copy import *
from functools import *
from heapq import *
from itertools import *
from math import *
from operator import *
from string import *
from typing import *

# Modules, and functions that are built in, come before those of the same name above.
import bisect
import collections.abc
import copy
import datetime
import fractions
import functools
import heapq
import importlib.util
import itertools
import json
import math
import operator
import random
import re
import string
import sys
import time
from builtins import *


class ListNode:
    """A linked list, as on LeetCode."""

    def __init__(self, val: Any = 0, next: Any = None) -> None:
        self.val, self.next = val, next


class TreeNode:
    """A binary tree, as on LeetCode."""

    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val, self.left, self.right = val, left, right


def raise_limits() -> None:
    """Let functions call themselves as deep, and integers be printed as long, as public judges do; and restore what
    Python had before 3.10."""
    sys.setrecursionlimit(50_000)
    sys.set_int_max_str_digits(50_000)
    vars(fractions).setdefault("gcd", math.gcd)
    vars(time).setdefault("clock", time.perf_counter)
    for name in collections.abc.__all__:
        vars(collections).setdefault(name, getattr(collections.abc, name))
    if (3, 12) <= sys.version_info < (3, 14):
        # Their functools.cache calls through C, where calls go a thousand deep at most, whatever the limit is.
        spec: Any = importlib.util.find_spec("functools")
        in_python = importlib.util.module_from_spec(spec)
        in_c, sys.modules["_functools"] = sys.modules["_functools"], None
        spec.loader.exec_module(in_python)
        sys.modules["_functools"] = in_c
        for name in ("cache", "lru_cache"):
            vars(functools)[name] = globals()[name] = vars(in_python)[name]
