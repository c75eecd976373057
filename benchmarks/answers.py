"""How many replies with a known final answer are read, by the kind of writing.

    python benchmarks/answers.py [--each N] [--seed N] [--math-verify]

The replies are those of the tests, with other contents for another seed, and the sets of ``written_replies_*.tsv``,
each written by somebody who had seen neither the rules nor the other sets. "other" counts replies that were read as an
answer that they do not give, also of those that give none; the rest of those not read gave none.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from pathlib import Path

import math_verify

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "roll_envs"))

from answer_replies import SETS, Written, read_as, replies, written

from roll_envs.verifiers import Score, make_verifier
from roll_envs.verifiers.choice import read_choice
from roll_envs.verifiers.mathematics.final import final_expression


def accepts(one: Written) -> bool:
    """Whether math-verify, called plainly, takes a reply for one that gives its label."""
    label = math_verify.parse(f"${one.answer.removeprefix('!')}$")
    return bool(math_verify.verify(label, math_verify.parse(one.text)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=9, help="replies of each frame (default 9)")
    parser.add_argument("--seed", type=int, default=1, help="other seeds give other contents (default 1)")
    parser.add_argument("--math-verify", action="store_true", help="the sets of mathematics also by math-verify")
    options = parser.parse_args()
    math = make_verifier("math")
    count, read, other = Counter[str](), Counter[str](), Counter[str]()
    for one in replies(options.each, options.seed):
        count[one.kind] += 1
        if one.task == "choice":
            letters = read_choice(one.text, "ABCDE")
            right, something = letters == {one.answer}, bool(letters)
        else:
            verdict = math(one.text, one.answer)
            right, something = isinstance(verdict, Score) and verdict.passed, bool(final_expression(one.text))
        read[one.kind] += right
        other[one.kind] += something and not right
    print("| kind | replies | read | other |\n|---|---|---|---|")
    for kind in count:
        print(f"| {kind} | {count[kind]} | {read[kind]} | {other[kind]} |")
    print(f"| all | {count.total()} | {read.total()} ({read.total() / count.total():.1%}) | {other.total()} |")
    print("\n| set | replies | read | other |\n|---|---|---|---|")
    for name in SETS:
        for task in ("choice", "math"):
            found = [read_as(one, math) for one in written(f"written_replies_{name}.tsv") if one.task == task]
            right, wrong = found.count("right"), found.count("other")
            print(f"| {name}, {task} | {len(found)} | {right} ({right / len(found):.1%}) | {wrong} |")
    if not options.math_verify:
        return
    logging.disable(logging.CRITICAL)
    print("\n| set | replies | right by math-verify | wrong answers that it accepts |\n|---|---|---|---|")
    for name in SETS:
        rows = [one for one in written(f"written_replies_{name}.tsv") if one.task == "math"]
        given = [not one.answer.startswith("!") for one in rows]
        accepted = list(map(accepts, rows))
        right = sum(a == b for a, b in zip(given, accepted, strict=True))
        wrong = sum(b and not a for a, b in zip(given, accepted, strict=True))
        print(f"| {name} | {len(rows)} | {right} ({right / len(rows):.1%}) | {wrong} |")


if __name__ == "__main__":
    main()
