"""Names that published rows take for granted; they stand below the answer's own, so tests never find them there."""
# ruff: noqa: F401, F403, F405

import bisect
import collections
import functools
import heapq
import itertools
import math
import operator
import random
import re
import string
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, nlargest, nsmallest
from itertools import accumulate, chain, combinations, count, groupby, permutations, product
from math import ceil, comb, floor, gcd, inf, sqrt
from typing import *


class ListNode:
    """A linked list, as on LeetCode."""

    def __init__(self, val: Any = 0, next: Any = None) -> None:
        self.val, self.next = val, next


class TreeNode:
    """A binary tree, as on LeetCode."""

    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val, self.left, self.right = val, left, right
