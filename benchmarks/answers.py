"""How many replies with a known final answer are read, by the kind of writing.

    python benchmarks/answers.py [--each N] [--seed N]

The replies are those of the tests, with other contents for another seed, and the sets of ``written_replies_*.tsv``,
each written by somebody who had seen neither the rules nor the other sets. "other" counts replies that were read as an
answer that they do not give, also of those that give none; the rest of those not read gave none.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "roll_envs"))

from answer_replies import SETS, read_as, replies, written

from roll_envs.verifiers import Score, make_verifier
from roll_envs.verifiers.choice import read_choice
from roll_envs.verifiers.mathematics.final import final_expression


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=9, help="replies of each frame (default 9)")
    parser.add_argument("--seed", type=int, default=1, help="other seeds give other contents (default 1)")
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


if __name__ == "__main__":
    main()
