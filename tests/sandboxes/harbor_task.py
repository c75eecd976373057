"""A small task in Harbor's format: the sum of three numbers."""

from __future__ import annotations

from pathlib import Path

from docker_place import IMAGE

TOML = """
schema_version = "1.1"
[task]
name = "tests/sums"
[verifier]
timeout_sec = 20.0
env = {WORTH = "1"}
[environment]
cpus = 1
memory_mb = 256
env = {GREETING = "it's here"}
"""
# Half of it for a sum that is there, all of it for one that is right.
TEST = """
cd "$(dirname "$0")"
[ -e /app/total.txt ] || { echo 0 > /logs/verifier/reward.txt; exit 1; }
[ "$(cat /app/total.txt)" = "$(cat expected/total)" ] || WORTH=0.5
echo $WORTH > /logs/verifier/reward.txt
"""
SOLVE = 'set -e\ntotal=0\nfor n in $(cat numbers.txt); do total=$((total + n)); done\necho "$total" > total.txt\n'


def task(folder: Path, *, toml: str = TOML, test: str = TEST, image: str = IMAGE, **files: str) -> Path:
    """A task's folder: the sum of three numbers."""
    texts = {
        "task.toml": toml,
        "instruction.md": "Write the sum of the numbers in numbers.txt to total.txt.\n",
        "environment/Dockerfile": f"FROM {image}\nUSER root\nWORKDIR /app\nCOPY numbers.txt .\n",
        "environment/numbers.txt": "1 2 3\n",
        "tests/test.sh": test,
        "tests/expected/total": "6\n",
        "solution/solve.sh": SOLVE,
        **files,
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
