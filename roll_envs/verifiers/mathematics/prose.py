"""Finds the answer in prose: the last sentence that states one, and in it the last mathematics of its main clause.

Mathematics is told from words by the tokens between spaces, so that ``3:45 PM``, ``x = 3, y = -1`` and ``2 hours 40
minutes`` are one answer each. A reply that is cut off or says that it has no answer gives none.
"""

from __future__ import annotations

import itertools
import re

from roll_envs.verifiers.mathematics.plain_numbers import in_digits
from roll_envs.verifiers.mathematics.sentences import CONCLUDES, PARTS, REVISED, SIGN, sentences
from roll_envs.verifiers.mathematics.units import compound, is_unit_word
from roll_envs.verifiers.phrases import patterns

# Mathematics between delimiters, and commands that may hold words and spaces.
SPAN = re.compile(  # lengths are limited, so that delimiters without an end take linear time
    r"(?=[$\\])(?:(?<!\\)\$\$((?:\\.|[^$\\]){1,1000})\$\$"
    # As in Pandoc, a dollar sign before a number closes nothing: it is one of money.
    r"|(?<!\\)\$((?:\\.|[^$\n\\]){1,1000})\$(?!\d)"
    r"|\\\[((?:[^\\]|\\(?![\[\]])){1,1000})\\\]|\\\(((?:[^\\]|\\(?![()])){1,1000})\\\)"
    r"|\\(?:text(?:bf|it|rm)?|mathrm|operatorname)\s*\{[^{}]*\}"
    r"|\\begin\{\w+\}(?:[^\\]|\\(?!begin|end)){0,1000}\\end\{\w+\})"
)
_BARE = re.compile(r"-?[$€£]?\d[\d.,/]*%?(?: [a-z]+){0,2}")
_ALONE = re.compile(r"-?[$€£]?\d[\d.,/]*%?(?: \S{1,12}){0,2}")
_PROSE = re.compile(r"(?!(?:Then|Now|Next|After|But|Hmm|No|So|Let)\b)(?:[^\W\d_]{1,20},? ){3}")


def stated(text: str, *, first: bool = False) -> str:
    """The answer that the last sentence with one states; empty without one.

    With ``first`` the text begins with its answer, and what follows explains it.
    """
    text = re.sub(SIGN, "", text)
    contents = [whole[whole.lastindex or 0] for whole in SPAN.finditer(text)]
    signs = itertools.count(ord(SIGN[1]))
    told = sentences(SPAN.sub(lambda _: chr(next(signs)), text), first=first)
    line = text.partition("\n")[0].strip()
    if not told and _ALONE.fullmatch(line):  # what follows was cut off
        told = [line]
    if len(told) > 1 and _BARE.fullmatch(told[0]) and _PROSE.match(told[1]) and not first:
        told = [told[0], *filter(CONCLUDES.match, told[1:])]  # the answer, then an explanation
    told = told if first else told[::-1]
    readings = (
        (map(_counted, (_CLAUSE["cause"].sub("", one) for one in told)), True),
        (map(_counted, told), True),
        (map(_counted, told), False),
        (map(in_digits, told), False),
    )
    found = next(filter(None, (_stated(one, first, main) for each, main in readings for one in each)), "")
    found = re.sub(rf"(?<={SIGN}),?\s(?:and|or)\s(?={SIGN})", ", ", found)
    found = re.sub(rf"(?<={SIGN})\s([A-Z](?:/[A-Z])?)$", r"\\text{ \1}", found)  # "$3$ J"
    found = re.sub(SIGN, lambda sign: contents[ord(sign.group()) - ord(SIGN[1])], found)
    return re.sub(r"^([^,%]*)(?:,|\sor)\s[^,=]*(?:%|\bpercent)$", r"\1", found)  # "3/8, or 37.5%"


def _counted(sentence: str) -> str:
    return _CLAUSE["count"].sub(lambda match: in_digits(match.group()), sentence)


# -- clauses -----------------------------------------------------------------------------------------------------------

_CLAUSES: dict[str, tuple[str, ...]] = {
    "count": (  # "are left three", "so two apples are left": a spelled number with no other number behind it
        r"(?i:(?:^|\b(?:so|is|are|was|were|be|has|have|exactly|only|leaves|gives|equals|makes)\s){SPELLED})"
        r"(?![^,;\n]*(?:\d|{SIGN}|-digit)|[^\n]*\bnamely\b)",
    ),
    "cause": (r",?\s(?:because|since)\s[^,]*$",),
    "restated": (  # the same value in parentheses behind it, perhaps in another unit
        r"(?<=[\dπ]|{SIGN})\s\((?:[\d\s.,+=*·×−°%$€£≈-]|{SIGN})+\)(?=[.\s]*$)",
        r"(?<=[\dπA-Za-z%²³])\s\((?:[$€£]\d[\d.,]*|\d[\d.,]*(?:\s?(?:%|°[CF]?)|\s[A-Za-z]{1,3}[²³]?))\)",
    ),
    "remark": (
        r"(?<=\S)\s\((?=[^()]*(?:[A-Za-z]{2,}|=|≈))[^()]*\)",
        # "..., which is 4 more than", ", or $5 per person", ", 3 of which"
        r",\s(?:(?:which|that|this|das)\s(?:is|was|sind)\s|or\s|i\.e\.,?\s|that is,?\s|also\s|soit\s|es decir,?\s)?"
        r"(?:about\s|roughly\s)?(?=[\d$€£])[^\s%]+(?:%\sof|\s(?:in|out of)\s\d"
        r"|\s(?:[a-z\d]+\s){0,3}?(?:de (?:plus|moins)|after|before|short|shy"
        r"|(?:more|less|fewer|\w{2,}er|mehr|weniger|más|menos)\s(?:[A-Za-z\d]+\s){0,3}?(?:than|after|als|que)"
        r"|ahead|behind|above|below|off|away|having|per|each|apiece|which|whom|them|to (?:\w+ decimals?|the nearest)))"
        r"\b(?:[^,;:]|:(?! ))*(?=[,;.]|$)",
        r",?\s(?:or|which is)\s\S+\s(?:as|in)\s(?:an?\s)?(?:mixed|decimal|fraction|percent|simplest|improper)\w*"
        r"(?:\s(?:number|form|fraction|notation))?",
        r"\s(?:for which|such that)\s[^,;]{1,80}\s(?:is|are)\s[^,;=]{1,40}?(?=\s(?:is|are)\s)",
        r",?\sfrom\s\d[\d:]*\s?[AaPp][Mm]\s(?:to|until|till)\s\d[\d:]*\s?[AaPp][Mm]\b",
        r";\s(?:[^;]{0,200}\bwould be|the (?:others?|rest)|[^;]{0,40}(?:\bfails?|n't|\bnot))\b[^;]*$",
        r"[;,]\s\(?(?:check|verify|verification|proof)\b:?.*$",
        r"\b[Aa]s [a-z] (?:→|->|tends to|approaches|goes to) \S+",
        r",?\s(?:who\b[^,]*,(?=\s)|which\b[^,]*,(?=\s[a-z]{2}))",
    ),
    "about": (
        r",\s(?:or\s|which is\s|i\.e\.\s|soit\s)?(?:approximately|about|roughly|environ|etwa|circa)\s"
        r"(?=[\d$€£]|{SIGN})",
    ),
    "later": (  # "is 5 m high 2 seconds after"
        r"(\d\s?(?!(?:second|minute|hour|day|week|month|year|sec|min|h)s?\b)[a-z²³/]+(?:\s[a-z]+){0,4})\s[\d.]+\s(?:second|minute|hour|day|week|month|year)s?(?=\s(?:after|before)\b)",
    ),
    "explained": (  # "the number is 4: they are ...", "there are 4 pens - 3 red ones": an explanation behind the answer
        r"(?:\b(?:is|are|was|were|has|have|get|needs?)\b|'s)[^:=]{0,80}?(?:\d|{SIGN}|=[^:]{0,80})"
        r"(?:\s[a-z/²³%°]+){0,3}(?=:\s|\s[-–—]\s[a-z]{2})",
    ),
    "consequence": (
        r"(?i:\b(?:so|thus|hence|therefore|giving|gives|yields|makes|(?<!n't )get|i\.e\.|that is|donc|entonces)\b)"
        r"[,:]?",
        r"[→⇒⟹∴]|=>|->|;\s(?=(?:since|because|as)\s[^;]*,)",
        r",\swhich\s(?:[a-z]+\s){0,5}(?:is|are|to|us|makes|equals|means|leaves)\s(?:about\s)?(?={VALUE}|[a-z]\s=)",
        r"\b(?:is|are)\s(?:un)?(?:positive|negative|zero|defined|increasing|decreasing|satisfied|true|valid|real)"
        r"\s(?:only\s|exactly\s|precisely\s)?(?:when|if|for|at)\s(?={VALUE}|[a-z]\s?[=<>≤≥])",
    ),
    "subordinate": (  # what begins a clause that only explains, restricts or restates
        r",?\s\(?(?:because|since|when|who|where|which|while|whereas|although|though|if|including|instead|rather"
        r"|provided|valid|assuming|taking|attained|reached|occurs|works|fits|compared|car|porque|weil|mentre|mientras"
        r"|tandis que|während)\b",
        r",?\safter (?:it|he|she|they|we|\S+ (?:\w+ )?(?:is|are|was|were))\b",
        r",\s(?:as|also (?:written|known)|or (?:as|about|exactly)|namely|of wh|an average of|from|up|down|followed"
        r"|ahead|beating|exceeding|saving|with|well|excluding|(?:and\s)?(?:indeed|for (?:example|instance)))\b",
        r"\sfor\s(?:all|every|any|each)\s(?=[a-z]\b|{SIGN}|real|integer|positive)",
        r",?\s(?:验证|因为)",
    ),
    "given": (r"(?i:^\s*(?:as|since|because|if|when|for|given|with)\s)(?:[^,()]|\([^()]*\))*,\s",),
    "verdict": (  # an answer in words
        r"(?i:\b(?:no (?:real |integer |such )?solutions?|infinitely many(?: solutions)?|undefined|diverges|divergent"
        r"|does(?:n't| not) exist|all real numbers(?: except [^.;]{1,30})?|empty set)\b)"
        r"(?!\s(?:other|besides|unless|if|when))",
    ),
    "unsure": (r"(?i:\b(?:not|never|if|whether|may|might|could|maybe|perhaps|or|n?either|wrong)\b|n't\b)",),
    "taken back": (
        r"(?i:\b(?:but|however|so|thus|hence|therefore|while)\b|^\W*(?:or|and)\b)",
        r"^,\s[A-Z]\w*(?:\W*$|,|\s(?:and|or)\b)",
    ),
    # "9 apples in 2 baskets": what stands between the answer and a number that only says where, when or of what
    "of": (
        r"(?:{WORD}){0,3},?\s(?:in|on|over|after|within|during|between|for|at|of|per|with|than|from|among|upon|pour|für"
        r"|para|con|to (?!get|make|obtain|reach)[a-z]+|(?:(?:is|are|was|were)\s)?[a-z]+ed\sby"
        r"|(?:is|are|was|were)\s(?:[a-z]+\s(?:in|over|during|within)|(?:needed|required|used)\sfor))"
        r"(?:(?!\s(?:total|all|for)\b){WORD}){0,4}\s",
    ),
    "denied": (r"(?:not|n't|不是|不为)\s(?:[a-z]+\s)?$",),
    "wrong": (
        r"\s(?:can(?:not|'t)\b|(?:fails?|(?:does|do|did)(?:n't| not) (?:work|fit|satisfy|meet))\b"
        r"|(?:is|are|was|would be)"
        r"(?:n't|\s(?:not|wrong|incorrect|too|extraneous|rejected|invalid|impossible|excluded)\b))",
    ),
    "subject": (r"\s(?:is|are|was)\s(?:the|our|your|my|an?|divisible)\s",),
}  # fmt: skip
_CLAUSE = patterns(_CLAUSES, parts=PARTS)
RESTATED = _CLAUSE["restated"]
_FEW_WORDS = 4


def _stated(sentence: str, first: bool, main: bool) -> str:
    """The answer that a sentence states, with ``main`` not what is given before it."""
    revised = REVISED.split(sentence)[-1]
    sentence = revised if re.search(rf"\d|{SIGN}", revised) else sentence
    sentence = _CLAUSE["about"].sub(" ≈ ", _CLAUSE["remark"].sub("", RESTATED.sub("", sentence)))
    sentence = re.sub(r"(?<=\d) and a half\b", " 1/2", _CLAUSE["later"].sub(r"\1", sentence))
    if re.search("probability|chance|odds", sentence):
        sentence = re.sub(r"(\d) (?:in|out of) (\d)", r"\1/\2", sentence)
    if "ratio" in sentence:
        sentence = re.sub(r"(?<![:\d])(\d+)(?: to |: )(\d+)(?!\s?[:\d])", r"\1:\2", sentence)
    explained = _CLAUSE["explained"].search(sentence)
    pieces = _CLAUSE["consequence"].split(sentence[: explained.end()] if explained else sentence)
    for piece in pieces if first else reversed(pieces):
        verdict = _CLAUSE["verdict"].search(piece)
        if verdict and _is_meant(piece, verdict) and not re.search(rf"[\d∞]|{SIGN}", piece[verdict.end() :]):
            return verdict.group()
        for clause in _CLAUSE["subordinate"].split(_CLAUSE["given"].sub("", piece) if main else piece):
            found = _main(clause, first)
            if found is not None:
                return found
    return ""


def _is_meant(sentence: str, words: re.Match[str]) -> bool:
    """Whether words stand in a sentence without a doubt before or a correction behind them."""
    before = re.split(r"[,;:]\s", sentence[: words.start()])[-1]
    after = sentence[words.end() :]
    return not (_CLAUSE["unsure"].search(before) or _CLAUSE["taken back"].search(after) or REVISED.search(after))


def _main(clause: str, first: bool) -> str | None:
    """The last quantity of a clause that is not one of where, when or of what; the first where it is the subject.

    Empty where all are denied, ``None`` where there is none.
    """
    every = _quantities(clause)
    found = [
        (a, b)
        for a, b in every
        if not _CLAUSE["denied"].search(clause[max(0, a - 30) : a]) and not _CLAUSE["wrong"].match(clause, b)
    ]
    if not found:
        return "" if every else None
    if first or (not clause[: found[0][0]].strip() and _CLAUSE["subject"].match(clause, found[0][1])):
        del found[1:]
    few = not clause.startswith(" ways", found[-1][1])
    few = few and not re.search(r"\d\)?\s?=", clause[slice(*found[-1])])
    few = few and len(re.findall(r"[^\W\d_]{2,}", clause[found[-1][1] :])) <= _FEW_WORDS
    while few and len(found) > 1 and _CLAUSE["of"].fullmatch(clause[found[-2][1] : found[-1][0]]):
        found.pop()
    quantity = clause[slice(*found[-1])]
    # The end of a calculation with words in it: "10 books × 3 = 30", "m = (2 kg/L)(3 L) = 6 kg".
    part = re.search(r"[/×*·÷^=]\s?$|[a-z] x\s$|\bchoose\s$", clause[: found[-1][0]])
    if part or quantity.count(")") > quantity.count("("):
        quantity = quantity.rpartition("=")[2].strip()
    # A letter behind a number, set apart, is a unit and no variable.
    return re.sub(r"(\d|10[⁰-⁹¹²³⁻]+)\s([A-Za-z][²³]?)$", r"\1\\text{ \2}", quantity)


# -- quantities --------------------------------------------------------------------------------------------------------

_FUNCTIONS = re.compile(
    r"\\[A-Za-z]+|(?<![A-Za-z])(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)|log|ln|exp|sqrt|lim|lcm|gcd|max|min|mod|d[xyt]|pi)"
    r"(?![A-Za-z])"
)
_NUMERAL = re.compile(r"[-+−±~≈$€£¥₹(\[{]*(?:\.?\d|[¼-¾⅐-⅞])")
_OPERATOR = "=+*/^<>≤≥≠≈∩∪∈×·÷−-±"
_OPERAND = re.compile(rf"[\d¼-¾⅐-⅞∞∅ℝπ]|{SIGN}|[A-Za-z)\]₀-₉]\s?[=+*/^<>≤≥≠≈∩∪×·÷−²³]")
_NEXT_WORD = re.compile(r"\s?(/|°?[^\W\d_]++(?!['’])|[€$£%])")
_UNIT_WORDS = frozenset("am pm percent % hundred thousand million billion trillion dozen per /".split())


def _quantities(text: str) -> list[tuple[int, int]]:
    """Where mathematics begins and ends, each with the unit behind it."""
    found: list[tuple[int, int]] = []
    for run in _runs(text):
        one = _with_unit(text, *run)
        if one and found and compound(re.sub(r"(?<=\d)(?=[a-z])", " ", text[found[-1][0] : one[1]])):
            found[-1] = (found[-1][0], one[1])  # "2 hours and 40 minutes"
        elif one and found and re.fullmatch(r"(?: [a-z]+)? ≈ ?", text[found[-1][1] : one[0]]):
            found[-1] = (found[-1][0], one[1])
        elif one:
            found.append(one)
    return found


def _runs(text: str) -> list[tuple[int, int]]:
    """Where tokens of mathematics follow each other, or are joined by one "and" or "or"."""
    tokens = list(re.finditer(r"\S+", text))
    words = ["", *(token.group() for token in tokens), "", ""]
    runs: list[tuple[int, int]] = []
    joined = False
    for token, before, word, after, further in zip(tokens, words, words[1:], words[2:], words[3:], strict=False):
        if (joined or word not in _OPERATOR + ":|") and _is_mathematics(word, before, after):
            runs[len(runs) - joined :] = [(runs[-1][0] if joined else token.start(), token.end())]
            joined = word in (":", "...") or word[-1] not in ".!?:"
        else:
            joined = joined and word in ("and", "or", "remainder") and _is_mathematics(after, "", further)
    return runs


def _is_mathematics(token: str, before: str, after: str) -> bool:
    bare = token.rstrip(".,;:!?")
    if not bare or re.match(r"\d+-[A-Za-z]{2,}", bare):  # "a 3-digit number"
        return token == ":" or (token == "..." and before[-1:] in tuple(_OPERATOR))
    if _NUMERAL.match(bare) or token == "Rs.":
        return True
    rest = _FUNCTIONS.sub("", bare)
    if re.search(r"[^\W\d_](?:\.[^\W\d_]|')|[^\W\d_A-Za-z\u0370-\u03ffℝ²³¹⁰-₉¼-¾⅐-⅞]", rest):
        return False
    if re.fullmatch(r"[a-z]{2,3}", rest) and before[-1:] in tuple(_OPERATOR) and after[:1] in tuple(_OPERATOR):
        return True  # "= ab + ..."
    if re.search(r"[^\W\d_]{2,}", rest):  # "mc^2" and "AB=5", but no word
        return re.search(r"[=^²³+*]", rest) is not None and re.search(r"[^\W\d_]{4,}", rest) is None
    if re.fullmatch(r"[A-Za-z]", bare):  # an article, a name or a variable
        times = bare == "x" and before[-1:].isdigit() and _NUMERAL.match(after)
        if bare == "a" and before[-1:] == ",":
            return after[:1] in tuple(_OPERATOR)
        return bool(
            times
            or re.search(r"(?:sin|cos|tan|cot|sec|csc|log|ln)$", before)
            or (before and before[-1] in _OPERATOR + "(,")
            or (after and after[0] in _OPERATOR)
        )
    return re.search(rf"[\w√∫∞∅({{\\[]|{SIGN}", bare) is not None or (bare in _OPERATOR + ":|")


def _with_unit(text: str, start: int, end: int) -> tuple[int, int] | None:
    """A run without the punctuation behind it, with the unit behind it; ``None`` where it holds no quantity."""
    run = text[start:end].rstrip(" .,;:?-|([{")
    run = run.rstrip("!") if end == len(text) else run  # else it is a factorial
    if not _OPERAND.search(run):
        return None
    at = end = start + len(run)
    for word in _NEXT_WORD.finditer(text, end, end + 60):
        preposition = word[1] == "in" and re.match(r"\s\w", text[word.end() :])
        if word.start() != at or preposition or not (is_unit_word(word[1]) or word[1].casefold() in _UNIT_WORDS):
            break
        at = word.end(1)
        end = end if word[1] in ("per", "/") else at
    return start, end


# -- words -------------------------------------------------------------------------------------------------------------

_OPENING = r"\W*(?:(?:so|thus|hence|therefore|well|oh|it'?s|that'?s|that'd be)\b,?\s)*(?:the\s|an?\s)?"
_VERB = (
    r"(?:\b(?:is|are|was|were|be|by|has|have|means|equals|called|named|finished|came|placed|choose|pick|on|until|to|so)|'(?:s|re)|:|=)[,\s]\s?"
    r"(?:(?:the|an?|always|indeed|thus|therefore|exactly)\s)?"
)
_EXCELS = (
    r"(?:wo[nu]\b|wins\b|(?:is|was|has|had|had|came|finished|arrived|scored|ran|got|sold|costs?|saved)\s(?:in\s)?(?:the\s)?"
    r"(?:first|last|\w+est|most|best|winner|answer|only|more|less|fewer|better|(?:tall|old|young|short|fast|slow|cheap"
    r"|larg|great|small|bigg|heavi|long|high|low|earli|lat)e?r)\b)"
)
_ANOTHER = re.compile(rf"{REVISED.pattern}|(?:^|\b(?:is|was|be|'s)\s)(?:the\s|an?\s)?\w+\W*$")
"""After a sentence that is a name: another sentence that may be an answer."""
_OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}


def says(text: str, words: str) -> bool:
    """Whether the last sentence concludes with these words, or the first opens with them as an answer ("No. 7 is ...").

    Where they are only mentioned, denied or one of two, it does not.
    """
    told = sentences(SPAN.sub(" x ", text)) or [""]
    phrase = r"\s".join(map(re.escape, words.split()))
    opposite = _OPPOSITES.get(words.casefold())
    if opposite and re.search(rf"(?im)(?:^\W*|{_VERB}){opposite}\s*(?:[.,;!]|$)", "\n".join(told)):
        return False
    ending = (
        rf"(?i)(?:^{_OPENING}|{_VERB}){phrase}(?=\s*(?:[.,;!:(]|$)|\s(?:around|in|on|at|about|with|who)\s)"
        rf"|^{_OPENING}{phrase}(?=\s{_EXCELS})"
        rf"|\bis\san?\s{phrase}(?=\s[a-z]+\W*$)"  # "f is an odd function"
    )
    opening = rf"(?i)^{_OPENING}{phrase}(?=\s*(?:{'[,.:;!—-]|' if opposite or len(told) == 1 else ''}$))"
    another = REVISED if opposite else _ANOTHER
    for sentence, pattern, later in ((told[-1], ending, []), (told[0], opening, told[1:])):
        for match in [*re.finditer(pattern, sentence)][-1:]:
            if _is_meant(sentence, match) and not any(map(another.search, later)):
                return True
    return False
