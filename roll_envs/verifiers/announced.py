"""Where a text announces its answer: "the answer is", "Answer:", ``####``, and their like in other languages."""

from __future__ import annotations

from typing import NamedTuple

from roll_envs.verifiers.phrases import patterns

# What follows is the answer.
_LANGUAGES = {
    "cjk": r"(?:(?:最终|最終|正确|正確)?(?:的)?答案(?:应该|應該|应|應)?(?:是|为|為|选|選)?|"
    r"(?:正确|正確)的?(?:选项|選項)?[是为為]|(?:故|应|應|因此|所以)?(?:选择|選擇|选|選)(?:项|項)?(?![错误])|答え|正解|최종\s*답|정답|답)\s*(?:は|은|는)?\s*[:：】]?",
    "es": r"\b(?:respuesta|opci[oó]n)(?:\s+(?:correcta|final))?(?:\s+es\b|\s*:)",
    "fr": r"\br[ée]ponse(?:\s+(?:correcte|finale))?\s*(?:est(?:\s+donc)?\b|:)",
    "de": r"\b(?:antwort|lösung)\s*(?:ist\b|lautet\b|:(?! *\n))",
    "pt": r"\bresposta(?:\s+(?:correta|certa|final))?\s*(?:é\b|:)",
    "it": r"\brisposta(?:\s+(?:corretta|finale))?\s*(?:è|:)",
    "ru": r"\bответ\s*(?:[:—–-]|это\b|равен\b)",
    "vi": r"\bđáp\s+(?:án|số)(?:\s+đúng)?\s*(?:là\b|:)",
    "id": r"\b(?:jawaban(?:nya)?|opsi|pilihan)(?:\s+(?:akhir|yang\s+(?:benar|tepat)))?\s*(?:adalah\b|:)?",
    "nl": r"\b(?:antwoord|keuze)\s*(?:is\b|:)",
    "pl": r"\bodpowiedź\s*(?:to\b|:)",
    "tr": r"\b(?:doğru\s+)?cevap\s*:?",
    "ar": (
        r"(?:الإجابة|الجواب|الخيار(?=\s+(?:الصحيح|هو|:)))(?:\s+(?:الصحيحة|الصحيح|النهائية|النهائي))?\s*(?:هي|هو|:)?"
    ),
    "bn": r"উত্তর\s*(?:হল|:)",
    "hi": r"(?:(?:सही\s+)?उत्तर(?:\s+विकल्प)?|सही\s+विकल्प)(?:\s+है)?\s*:?",
}
_ANNOUNCES = {
    "answer": (
        r"(?i)(?-i:(?<![A-Za-z])(?=[^\W\d_eghiknqsu-zEGHIKNQSU-Z]))(?:"  # for speed: none begins with these letters
        r"(?:(?:final|correct|best|right|matching|selected|chosen)[\s_]+(?:answer|result|choice|option)(?:\s+here)?"
        r"|(?<!long )(?<!longer )\banswer|\bans)\**\s*"
        # For remarks such as "(in cm)".
        r"(?:\([^()\n]{0,40}\)\s*)?(?:to\s+(?:the|this)\s+(?:[a-z]+\s+)?(?:question|problem)\s+)?"
        r"(?:(?:is|are|was|would\s+be|must\s+be|should\s+be|will\s+be)\b(?:\s+{SURELY})?"
        r"(?!\s+{JUDGED}\b)"
        r"\s*:?|:|\](?= )|\|(?=\s)|=>?|[-–—](?=\s|[A-J]\b)|\$?\\boxed)\s*"
        # A call: submit_answer(choice="D").
        r"|(?:answer|choice|option|finish)[(=\[](?:\w{1,20}=)?(?=[\"']?[A-J]\b)"
        r"|{FOREIGN}\s*)"
    ),
    "heading": (
        r"(?m)^#### *|(?<=\S )#### ?(?=[-$\d])"
        r"|^\W{0,4}(?i:(?:the )?(?:final )?answer(?:\W{0,3}$|\.\**(?= ))|result\W{0,3}:)"
    ),
    "supposed": r"(?i)\b(?:if|whether|suppose|supposing|assume|assuming|unless|check|verify)\s+(?:\w+\s+){0,2}$",
    "if": r"(?i)\bif\b[^.\n]*$",
}
_SURELY = "therefore thus then simply just clearly indeed definitely probably likely exactly approximately about"
_JUDGED = "correct right wrong incorrect confirmed verified consistent positive negative reasonable"
_SAYS = patterns(
    _ANNOUNCES, parts={"FOREIGN": f"(?:{'|'.join(_LANGUAGES.values())})"}, words={"SURELY": _SURELY, "JUDGED": _JUDGED}
)
_NOT_CHOSEN = ("不", "非", "没", "未")
_DISPLAYS = {"$$": "$$", "\\[": "\\]"}
_OPENING_CHARS = 20
"""Of a line that opens mathematics."""
_MOST = 50
"""Announcements that are read, from the end."""


class Announced(NamedTuple):
    """What follows "the answer is", to the end of its line, and where it begins."""

    text: str
    start: int


def announced(text: str) -> list[Announced]:
    """What follows each "the answer is", "Answer:", ``####`` or their like in other languages, in order.

    An empty line after the words is passed over ("Answer:", then the answer below). A supposition ("if the answer is")
    announces nothing.
    """
    found = []
    for match in [*_SAYS["answer"].finditer(text), *_SAYS["heading"].finditer(text)]:
        # A box is read by `boxed`; one that got here never closes.
        if match.group().endswith("boxed") or text[match.start() - 1 : match.start()] in _NOT_CHOSEN:
            continue
        before = text[max(0, match.start() - 80) : match.start()]
        if _SAYS["supposed"].search(before[-40:]) or ("would" in match.group() and _SAYS["if"].search(before)):
            continue
        if before.endswith("(") and len(match.group().split()) == 1 and ":" not in match.group():
            continue  # "(opción C)" only mentions it
        at = match.end()
        while at < len(text) and text[at] in " \t\r\n*_#":
            at += 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        closing = _DISPLAYS.get(text[at:end].strip()) if end - at < _OPENING_CHARS else None
        if closing is not None and text.find(closing, end, end + 2000) >= 0:  # mathematics on lines of its own
            end = text.find(closing, end) + len(closing)
        found.append((at, end))
    return [Announced(text[at:end].strip().rstrip("*_ "), at) for at, end in sorted(found)[-_MOST:]]


def answer_phrase(text: str) -> str | None:
    """What the last announcement of an answer says that says something; ``None`` without one."""
    return next((one.text for one in reversed(announced(text)) if one.text), None)
