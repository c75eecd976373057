"""Cuts off what a base model writes after its answer: further problems, other solutions, its own words over again."""

from __future__ import annotations

import re

from roll_envs.verifiers.announced import announced
from roll_envs.verifiers.boxed import boxed
from roll_envs.verifiers.phrases import patterns

_WORDS = {
    "TASK": """
        what which who how when where why find solve evaluate calculate compute simplify determine express factor prove
        show write name choose let if given suppose""",
    "INTRO": r"""
        let['’]s let_(?:me|us) lets_(?:see|go|start|solve) sure okay solve question problem exercise step follow\w* here
        first i['’]ll i_will need_to understand think given great hello hi certainly of_course absolutely alright good
        thanks got_it i_see""",
}
_MARKS: dict[str, str | tuple[str, ...]] = {
    # A line that begins another problem, and a problem within a line.
    "next": (
        r"\n\W{0,12}+(?:(?:Q|(?:Next |Similar |Another |Word |Practice |Follow-up )?(?:[Qq]uestion|[Pp]roblem)s?"
        r"|QUESTION|PROBLEM|Exercises?|Passage|Review|Instruction|Input|Human|User)\b[ \d]{0,4}\**[:.\n\]<>]"
        r"|The following are |You are (?:given|an?)\b|Answer the following\b|Rate this answer\b"
        r"|(?:Now |Next,? )?(?:[Ll]et's )?[Tt]ry (?:another|this)\b"
        r"|[^\n]{0,40}\bnext (?:one|question|problem)\b"
        r"|Related (?:questions|problems)\b|adsbygoogle|Solution [2-9]\b|以下|下列"
        r"|(?:Grade|Student(?:'s)? answer|Feedback|Next): "
        r"|Correct [Aa]nswer: [^\n]+\n+Your [Aa]nswer: "
        r"|(?:Comments? ?\(|Add your answer\b|Statement 1 \|)"
        r"|(?:(?:Step-by-step )?[Ee]xplanation|Пояснение|Explicación|Explicação)\**:|Why not the others\b)",
        r"\n\[i\]Proposed by\b",
        r"\n```\w*\n(?=\(?A[.):] )",  # the options once more
        r"</(?:p|div|li|ul|td|table|body)>|<h\d>",
        r"<(?:strong|b)>(?:(?!Answer|Correct|Final|Conclu|Result)[A-Z]\w+:|(?:Example|Question|Problem|Exercise)\b)",
        r"\n\s{0,8}[}\]],?\s{0,9}[{\]]|<(?:question|problem|q)>",  # of a list of objects
        r"\n\s{0,8}\\(?:item\b|begin\{(?:problem|exercise|question|example)|end\{(?:solution|proof|answer)"
        r"|(?:sub)*section\*?\{|textbf\{(?:Remark|Exercise|Problem|Question|Example))",
        r"(?<=[.!?>\dA-J)] )(?:Question|Problem|Exercise|Q|Read also|See also): |\n[^\n]{0,60}(?:_{3,}|\bWorksheet\b)",
        r"\n\W{0,12}+(?:题目|例题?|问题|点评|練習|問題|質問|문제|প্রশ্ন|प्रश्न|السؤال|[Pp]regunta|Frage|Вопрос|Зада(?:ча|ние)"
        r"|Domanda|Pergunta)\W{0,2}[:：】\d]",
        r"(?<=[.!?\d])\n\s*\n\s*(?:def|class|import) \w|\n```(?:python|py|java|javascript|js|cpp|c\+\+|c)\n"
        r"(?![^`]{0,3000}```(?s:.{0,300}?)(?:output\n|[Aa]nswer|\\boxed))",  # a program of the solution
        r"\[/?INST\]|</s>|<\|(?:im_end|im_start|eot_id|endoftext|end|user)\|>",  # another turn
        r"\n(?:[^\n]{10,300}\?|(?<=\n\n)[A-Z][^\n]{19,300}\w|\d{1,3}[.)] [^\n]{10,300}|(?i:{TASK})\b[^\n]{10,300})"
        r"\s{0,3}\n(?=\(?[Aa][.):] )",
        r"\n\n(?!(?i:if|let|given|suppose)\b[^\n?]*\n)(?i:{TASK})\b[^\n]{5,300}\n\s*(?:Answer|Solution|A):",
        r"\n\n(?![^\n?]{0,500}\b(?:[Ww]ait|[Bb]ut|[Hh]owever|I|[Ww]e|me|question|option|answer)\b)[A-Z][^\n]{10,300}"
        r"[.,] (?:How|What|Which|Who|When|Where) [^\n?]{5,200}\?",
        # The options once more.
        r"(?<!:)\n\n(?=A[.):] [^\n✓✔✅]*\n\n?B[.):] [^\n✓✔✅]*(?:\n\n?[C-J][.):] [^\n✓✔✅]*)*\s*\Z)",
        r"\n\n(?i:{TASK})\b[^\n?.!:]{0,100}\Z",
    ),
    # The other one's turn.
    "turn": r"(?<![:\s])\s{0,3}\n\s{0,4}(?:(?:Human|User|用户)\W{0,3}[:：]|(?:user|human)\W{0,3}\n)",
    "token": r"\A\s*(\S{1,20})(?:\s+\1){3,}\s*\S*\Z",
    "asked": r"\n(?:\d{1,3}[.)]\s|[•*-]\s)?(?i:{TASK})\b[^\n?]{5,200}\?",
    "ordered": (
        r"\n\n(?:Next, the question asks\b|(?:(?:Next|Now), )?(?i:(?!let(?:['’]s| us| me)){TASK}|consider)\b"
        r"(?=[^\n]{0,200}[$\d]))[^\n?]{5,200}\.\n\n"
    ),
    "loop": r"(?s)(?<!\S)(\S.{5,300}?(?:[.!?](?=\s)|\n))(?:\s*\1)+\s*(.{0,300})\Z",
    # The first of numbered problems that is not number one: the reply was the solution of the one before.
    "numbered": (
        r"(?:\A|\n)[#*_\s]{0,12}(?P<word>Example|Ex\.?|Problem|Exercise|Question|Q)?\s?"
        r"(?P<open>\()?(?P<number>\d{1,3}|(?(open)[a-h]))[.):]\**\s"
        r"(?P<task>(?i:{TASK})\b|[^\n]*\?|[^\n]*\n\(?[Aa][.):] )?"
    ),
    "short answer": (
        r"\W{0,3}(?:[A-J]\b(?:[.):,][^\n]*|[^\n]{0,20}|[.):]?\n(?s:.*))(?:\n(?s:.*))?|-?[$\d][^\n]{0,20})"
        r"|(?![^\n]*(?:roblem|uestion|xercise|olv|tep))[A-Z][^\n:]{0,80}\d[^\n:]{0,40}\."
    ),
    "value": r"\d\S* is the answer\b|(?:=|\b(?:[Ss]o|[Tt]hus|[Tt]herefore|Ans)\b\.?)(?:\D{0,60}\d|,? \(?[A-J]\b)",
    "given": r"Given|Let (?!me )|If|Suppose",
    "intro": r"(?i)\b{INTRO}\b",
}
_IS = patterns(_MARKS, words=_WORDS)
_MOST_MARKS = 20
_FEW_WORDS = 12
_LOOKED_AT = 3000
"""Characters at the end that may be the same words again and again."""


def own_part(text: str) -> str:
    """A text up to where it goes on with something else after its answer, without a last line that only begins another
    one again. ``own_part("9.\\n\\n2. What is 5 + 7?\\n12.")`` is ``"9."``."""
    turn = _IS["turn"].search(text, len(text) - len(text.lstrip()))
    text = _without_loop(text[: turn.start()] if turn else text)
    ends = [match.start() for match, _ in zip(_IS["next"].finditer(text), range(_MOST_MARKS), strict=False)]
    # It may also begin anew: with the words that its first answer, of one paragraph or announced, began with.
    opening = " ".join(text.split(" ", 4)[:4])
    again = text.find("\n\n" + opening, 1) if len(opening) > 15 else -1
    before = text[: max(again, 0)]
    ends += [again if "\n\n" not in before or announced(before) or boxed(before) else -1, _numbered(text)]
    whole = next((text[:end] for end in sorted(ends) if end > 0 and _answers(text[:end], text[end:])), text)
    ordered = _IS["ordered"].search(whole)
    before = whole[: ordered.start()] if ordered else ""
    whole = before if announced(before) or boxed(before) else whole
    asked = [match.start() for match in _IS["asked"].finditer(whole) if match.start() > 0]
    before = whole[: asked[0]] if asked else ""
    # Of questions in a solution the first stands at its beginning.
    several = len(asked) > 1 and "?" not in before and _answers(before, whole[len(before) :])
    return before if several or announced(before) or _says_one_thing(before) else whole


def _says_one_thing(text: str) -> bool:
    """Whether a text is so short, and has so few numbers, that a question behind it is no step of a solution."""
    few = 0 < len(text.split()) <= 20 and len(re.findall(r"\d[\d.,/]*", text)) < 2
    return few and not text.rstrip().endswith(":") and not _IS["intro"].search(text)


def _numbered(text: str) -> int:
    """Where the first numbered problem begins that is not the first of its row; -1 where there is none."""
    for label in _IS["numbered"].finditer(text):
        if label["number"] in ("0", "1", "a"):
            break
        if label.start() > 0:
            high = label["word"] or (label["number"].isdigit() and int(label["number"]) >= 5)
            return label.start() if high or label["task"] or len(text[: label.start()].split()) <= 3 else -1
    return -1


def _answers(text: str, rest: str) -> bool:
    """Whether what stands before a next question is an answer: with a value, where one in a tag or a box follows."""
    text = re.sub(r"(?:[-=*_#\s]|<br ?/?>)+\Z", "", text.strip())
    if ("</answer>" in rest or "\\boxed" in rest) and not re.search(r"\d|\b[B-HJ]\b|</", text):
        return False
    if "</ans" in text or '"answer"' in text:
        return True
    if re.match(r"\W*(?:Problem|Question|Exercise|Example) [2-9]\b", rest) and re.search(r"\d", text):
        return not re.search(r"\b(?:Problem|Question|Exercise|Example) 1\b", text)
    last = text.rpartition("\n")[2]
    concludes = _IS["value"].search(last) and not _IS["given"].match(last)
    short = 0 < len(last.split()) <= _FEW_WORDS and (last == text or re.search(r"\d|\b[A-J]\b", last))
    short = short and not text.endswith((":", "：")) and not _IS["intro"].search(last)
    return bool(short or _IS["short answer"].fullmatch(text) or boxed(text) or announced(text) or concludes)


def _without_loop(text: str) -> str:
    if token := _IS["token"].search(text):
        return token[1]
    loop = _IS["loop"].search(text, max(0, len(text) - _LOOKED_AT))
    if loop and loop[1].startswith(loop[2].rstrip()):
        return text[: loop.end(1)]
    lines = text.rstrip().split("\n")
    last = lines[-1].strip()
    again = len(last) > 3 and any(line.strip().startswith(last) and line.strip() != last for line in lines[:-1])
    return "\n".join(lines[:-1]) if again else text
