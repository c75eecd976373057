"""Runs inside a notebook's session, before its cells: collects what Jupyter would display. Standard library only.

A display is a dict from MIME type to content (images in base64), as in Jupyter's ``display_data`` messages. Collected
are values of last expressions, arguments of ``display``, and figures of matplotlib: those that ``show`` is called for,
and those that are open at the end of a cell.
"""

from __future__ import annotations

import base64
import builtins
import importlib.machinery
import io
import json
import os
import sys
import traceback
import types
from typing import Any

_KINDS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_json_": "application/json",
}
_shown: list[dict[str, Any]] = []


def display(*values: Any) -> None:
    """Display each value in every form that it has."""
    _shown.extend(map(_bundle, values))


def _bundle(value: Any) -> dict[str, Any]:
    found = {"text/plain": repr(value)}
    for name, kind in _KINDS.items():
        # On the type: a class whose instances have the method has no such form itself.
        method = getattr(type(value), name, None)
        form = method(value) if method is not None else None
        form = form[0] if isinstance(form, tuple) else form  # the second part would be metadata
        if form is not None:
            found[kind] = base64.b64encode(form).decode() if isinstance(form, bytes) else form
    if hasattr(value, "savefig") and hasattr(value, "axes"):
        image = io.BytesIO()
        value.savefig(image, format="png", bbox_inches="tight")
        found["image/png"] = base64.b64encode(image.getvalue()).decode()
    return found


def _hook(value: Any) -> None:
    if value is not None:
        builtins._ = value  # type: ignore[attr-defined]
        display(value)


def show(*_: Any, **__: Any) -> None:
    """Display all open figures, and close them; called by ``matplotlib.pyplot.show``."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        try:
            for number in pyplot.get_fignums():
                display(pyplot.figure(number))
        finally:
            pyplot.close("all")


def take() -> None:
    """Print the displays since the last call as JSON."""
    try:
        show()
    except Exception:  # a figure that cannot be drawn
        traceback.print_exc()
    print(json.dumps(_shown, default=repr))
    _shown.clear()


class _Backend:
    """Makes the backend's module when matplotlib, which is imported by then, asks for it."""

    name = "notebook_backend"

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == self.name else None  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        vars(module).update(FigureCanvas=FigureCanvasAgg, show=show)


def install() -> None:
    """Begin to collect."""
    module = types.ModuleType("notebook_displays")
    module.take = take  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    sys.meta_path.insert(0, _Backend())
    os.environ.setdefault("MPLBACKEND", f"module://{_Backend.name}")
    sys.displayhook = _hook
    builtins.display = display  # type: ignore[attr-defined]
