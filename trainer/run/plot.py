"""Learning curves as PNG files: one run, or several seeds of one configuration. Reads run folders only."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roll_envs.errors import MissingExtraError, RollError
from trainer.run.evaluate import PhaseResult
from trainer.run.folder import read_metrics, write_atomic

Floats = NDArray[np.float64]

BLUE, ORANGE, GREY, INK = "#2f6fb5", "#d9622b", "#8a929c", "#22262b"
SUCCESS, RETURN = "rollout/success_rate", "rollout/return_mean"


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """What is drawn of one run; arrays have one entry per training step."""

    env_id: str
    seed: int
    steps: Floats
    success: Floats
    returns: Floats
    evaluation: tuple[PhaseResult, ...]
    """Held-out evaluations with the step they were measured at."""


def read_curve(folder: str | os.PathLike[str]) -> Curve:
    """Read metrics.jsonl and summary.json of a run. Raises RollError when the run has no summary yet."""
    path = Path(folder) / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        # A step whose episodes all failed has no success; a number that is not finite is a text.
        records = [r for r in read_metrics(folder, "train") if isinstance(r.get(SUCCESS), int | float)]
        return Curve(
            env_id=summary["env"],
            seed=summary["seed"],
            steps=np.array([r["step"] for r in records], dtype=float),
            success=np.array([r[SUCCESS] for r in records], dtype=float),
            returns=np.array([float(r.get(RETURN, "nan")) for r in records]),
            evaluation=tuple(PhaseResult(**phase) for phase in summary["phases"]),
        )
    except FileNotFoundError:
        raise RollError(f"{path} is missing: the run has not finished; finish it with roll-train resume") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RollError(f"{path} cannot be read ({error}); was it changed by hand?") from error


def plot_run(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Draw the learning curve of one run to ``out`` (default: ``learning_curve.png`` in its folder)."""
    return plot_runs([folder], out if out is not None else Path(folder) / "learning_curve.png")


def plot_runs(folders: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Draw one run: what was measured light, smoothed dark; or several seeds of one configuration: each run light,
    their mean dark, and the spread from lowest to highest."""
    curves = [read_curve(folder) for folder in folders]
    if not curves:
        raise RollError("no run folders to plot; give at least one")
    environments = sorted({curve.env_id for curve in curves})
    if len(environments) > 1:
        raise RollError(f"these runs are of several environments ({', '.join(environments)}); plot one at a time")
    seeds = ", ".join(str(curve.seed) for curve in sorted(curves, key=lambda c: c.seed))
    one = len(curves) == 1
    figure, (top, bottom) = _figure(
        environments[0], f"seed {seeds}" if one else f"mean and range of {len(curves)} seeds ({seeds})"
    )
    how = "smoothed" if one else "mean, range of seeds"
    _draw(top, [(c.steps, c.success) for c in curves], BLUE, f"training episodes ({how})")
    _draw(bottom, [(c.steps, c.returns) for c in curves], INK, None)
    length = max((float(c.steps.max()) for c in curves if c.steps.size), default=1.0)
    for i, curve in enumerate(curves):
        # Side by side, or the intervals of the seeds hide each other.
        shift = (i - (len(curves) - 1) / 2) * length * 0.008
        _draw_evaluation(top, curve.evaluation, labelled=i == 0, small=not one, shift=shift)
    if top.get_legend_handles_labels()[0]:
        top.legend(loc="lower right", fontsize=8, frameon=False, labelcolor=INK)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomic(out, picture.getvalue())
    return Path(out)


def _figure(title: str, subtitle: str) -> tuple[Any, tuple[Any, Any]]:
    """An empty figure: success above, return below, over the same steps."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("Plotting", "train") from error
    figure = Figure(figsize=(7.2, 4.8), dpi=150, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
    top.set_title(subtitle, loc="right", fontsize=9, color=GREY)
    top.set(ylabel="success", ylim=(-0.02, 1.02), yticks=[0, 0.25, 0.5, 0.75, 1])
    bottom.set(ylabel="return", xlabel="training step")
    bottom.locator_params(axis="y", nbins=3)
    bottom.margins(x=0.02)
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GREY)
        axes.tick_params(colors=INK, labelsize=8)
        axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, (top, bottom)


def _draw(axes: Any, measured: Sequence[tuple[Floats, Floats]], colour: str, label: str | None) -> None:
    """Steps and values of each run, and the mean of what is left of them after smoothing."""
    curves = [(steps, values, _smooth(values)) for steps, values in measured if steps.size]
    for steps, values, smooth in curves:
        axes.plot(steps, values if len(curves) == 1 else smooth, color=colour, alpha=0.25, linewidth=1)
    if curves:
        # Steps that all runs have measured.
        common = np.array(sorted(set.intersection(*(set(steps.tolist()) for steps, _, _ in curves))))
        stack = np.stack([np.interp(common, steps, smooth) for steps, _, smooth in curves])
        if len(curves) > 1:
            axes.fill_between(common, stack.min(axis=0), stack.max(axis=0), color=colour, alpha=0.12, linewidth=0)
        axes.plot(common, stack.mean(axis=0), color=colour, linewidth=2, label=label)


def _draw_evaluation(
    axes: Any, evaluation: Sequence[PhaseResult], *, labelled: bool, small: bool, shift: float
) -> None:
    """Held-out success with its intervals; the first and the last in numbers where there is room."""
    evaluation = [p for p in evaluation if p.tasks]
    if not evaluation:
        return
    step, success, low, high = np.array([(p.step, p.success, p.interval_low, p.interval_high) for p in evaluation]).T
    axes.errorbar(
        step + shift,
        success,
        # Rounding may put an end of the interval on the wrong side of the point.
        yerr=np.maximum(0, np.stack([success - low, high - success])),
        fmt="o",
        markersize=4 if small else 6,
        capsize=2 if small else 3,
        color=ORANGE,
        alpha=0.7 if small else 1.0,
        clip_on=False,
        zorder=5,
        label=f"held-out evaluation of {evaluation[0].tasks} tasks (95% interval)" if labelled else None,
    )
    if small:
        return
    for point, offset in ((evaluation[0], (8, -12)), (evaluation[-1], (-30, -14))):
        axes.annotate(
            f"{point.success:.2f}", (point.step, point.success), offset, textcoords="offset points",
            fontsize=8, fontweight="bold", color=ORANGE, annotation_clip=False,
        )  # fmt: skip


def _smooth(values: Floats) -> Floats:
    """Centred moving mean over about a tenth of the run (at least 5 steps); half as wide at the very ends."""
    half = max(2, values.size // 20)
    good = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(good, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(good)])
    index = np.arange(values.size)
    low, high = np.maximum(0, index - half), np.minimum(values.size, index + half + 1)
    seen = counts[high] - counts[low]
    return np.where(seen > 0, (sums[high] - sums[low]) / np.maximum(1, seen), np.nan)
