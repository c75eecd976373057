"""Normalises notation: LaTeX commands and Unicode signs with the same meaning become one spelling.

Signs that ``structure`` parses become single characters: ``⦃`` and ``⦄`` are braces of a set, ``¤`` is a dollar sign.
"""

from __future__ import annotations

import re

MONEY = "¤"
"""Stands for a dollar sign that means money."""

_SIGNS = {
    "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ",
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≠": "≠", "≦": "≤", "≧": "≥", "⩽": "≤", "⩾": "≥", "²": "^{2}",
    "³": "^{3}", "⁴": "^{4}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "º": "°", "\u00a0": " ",
    "\u2009": " ", "\u202f": " ", "’": "'", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "％": "%",
}  # fmt: skip

_COMMANDS = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "displaystyle": "", "textstyle": "", "limits": "",
    "left": "", "right": "", "big": "", "Big": "", "bigg": "", "Bigg": "", "bigl": "", "bigr": "", "Bigl": "",
    "Bigr": "", "mathrm": r"\text", "textrm": r"\text", "textbf": r"\text", "textit": r"\text", "mbox": r"\text",
    "rm": r"\text", "hbox": r"\text", "textup": r"\text", "textsf": r"\text", "emph": r"\text", "mathbf": r"\text",
    "boldsymbol": "", "bm": "", "quad": " ", "qquad": " ", "leq": "≤", "le": "≤", "leqslant": "≤", "geq": "≥",
    "ge": "≥", "geqslant": "≥", "lt": "<", "gt": ">", "neq": "≠", "ne": "≠", "cup": "∪", "cap": "∩", "setminus": "∖",
    "backslash": "∖", "in": "∈", "pm": "±", "emptyset": "∅", "varnothing": "∅", "lbrace": "⦃", "rbrace": "⦄",
    "lbrack": "[", "rbrack": "]",
    "langle": "(", "rangle": ")", "degree": "°", "degrees": "°", "infin": r"\infty ", "R": "ℝ", "Reals": "ℝ",
    "reals": "ℝ", "lor": " or ", "vee": " or ", "land": " and ", "wedge": " and ", "euro": "€", "pounds": "£",
    "textdollar": MONEY, "cdotp": r"\cdot ", "lvert": "|", "rvert": "|", "mid": "|", "colon": ":", "thinspace": " ",
    "space": " ", "exp": r"\exp", "imath": "i", "prime": "'",
}  # fmt: skip

_COMMAND = re.compile(r"\\([A-Za-z]+)(?![A-Za-z])")
_SPACES = re.compile(r"\\[,;:!>]|\\ |~|\\\n")
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\circ(?![A-Za-z])")
_MATHBB = re.compile(r"\\(?:mathbb|mathbf|bf|Bbb)\s*\{?\s*R\s*\}?(?![A-Za-z])")
# \frac12 and \frac1{2} mean \frac{1}{2}.
_FRAC = re.compile(r"\\frac\s*(?:(\d)\s*(\d)|(\d)\s*(?=\{)|(?=\{))")
_FRAC_TAIL = re.compile(r"(\\frac\{[^{}]*\})\s*(\d)")
_SQRT = re.compile(r"\\sqrt\s*(\d|[A-Za-z])(?![A-Za-z])")
_INFINITY = re.compile(r"(?<![A-Za-z\\])(?:infinity|infty|oo)(?![A-Za-z])", re.IGNORECASE)
_PLAIN_ROOT = re.compile(r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)")
_PLAIN_ROOT_OF = re.compile(r"(?<![A-Za-z\\])sqrt\s*(\d+|[A-Za-z])(?![A-Za-z])")
_PLAIN_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_PLAIN_FUNCTION = re.compile(r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan)(?=[\s(\d^_])")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d{1,6})(?![\w.])")
_LOG_E = re.compile(r"\\log\s*_\s*(?:\{\s*e\s*\}|e)(?![A-Za-z])")
_POWER = re.compile(r"\*\*")
_GROUPS = re.compile(r"(?<=\d)\{,\}(?=\d{3})")
_EDGE = " \t\r\n,;:"


def tidy(text: str) -> str:
    r"""``tidy(r"\left( \dfrac12, 3\% \right)$")`` is ``r"( \frac{1}{2}, 3% )"``."""
    for sign, plain in _SIGNS.items():
        if sign in text:
            text = text.replace(sign, plain)
    text = _money(text)
    text = _GROUPS.sub(",", text)
    text = text.replace(r"\{", "⦃").replace(r"\}", "⦄").replace(r"\%", "%").replace(r"\|", "|").replace(r"\#", "#")
    text = text.replace(r"\(", "").replace(r"\)", "").replace(r"\[", "").replace(r"\]", "")
    # A line break of a matrix is kept; other escaped spaces are spaces.
    text = _SPACES.sub(" ", text.replace("\\\\", "⏎")).replace("⏎", r"\\")
    text = _DEGREE.sub("°", _MATHBB.sub("ℝ", text))
    text = _COMMAND.sub(_command, text)
    text = _plain(text)
    text = _LOG_E.sub(r"\\ln ", text)
    text = _FRAC.sub(_braced, text)
    text = _FRAC_TAIL.sub(r"\1{\2}", text)
    text = _SQRT.sub(r"\\sqrt{\1}", text)
    text = text.replace("<=", "≤").replace(">=", "≥").replace("!=", "≠").replace("==", "=").replace("+-", "±")
    # A full stop at the end closes the sentence; one at the beginning belongs to a number (.5).
    text = text.rstrip(_EDGE + ".").lstrip(_EDGE)
    return "∅" if re.fullmatch(r"⦃\s*⦄|\{\s*\}", text) else text


def _plain(text: str) -> str:
    """Turn plain-text notation (``sqrt(2)``, ``2e3``, ``pi``) into LaTeX."""
    text = _SCIENTIFIC.sub(r"\1\\cdot 10^{\2}", text)
    text = _POWER.sub("^", text)
    text = _INFINITY.sub(r"\\infty ", text)
    text = _PLAIN_ROOT.sub(r"\\sqrt{\1}", text)
    text = _PLAIN_ROOT_OF.sub(r"\\sqrt{\1}", text)
    text = _PLAIN_PI.sub(r"\\pi ", text)
    return _PLAIN_FUNCTION.sub(r"\\\1", text)


def _money(text: str) -> str:
    r"""``\$`` is money, and so is a single ``$`` before a number; the rest only shows where mathematics begins."""
    text = text.replace(r"\$", MONEY)
    if text.count("$") == 1:
        text = re.sub(r"\$(?=\s*[\d.])", MONEY, text)
    return text.replace("$", "")


def _command(match: re.Match[str]) -> str:
    known = _COMMANDS.get(match[1])
    if known is None:
        return match[0]
    return known


def _braced(match: re.Match[str]) -> str:
    if match[1]:
        return rf"\frac{{{match[1]}}}{{{match[2]}}}"
    return rf"\frac{{{match[3]}}}" if match[3] else r"\frac"
