"""Splits a reply into sentences, and leaves out those that state no answer: remarks, questions, suppositions, and what
looks back on an answer: a check, or how it was found. A reply that is cut off or says that it has no answer gives none.
"""

from __future__ import annotations

import re

from roll_envs.verifiers.mathematics.plain_numbers import SPELLED
from roll_envs.verifiers.phrases import patterns

SIGN = "[\U000f0000-\U000ffffd]"
"""Stands for mathematics between delimiters."""
EMOJI = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff]\ufe0f?|(?<=\\s)[:;]-?[)D]")
OTHER_SCRIPT = re.compile(r"[\u0400-\u04ff\u0600-\u06ff\u0900-\u097f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_SENTENCE = re.compile(
    r"(?<!\bi\.e)(?<!\be\.g)(?<!\bRs)(?<!\bapprox)(?<!\.\.)\.(?=\s)|(?<=\?)\s|!(?=\s+[^\W\d_a-z])|\n"
)
_OPENINGS: dict[str, tuple[str, ...]] = {
    "aside": (  # is left out by itself
        r"(?:note|thank(?:s| you)|where|(?:i )?hope|let me know|feel free|for reference|in general,|remember|indeed"
        r"|recall)\b",
        r"(?:would you|have a (?:great|nice|good)|good luck|if you(?:'d| want| have))\b",
        r".{0,200}(?:\(not (?:asked|needed|required)|\bnot part of the (?:question|problem)|\bnicht gefragt)\b",
        r"[*_]?\((?:[A-Za-z]{2}|[^()]*[A-Za-z]{2}[^()]*\)$)",
        r".{0,300}\bbut the (?:question|problem) (?:only |just )?(?:is|was|asks|wants)\b",
        r".{0,300}\bbut (?:they|we|you)(?:'re| are| were)? (?:only |just )?(?:ask|want)",
        r"(?:an?|the|one|another) (?:common|typical|frequent|usual|classic) (?:slip|mistake|error|trap|pitfall"
        r"|misconception)\b",
        r"it would be (?:a mistake|wrong|incorrect|tempting)\b",
        r".{0,80}\b(?:(?:don't|doesn't|do not|does not) matter|(?:is|are) (?:irrelevant|not (?:needed|relevant)))\b",
        r"(?:is|are|what|how|do|does|can|could|why|which)\b[^?]*\?$",
    ),
    "supposed": (
        r"if\b(?=.{1,200}\b(?:would|were)\b)(?:.{1,200}\b(?:had|were|more|fewer|less|instead|another|other)\b"
        r"| (?:you|he|she|it|we|they) (?:\w+ed|bought|sold|paid|got|took|made|went|did|could|chose|gave)\b)",
        r".{1,200}\bwould be\b.{1,200}\bif\b",
        r"(?:many|most|some) people\b.{1,200}\bwould\b",
    ),
    "looks back": (  # is left out behind a value, with what follows, up to the next conclusion
        r"{WE}(?:double-?)?check(?!\w* (?:[a-z]\b|all|each|every|which|cases|if|whether))",
        r"{WE}(?:verif[iy]|satisf[iy]|confirm|probe\b|prueba|comproba|vérif|провер)",
        r"(?:substitut|plug)[^.]{0,40}\bback\b(?![^.]{0,200}(?:\b[a-z] ?=|{SIGN}))",
        r"(?:(?:here(?:'s| is)|that'?s|this is) )?(?:how (?:i|we|it|this|you)|the breakdown)\b",
        r"(?:we|you|i|one|to) (?:can )?(?:get|got|find|found|obtain|see|know|arrive at)\w* (?:this|that|it|there)\b",
        r"(?:we|you|i|one|to) (?:can )?(?:calculat|determin|comput|deriv|reach)\w* (?:this|that|it)\b",
        r"(?:this|it) (?:comes|came|follows|(?:is|was) (?:because|found|obtained))\b",
        r"(?:this|it) (?:is|was) (?:slightly |much )?(?:more|less|fewer|greater|\w+er) than\b",
        r"i (?:took|did|used|multiplied|added|subtracted|divided|calculated|computed|started)\b(?!.*(?:to get|=))",
        r"(?:in other words|(?:for|by|in) comparison|because\b(?![^,]*,)|here,? (?:we|i) used|(?:lower|upper) bound)\b",
        r"for (?:example|instance)\b",
        r"(?:this|that|it) (?:is|occurs|happens|is (?:reached|attained|taken)) (?:at|when|for)\b",
        r"(?:this|that|it|which) (?:seems|looks|is) (?:reasonable|plausible|sensible)\b",
        r"이\s+(?:결과|식)",
        r"if\b[^,]*, (?:buy|get|use|order|round|plan|consider|you (?:can|could|may|might|should))\b",
    ),
    "explanation": (  # the same, until a later sentence ends it
        r"why\b[^?]{0,60}\?",
        r"(?:expli[ck]aci[oó]n|explication|erklärung|begründung|объяснение|spiegazione|explicação|解析|解释|解説|설명)"
        r"\W{0,3}[:.]",
        r"(?:explanation|rationale|marks|difficulty|reasoning|justification|confidence|comments?|tags|sources?|topic|level"
        r"|.{0,6}check)\W{0,3}[:.]",
        r"(?:remark|proof(?: (?:by|of) [^.]{1,30})?|(?:the )?(?:calculation|breakdown|working)s?)\W{0,3}(?:[:.]|$)",
    ),
    "converts": (  # is left out behind a value that it does not round
        r"(?:if\b[^,]{1,60}, |(?:as a|in) decimals?,? )?(?:that|this|it)"
        r"(?:'s| is| would be) (?:about|roughly|approximately|around)\b(?!.*=)",
    ),
    "behind": (  # the same behind a conclusion only
        r"(?:working|steps|references?\b|on average\b|(?:that|this)(?:'s| is) an average\b)",
        r"(?:that|this|which|it)(?:'s| is| would be) (?:equivalent|the same)(?!.*=)",
    ),
    "alternative": (r"if\b.{1,200}\bwould\b",),  # is left out by itself behind a conclusion
    "concludes": (
        r"(?:so|thus|hence|therefore|consequently|finally|overall|altogether|total|conclusion"
        r"|in (?:total|all|summary|conclusion))\b",
        r"(?:the )?(?:final )?(?:answer|result)\b",
        r"(?:donc|also|entonces|por (?:lo )?tanto|quindi|итак)\b|所以|因此|故",
        r".{1,120}\b(?:altogether|in (?:total|all))\b",
    ),
}  # fmt: skip
"""How sentences of a kind begin."""
PARTS = {
    "SIGN": SIGN,
    "SPELLED": SPELLED.pattern,
    "VALUE": rf"[-$€£(\d]|{SIGN}",
    "WORD": r"\s(?!(?:is|are|was|were|we|he|she|they|it|and|plus|equals|gives|sold)\b)[A-Za-z]+",
    "WE": (  # "Let me quickly double-check", "As a check", "It is easy to verify"
        r"(?:(?:now|just|as|an?|let me|let's|let us|we|you|i|i'll|one|it|is|easy|can|also|to|quickly|quick|easily"
        r"|double|sanity|both|these|they|this|all|our)[ -]){0,5}"
    ),
}
_PHRASES: dict[str, tuple[str, ...]] = {
    "no answer": (
        r"(?:can(?:not|'t)|could(?: not|n't)|(?:un|not |n't )able to|do(?: not|n't))\s(?:\w+\s){0,2}"
        r"(?:determine|answer|tell|solve|find|decide|know|say|calculate|compute|help|finish|complete)(?:e?d)?\b",
        r"(?:not|n't) (?:have )?enough information|\bdoes(?: not|n't) (?:say|state|specify|tell)\b",
        r"\b(?:more information is|need to know|stuck between|not clear|no answer to)\b",
        r"\b(?:rather not|won't|not going to|not (?:allowed|appropriate) to) (?:\w+ ){0,3}"
        r"(?:give|hand|tell|provide|reveal|pick|choose)\b",
        r"\b(?:can|could|would) you (?:please )?(?:describe|tell|send|provide|share|clarify|give|post)\b",
        r"\bcould you check\b",
        r"\bplease send\b|\bwhich of the (?:two|three)\b.*\?|\bno way (?:for me )?to (?:know|tell)\b",
        r"\bno unique (?:solution|answer)\b|\b(?:would be|is) needed before\b",
        r"\bil manque (?:une|des) |\bpouvez-vous\b|\bfaltan? (?:un )?datos?\b",
        r"nicht (?:beantworten|lösen|bestimmen|berechnen)\b|no se puede (?:determinar|responder|calcular)\b",
        r"无法(?:求|确定|得出|计算|回答)|条件不足|缺少条件",
        r"\bor (?:maybe|perhaps)\b|\b(?:could|might|may) be\b.{1,80}\bor\b",
    ),
    "revised": (  # after an answer: another one follows
        r"\b(?:(?:oops|wait|correction)[,.:!]|scratch that\b|that's (?:wrong|not right)\b)",
        r"\bi (?:forgot|mis[a-z]+|made an?)\b|(?:\.\.\.|…)\s?no\b",
        r"\bi(?:'m going|'ll go| go) with\b|, but [a-z ]{0,20}\bactually\b",
    ),
    "goes on": (  # after what looks back: a doubt, or a conclusion
        r"n't\b|\b(?:not|wrong|off|redo|hmm|however|but|mistake)\b",
        r",\s(?:so|thus|hence|therefore)\b.*(?:\d|{SIGN})|^(?:now|then|next)\b(?!.*(?:check|verif))",
    ),
}  # fmt: skip


_BEGINS = patterns(_OPENINGS, parts=PARTS, opening=r"(?i)(?:(?!{SIGN})\W){0,4}")
_SAYS = patterns(_PHRASES, parts=PARTS, opening="(?i)")
CONCLUDES, REVISED = _BEGINS["concludes"], _SAYS["revised"]
_CUT_OFF = re.compile(
    r"(?:\b(?:the|an?|of|and|then|with|to|by|from|is|are|that|at|for|in|on|as|than|which|where|when|we|he|she|they|has|have"
    r"|was|were|be|or|if|so|but|(?:need|have) to \w+)|[\w)\]] ?[-+*/=×,]|:)\s*$"
    r"|\\(?:[(\[]|begin\{)(?=[\s\S]*\w)(?![\s\S]*\\(?:[)\]]|end\{))"  # mathematics that never ends
)
_ASKS = re.compile(r"(?i)\W*(?:if\b[^?]{1,300}, )?how (?:many|much)\b[^?]*\?\W*$")  # the problem once more
_UNFINISHED = re.compile(rf"(?:(?!{SIGN}|\d)[\w'’,;()/-]+ ){{6,}}(?!{SIGN})[A-Za-z]+")
_WRITINGS = (
    (r"\b([AaPp])\.\s?([Mm])\b\.?", r"\1\2"),
    (r"\b(\d{1,2}) o'clock", r"\1:00"),
    (r"(\d)-(?:mal|fold)\b", r"\1"),
    (r"\binfinity\b", "∞"),
    (r"\b[Nn]one(?= (?:\w+ )?(?:left|remain\w*)\b)", "0"),
    (r"\s(?:или|и|oder|und|ou|et)\s", " or "),
)
"""Patterns and what they become, in order."""
_VALUE = re.compile(rf"\d|{SIGN}")
_NUMBER = re.compile(r"\d[\d,]{0,20}(?:\.\d{1,20})?")
_SHORT = re.compile(r"\W*(?:[\w.,/%]+\W*){1,3}")


def sentences(text: str, *, first: bool = False) -> list[str]:
    """The sentences of a text without asides; none where it is cut off or says that it has no answer.

    With ``first`` the answer stands in the first of them, so that only that one must be whole.
    """
    text = re.sub(rf" ?({OTHER_SCRIPT.pattern}) ?", r" \1 ", text)
    for pattern, written in _WRITINGS:
        text = re.sub(pattern, written, text)
    every = [part.strip() for part in _SENTENCE.split(text) if re.search(rf"\w|{SIGN}", part)]
    told: list[str] = []
    stated = concluded = False
    back = ""  # the kind of the sentences that look back
    for part in every:
        kinds = ["explanation", "looks back", *(["behind"] if concluded else [])] if stated else []
        begun = next((kind for kind in kinds if _BEGINS[kind].match(part)), "")
        concludes = begun != "explanation" and CONCLUDES.match(part)
        goes_on = "explanation" not in (begun, back) and _SAYS["goes on"].search(part)
        if concludes or goes_on or REVISED.search(part):
            begun = back = ""
        if begun and (_VALUE.search(part) or ":" in part or _SHORT.fullmatch(part)):
            back = "explanation" if "explanation" in (begun, back) else begun
        converts = stated and _BEGINS["converts"].match(part) and not _rounds(part, told[-1])
        left_out = ("aside", "supposed", "alternative") if concluded else ("aside", "supposed")
        if not (begun or back or converts or any(_BEGINS[kind].match(part) for kind in left_out)):
            concluded = concluded or bool(CONCLUDES.match(part) or (not told and _SHORT.fullmatch(part)))
            stated = stated or _VALUE.search(part) is not None
            told.append(part)
    if not stated:
        told += [part for part in every if _BEGINS["supposed"].match(part) and not re.search(r"\bwere\b", part)]
    # A long text that begins with a doubt may find the answer in the end.
    doubted = [*told[-1:], *every[-1:], *(every[:1] if len(every) <= 4 else ())]
    # What looks back on an answer may be cut off.
    cut_off = not back and bool(_CUT_OFF.search(text) or (len(every) > 1 and _UNFINISHED.fullmatch(every[-1])))
    if cut_off and first and len(every) > 1:
        return told if told[-1:] != every[-1:] else told[:-1]
    asks = every and not concluded and _ASKS.match(every[-1])
    return [] if cut_off or asks or any(map(_SAYS["no answer"].search, doubted)) else told


def _rounds(sentence: str, before: str) -> bool:
    """Whether the first number of a sentence may be the last one of the sentence before it, rounded."""
    rounded, exact = _NUMBER.findall(sentence)[:1], _NUMBER.findall(before)[-1:]
    if not rounded or not exact:
        return not re.search(SIGN, before)
    value, other = (float(number.replace(",", "")) for number in (*rounded, *exact))
    return abs(value - other) <= max(0.1 * other, 0.5)
