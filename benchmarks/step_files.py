"""How many files of the hub and the trainer a training step passes through: those with a function that runs in it.

    .venv/bin/python benchmarks/step_files.py [CONFIG] [key=value ...]

The second of two small steps is watched (configs/frozenlake_tiny.yaml unless another is named), in all threads, from
the first episode it collects to the end of its update. Files of the environment are listed apart: they are the user's.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["steps=2", "warm_start.steps=0", "evaluation.tasks=4", "rollout.groups_per_step=4", "rollout.group_size=4"]


def main(config: str, overrides: list[str]) -> None:
    from trainer.config.load import load_config
    from trainer.run import loop
    from trainer.run.folder import RunFolder
    from trainer.run.report import Report

    files: set[str] = set()
    watching = False
    collect, learn = loop._Run._collect, loop._Run._learn

    def profile(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and watching and name.startswith(str(ROOT)) and "/.venv/" not in name and name != __file__:
            files.add(name[len(str(ROOT)) + 1 :])

    def watched_collect(self: Any) -> Any:
        nonlocal watching
        watching = self.counters.steps == 1
        return collect(self)

    def watched_learn(self: Any, *given: Any) -> Any:
        nonlocal watching
        try:
            return learn(self, *given)
        finally:
            watching = False

    loop._Run._collect, loop._Run._learn = watched_collect, watched_learn  # type: ignore[method-assign]
    threading.setprofile(profile)
    sys.setprofile(profile)
    with (
        tempfile.TemporaryDirectory() as output,
        RunFolder.create(load_config(config, [*SMALL, f"output={output}", *overrides])) as folder,
    ):
        loop.train(folder.config, folder, Report.silent())
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    ours = sorted(name for name in files if name.startswith(("trainer/", "roll_envs/")))
    print(*ours, sep="\n")
    print(f"{len(ours)} files of the hub and the trainer; {len(files) - len(ours)} of the environment")


if __name__ == "__main__":
    named = sys.argv[1:2] and "=" not in sys.argv[1]
    main(sys.argv[1] if named else "configs/frozenlake_tiny.yaml", sys.argv[2 if named else 1 :])
