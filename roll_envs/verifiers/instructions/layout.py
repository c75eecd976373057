"""Instructions on how an answer is laid out: lists, marks, sections, JSON, beginnings and ends.

Public ids and arguments; see the package for deviations. Everything is read line by line or with ``str`` methods where
the original's patterns take quadratic time.
"""

from __future__ import annotations

import json
import re
from typing import Any

from roll_envs.verifiers.instructions.arguments import Arguments, Check, MakeCheck

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
# In this order: without its name a fence would leave "json" behind.
_FENCES = ("```json", "```Json", "```JSON", "```")


def number_placeholders(arguments: Arguments) -> Check:
    """At least ``num_placeholders`` texts in square brackets, each on one line."""
    wanted = arguments.whole("num_placeholders")
    return lambda text: sum(map(_brackets, text.split("\n"))) >= wanted


def _brackets(line: str) -> int:
    count = 0
    start = line.find("[")
    while start >= 0:
        end = line.find("]", start)
        if end < 0:
            break
        count += 1
        start = line.find("[", end)
    return count


def postscript(arguments: Arguments) -> Check:
    """``postscript_marker`` occurs, in any case; ``P.S.`` and ``P.P.S`` with a space between the letters, too."""
    marker = arguments.text("postscript_marker")
    pattern = re.compile(_POSTSCRIPTS.get(marker) or re.escape(marker.lower()))
    return lambda text: pattern.search(text.lower()) is not None


def number_bullet_lists(arguments: Arguments) -> Check:
    """Exactly ``num_bullets`` lines that begin with ``*`` (not ``**``) or ``-``."""
    wanted = arguments.whole("num_bullets")
    return lambda text: _bullets(text) == wanted


def _bullets(text: str) -> int:
    lines = text.split("\n")
    found = 0
    for place, line in enumerate(lines):
        bare = line.lstrip()
        # The original's pattern is ^\s*\*[^\*].*$, whose [^*] matches a newline too: a lone star counts where a line
        # follows.
        starred = bare.startswith("*") and (bare[1:2] != "*" if len(bare) > 1 else place < len(lines) - 1)
        found += starred or bare.startswith("-")
    return found


def constrained_response(text: str) -> bool:
    """One of three fixed sentences occurs: my answer is yes, no, or maybe."""
    return any(option in text for option in OPTIONS)


def number_highlighted_sections(arguments: Arguments) -> Check:
    """At least ``num_highlights`` texts between ``*`` or ``**``, each on one line."""
    wanted = arguments.whole("num_highlights")
    return lambda text: sum(map(_highlights, text.split("\n"))) >= wanted


def _highlights(line: str) -> int:
    """Number of texts between single stars, each of which closes at most one text, and between double stars."""
    between = line.split("*")[1:-1]
    single = sum(bool(part.strip()) for part in between[::2])
    # Splitting at "*" turns "**" into an empty part: count texts between two empty parts.
    double, place = 0, 0
    while place + 2 < len(between):
        if between[place] == "" and between[place + 2] == "":
            double += bool(between[place + 1].strip())
            place += 4
        else:
            place += 1
    return single + double


def multiple_sections(arguments: Arguments) -> Check:
    """At least ``num_sections`` times ``section_spliter`` with a number."""
    # The misspelt name is that of the public data.
    pattern = re.compile(rf"{re.escape(arguments.text('section_spliter'))}\s?\d+")
    wanted = arguments.whole("num_sections")
    return lambda text: sum(1 for _ in pattern.finditer(text)) >= wanted


def json_format(text: str) -> bool:
    """The answer is JSON, in a fence or not."""
    bare = text.strip()
    for fence in _FENCES:
        bare = bare.removeprefix(fence)
    try:
        json.loads(bare.removesuffix("```").strip(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def title(text: str) -> bool:
    """A title in double angular brackets, on one line."""
    return any(map(_has_title, text.split("\n")))


def _has_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start < end - 2 and bool(line[start:end].lstrip("<").rstrip(">").strip())


def two_responses(text: str) -> bool:
    """Two answers that differ, with ``******`` between them."""
    parts = [part.strip() for part in text.split("******")]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


def repeat_prompt(arguments: Arguments) -> Check:
    """The answer begins with ``prompt_to_repeat``, in any case."""
    wanted = arguments.text("prompt_to_repeat").lower()
    return lambda text: text.strip().lower().startswith(wanted)


def end_checker(arguments: Arguments) -> Check:
    """The answer ends with ``end_phrase``, in any case; quotes around the answer aside."""
    wanted = arguments.text("end_phrase").lower()
    return lambda text: text.strip().strip('"').lower().endswith(wanted)


def quotation(text: str) -> bool:
    """The answer stands in double quotation marks."""
    bare = text.strip()
    return len(bare) > 1 and bare[0] == bare[-1] == '"'


def no_comma(text: str) -> bool:
    """No comma."""
    return "," not in text


LAYOUT: dict[str, MakeCheck] = {
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
}
LAYOUT_PLAIN: dict[str, Check] = {
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "startend:quotation": quotation,
    "punctuation:no_comma": no_comma,
}
