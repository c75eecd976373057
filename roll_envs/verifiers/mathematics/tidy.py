"""Normalises notation: LaTeX commands and Unicode signs with the same meaning become one spelling.

Signs that ``structure`` parses become single characters: ``⦃`` and ``⦄`` are braces of a set, ``¤`` is a dollar sign.
"""

from __future__ import annotations

import re
import unicodedata

from roll_envs.verifiers.mathematics.plain_numbers import in_digits

MONEY = "¤"
"""Stands for a dollar sign that means money."""

_SIGNS: dict[int, str] = str.maketrans({
    "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ",
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≠": "≠", "≦": "≤", "≧": "≥", "⩽": "≤", "⩾": "≥",
    "⟨": "(", "⟩": ")", "∠": r"\angle ", "º": "°",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "’": "'", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "、": ",",
    "。": ".", "或": " or ", "和": " and ", **{chr(0xFEE0 + code): chr(code) for code in range(0x21, 0x7F)},
})  # fmt: skip

_COMMANDS = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "displaystyle": "", "textstyle": "", "limits": "",
    "left": "", "right": "", "big": "", "Big": "", "bigg": "", "Bigg": "", "bigl": "", "bigr": "", "Bigl": "",
    "Bigr": "", "mathrm": r"\text", "textrm": r"\text", "textbf": r"\text", "textit": r"\text", "mbox": r"\text",
    "rm": r"\text", "hbox": r"\text", "textup": r"\text", "textsf": r"\text", "emph": r"\text", "mathbf": r"\text",
    "boldsymbol": "", "bm": "", "textnormal": r"\text", "leq": "≤", "le": "≤", "leqslant": "≤", "geq": "≥",
    "ge": "≥", "geqslant": "≥", "lt": "<", "gt": ">", "neq": "≠", "ne": "≠", "cup": "∪", "cap": "∩", "setminus": "∖",
    "backslash": "∖", "in": "∈", "pm": "±", "emptyset": "∅", "varnothing": "∅", "lbrace": "⦃", "rbrace": "⦄",
    "lbrack": "[", "rbrack": "]",
    "langle": "(", "rangle": ")", "degree": "°", "degrees": "°", "infin": r"\infty ", "R": "ℝ", "Reals": "ℝ",
    "reals": "ℝ", "lor": " or ", "vee": " or ", "land": " and ", "wedge": " and ", "euro": "€", "pounds": "£",
    "textdollar": MONEY, "cdotp": r"\cdot ", "lvert": "|", "rvert": "|", "mid": "|", "colon": ":", "thinspace": " ",
    "space": " ", "exp": r"\exp", "imath": "i", "prime": "'", "checkmark": "", "Omega": "Ω", "approx": "≈",
    "underline": "",
}  # fmt: skip

_COMMAND = re.compile(r"\\([A-Za-z]+)(?![A-Za-z])")
_BEFORE_COMMANDS = (
    # Escaped once more than LaTeX has it; a line break before a command has three backslashes.
    (
        r"(?<!\\)\\\\(?=(?:[dt]?frac|sqrt|text|left|right|begin|end|pi|infty|cup|cdot|times|circ|[lg]eq?|pm)(?![A-Za-z]))",
        r"\\",
    ),
    (r"\\q?quad", " "),
    (r"(?<=\d)(?:\s?\{,\s?\}|,\\!)\s*(?=\d{3})", ","),
    (r"(?<=\d)\{:\}(?=\d)", ":"),
    (r"(\d+)⁄(\d+)", r"\\frac{\1}{\2}"),
    (r"\\\{", "⦃"),
    (r"\\\}", "⦄"),
    (r"\\([%|#])", r"\1"),
    (r"\\\(", ""),
    (r"\\\)", ""),
    (r"\\\[", ""),
    (r"\\\]", ""),
    # A line break of a matrix is kept; other escaped spaces are spaces.
    (r"\\\\", "⏎"),
    (r"\\[,;:!>]|\\ |~|\\\n", " "),
    ("⏎", r"\\\\"),
    (r"\\(?:mathbb|mathbf|bf|Bbb)\s*\{?\s*R\s*\}?(?![A-Za-z])", "ℝ"),
    (r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ\s*|\\circ(?![A-Za-z])", "°"),
)
"""Patterns and what they become, in order."""
_AFTER_COMMANDS = (
    # Plain notation: 2e3, **, oo, np.sqrt(2), sqrt2, frac{1}{2}, 1./3, pi, sin x.
    (r"(?<![\w.\\])(?:np|numpy|math)\.(?=[a-z])", ""),
    (r"(?<![A-Za-z\\])(sqrt|frac)(?=\s*\{)", r"\\\1"),
    (r"(?<=\d)\.(?=\s*/\s*\d)", ""),
    (r"(?<![\w.])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d{1,6})(?![\w.])", r"\1\\cdot 10^{\2}"),
    (r"\*\*", "^"),
    (r"(?i)(?<![A-Za-z\\])(?:infinity|infty|oo)(?![A-Za-z])", r"\\infty "),
    (r"(?<![A-Za-z])\\?sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"(?<![A-Za-z\\])sqrt\s*(\d+|[A-Za-z])(?![A-Za-z])", r"\\sqrt{\1}"),
    (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
    (r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan)(?=[\s(\d^_])", r"\\\1"),
    (r"\\log\s*_\s*(?:\{\s*e\s*\}|e)(?![A-Za-z])", r"\\ln "),
    # \frac12 and \frac1{2} mean \frac{1}{2}.
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\frac\s*(\d)\s*(?=\{)", r"\\frac{\1}"),
    (r"\\frac\s*(?=\{)", r"\\frac"),
    (r"(\\frac\{[^{}]*\})\s*(\d)", r"\1{\2}"),
    (r"\\frac\s*(\\pi)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\sqrt\s*(\d|[A-Za-z])(?![A-Za-z])", r"\\sqrt{\1}"),
    # The whole of a repeating decimal, units in a fraction or with an exponent, what introduces an answer.
    (r"\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?", r"\\overline{\1\2\3}"),
    (r"\.(\d{0,9}?)(\d{1,6}?)\2{2,}+\s*(?:\\[lc]?dots|\.\.\.|…)", r".\1\\overline{\2}"),
    (r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}", r"\\text{\1/\2}"),
    (r"(\\text\s*\{[^{}]*)\^\{([+-]?\d)\}", r"\1^\2"),
    (r"°\s*\\text\s*\{\s*([CF])\s*\}", r"°\1"),
    (r"\\text\s*\{\s*([¤€£%])\s*\}", r"\1"),
    (r"^\s*USD\s*(?=[\d.])", MONEY),
    (r"^\s*Rs\.?\s*(?=\d)", "₹"),
    (r"^\s*R¤", MONEY),
    (r"(?i)(?<=\d)\s*([ap])\.\s?m\b", r" \1m"),
    (r"(?<=\d)\s*(?:\^\s*)?\{?(?:\\text\s*\{)?(?:st|nd|rd|th)\}*\.?$", ""),
    (r"(?<!:)\b(\d{1,2})\s+o'clock", r"\1:00"),
    (r"(?<=\d)\s*x\s*(?=10\s*\^)", r"\\times "),
    (r"(?<=\d)\s+remainder\s+(?=\d)", " R "),
    (r"^\s*(\d+)\s*(?:\bto\b|\\text\s*\{\s*to\s*\})\s*(\d+)\s*$", r"\1:\2"),
    # Units in brackets, as in "8 (apples)"; indices that are words; vectors along the axes; primes.
    (r"(?<=\d)(?:\s*\((\\text\s*\{[^()]*|[⺀-鿿]+)|\s\(([A-Za-z]{3}[A-Za-z ]*))\)$", r" \1\2"),
    (
        r"_\s*\{?\s*\\(?:text\s*\{\s*([A-Za-z]+)\s*\}|(max|min|odot|oplus|star|perp|parallel)(?![A-Za-z]))\s*\}?",
        r"_{\1\2}",
    ),
    (r"\\(?:vec|hat)\s*\{?\s*([ijk])\s*\}?(?![A-Za-z])", r"\\text{\1}"),
    (r"\^\s*\{?\s*('+)\s*\}?", r"\1"),
    (r"\\mu\s*\\text\s*\{\s*", r"\\text{µ"),
    (
        r"^\s*(?:(?:=|≈|\\approx(?![a-z])|(?:\\text\s*\{\s*)?(?:about|approximately)\b[\s}]*)\s*|\\text\s*\{[^{}]*(?::|\bis)\s*\}\s*(?=[^\s}]))",
        "",
    ),
    (r"\{([^{}]*)\\choose(?![a-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
    (r"(?:\\text\s*\{\s*)?all real(?:s| numbers) except(?: for)?\s*\}?\s*(?:[a-z]\s*=\s*)?([^{},=]+)$", r"ℝ∖⦃\1⦄"),
    (r"\\pmod\s*\{?\s*(\d+)\s*\}?", r"\\bmod \1"),
    ("<=", "≤"),
    (">=", "≥"),
    ("!=", "≠"),
    ("==", "="),
    (r"\+-", "±"),
)
_BEFORE, _AFTER = ([(re.compile(p), w) for p, w in table] for table in (_BEFORE_COMMANDS, _AFTER_COMMANDS))
_EDGE = " \t\r\n,;:?"


def tidy(text: str) -> str:
    r"""``tidy(r"\left( \dfrac12, 3\% \right)$")`` is ``r"( \frac{1}{2}, 3% )"``."""
    text = re.sub(r"[⁰¹²³⁴-⁹⁻]+", lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = re.sub(r"[₀-₉]+", lambda match: f"_{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = re.sub(r"√(\d+)", r"\\sqrt{\1}", text)
    text = re.sub(r"[½¼¾⅐-⅞]", lambda match: f" {unicodedata.normalize('NFKC', match[0])}", text)
    # 1.234,50 €, 1.234.567: dots between groups of digits.
    dotted = r"(?<![\d.,])\d{1,3}(?:(?:\.\d{3})+(?:,\d\d?(?![\d,])|(?=\s?(?:€|[Ee]uros?\b)))|(?:\.\d{3}){2,}(?![\d.,]))"
    text = re.sub(dotted, lambda match: match[0].replace(".", "").replace(",", "."), text)
    text = _money(text.translate(_SIGNS))
    for pattern, written in _BEFORE:
        text = pattern.sub(written, text)
    text = _COMMAND.sub(lambda match: _COMMANDS.get(match[1], match[0]), text)
    for pattern, written in _AFTER:
        text = pattern.sub(written, text)
    # A full stop at the end closes the sentence; one at the beginning belongs to a number (.5).
    text = text.rstrip(_EDGE + ".").lstrip(_EDGE)
    number = re.sub(r"^\\text\s*\{([^{}]*)\}$", r"\1", text)
    number = in_digits(re.sub(r"(?i)^(?:an? )?(?=(?:half|third|quarter)$)", "one ", number))
    text = number if re.fullmatch(r"-?\d+(?:/\d+)?(?:°| (?:hundred|thousand|[mb]illion))?", number) else text
    return "∅" if re.fullmatch(r"⦃\s*⦄|\{\s*\}", text) else text


def _money(text: str) -> str:
    r"""``\$`` is money, and so is a single ``$`` before a number; the rest only shows where mathematics begins."""
    text = text.replace(r"\$", MONEY)
    if text.count("$") == 1:
        text = re.sub(r"\$(?=\s*[\d.])", MONEY, text)
    return text.replace("$", "")
