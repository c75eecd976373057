r"""``choice``: multiple choice, A to J.

A letter counts where the answer commits to it: in ``\boxed{}``, after "the answer is", alone, at the start of the last
line, or in brackets; so does the text of an option. An answer that commits to two letters is wrong where one was asked
for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from roll_envs.errors import ConfigError
from roll_envs.verifiers.choice_texts import BOLD, lettered, restated
from roll_envs.verifiers.extract import announced, answer_phrase, boxed, plain, reply
from roll_envs.verifiers.matching import normalize
from roll_envs.verifiers.types import Failed, Score, Verdict

LETTERS = "ABCDEFGHIJ"


def _any(words: str) -> str:
    """A pattern of one of the words; ``_`` stands for a space within one."""
    return "(?:" + "|".join(words.split()).replace("_", " ") + ")"


# Text styles of LaTeX, signs of Markdown, quotes, and brackets around brackets.
_MARKUP = re.compile(
    r"\\(?:text(?:bf|rm|it)?|mathrm|mathbf|textsf|left|right)\b|\[\[|\]\]|<<|>>|(?<!#)##(?!#)|[*`${}\\\"“”«»「」【】]"
    r"|(?<![A-Za-z])['_]|['_](?![A-Za-z])"
)

# In brackets, or bare where it is no part of a word, a number, a contraction ("I'm") or a formula ("A = 5", "P(A)").
_BRACKETS = r"(?<![A-Za-zΑ-ω0-9])[(\[] ?[A-Z] ?[)\]]"
_LETTER = (
    rf"(?:{_BRACKETS}|(?<![A-Za-z0-9'’+^.=-])(?<!\d )(?!I [a-z])[A-Z](?![A-Za-z0-9₀-₉'’+^]|[.-][A-Za-z]| ?[=+^]| [<>]))"
)
_AND = _any("and or nor und oder et ou y и noch ni")
# "A, B and C"; in "not A, B is right" and "of A and B, B" the second B is no part of a list.
_GROUP = (
    rf"{_LETTER}(?: ?[,/&、和或\n] ?{_LETTER}(?! (?:is|was|has|does|would|can)\b)){{0,9}}+"
    rf"(?:,? ?{_AND}\b(?: possibly| maybe| perhaps| also)? ?{_LETTER}){{0,9}}+"
)
_OF_LIST = re.compile(
    r"(?m)(?:^[-*• ]{0,4}|\s(?=[(\[]|[A-J]\))|[^a-z\s]\s|ption |are )[(\[]?([A-Z])(?:[).:\]]| [–—-]|(?= \()) (?=\S)"
    r"(?!and\b|or\b)"
)
# What a letter is called; also "réponse", "respuesta", "risposta".
_OPTION = (
    "(?:option|choice|letter|answer|statement|sentence)s? opción letra r[éei]s?p[ou]\\w+ antwort alternativa "
    "propos\\w+ lettre (?:sequence|equation|pair|word)s?"
)
_SHOWN = "graph figure diagram picture image curve title ending scenario"
_SURELY = _any(
    "therefore thus (?:most_|and_)?\\w+ly prob indeed in_fact also both all just the our my your final la le die its "
    "u[hm]+ h+m+ yes yep yeah ok(?:ay)? (?:without_a|no)_doubt without_question i_(?:think|guess) i['’]?d_say tl;dr"
)
_NAMED = (
    rf"(?:(?:{_SURELY}|(?-i:a)|either|(?:l['’])?{_any(_OPTION)}"
    rf"|{_any(_SHOWN)}(?= [A-J]\b(?!:)))\b[ :,]{{0,3}}|选项|選項|選択肢|#?\d[.):] ?){{0,6}}+<?"
)
# What may follow the letter that is chosen: "A big cat" and "I think" begin with words, not with choices.
_FOLLOWING = _any(
    "and(?!_(?:\\w+_)?\\W?[A-HJ]\\b) all_along because cuz since as for in on from above below to_me only qui die "
    "it_is here porque weil denn car perché parce_que потому although (?:even_)?though with rather_than over by that "
    "which more correct right richtig korrekt zu wählen nehmen sagen lol without maybe based if_i_had [Ii]['’]?m "
    "[Ii]_(?:think|guess|believe|suppose) the_(?:correct_|right_)?(?:answer|choice|winner|one|\\w+est)"
)
_END = (
    rf"(?:(?<=[)\]])(?! ?[a-z])|(?= ?(?:[.,;:!)\]…>|(—–/]|$|- | -|(?:→ )?(?i:{_FOLLOWING})\b"
    r"|(?:选项|選項|项|項)(?![错不误誤])|比较|更|最|です|である|だ|[とに]な|と思|吧|예요|번|입니다|이다|है|सही|seçeneği|şıkkı)))"
    r"(?!\W{0,3}(?:(?:(?:which )?(?:is|was) )?(?:incorrect|wrong|false)|is not|isn['’]t)\b|\W{0,2}[:.)|?] no\b)"
)
_CHOSEN = re.compile(rf"(?i:{_NAMED})({_GROUP}){_END}", re.MULTILINE)

# "not B", "neither A nor B", "rather than option C", "Incorrect: A, B".
_NO = _any(
    "not never non neither nor none_of cannot unlike rather_than instead_of than nicht weder pas не no_es runner-up "
    "compared_(?:with|to) second[_-](?:choice|best) ruled?_out eliminat(?:e[sd]?|ing) discard\\w+ descart\\w+ "
    "reject\\w+ considered"
)
_ABOUT = _any("would be to an? in at on the choose pick select say go going with is est ist es è la " + _OPTION)
_DENIED = re.compile(
    rf"(?m)(?:[✗✘❌]|(?:^|[.;] )(?i:incorrect|wrong|false|worst)(?: (?i:{_any(_OPTION)}))?:) ?({_GROUP})|"
    rf"(?i:(?:,? ?\b(?:and|but) )?(?:\b{_NO}\b|n['’]t\b|[并也而]?不[能应應会會]?该?[是选選]?)(?: ?\b{_ABOUT}\b){{0,6}})"
    rf"[: ]{{0,2}}({_LETTER}(?:(?:[,、] ?{_LETTER}){{0,9}}+,? ?(?:{_AND}\b|[和或、]) ?{_LETTER})?)"
)
_IS = _any(
    "(?<!so_)is are was (?:(?:must|ha[sd]_to|would|should|appears_to)_)?be must_have_been becomes being "
    "seems(?:_to_be)? looks sounds stands_out_as (?:it|that)['’]s ist est es è é är este là sería serait está jest "
    "является"
)
_RIGHT = _any(
    "correct right best answer way choice pick exception winner \\w+er_(?:choice|answer|option) letter_of all_that "
    "one_that odd_one the_true chosen selected bonne richtige? korrekt corretta correcta poprawna верен corr?et[ao]"
)
# "B is the correct answer", "B) Paris is right", "B正确".
_CALLED_RIGHT = re.compile(
    rf"({_GROUP})(?:(?:[:)]|(?<![a-z] [A-Z])[.]) (?:(?!\b[A-Z]\b|n['’]t\b"
    rf"|\b(?:not|incorrect|wrong)\b)[^.\n]){{1,60}}?)?,?"
    rf"(?: (?:which )?{_IS} (?:(?:{_SURELY}|{_any(_OPTION)}) ){{0,4}}{_RIGHT}\b(?! that| only)"
    r"| (?:richtig|korrekt|(?:all )?apply|only(?=[.,;]|$))\b"
    r"| ?(?:选项|選項|项|項|が|は|가|이)? ?是?(?:正确|正確|符合|最?も?適[切当]|を選|答案|对|正しい|正解|정답|맞))"
)
_YES = (
    r"(?:[✓✔✅]|(?i:(?:(?:this|it) is )?(?:just )?(?:yes|true|right|accept(?:ed)?|keep|ok(?:ay)?|richtig|vrai"
    r"|corr?et[ao]|correct[ao]?))(?= ?(?:[.;!|()–—\n]|$|- | -|because|since| \(?[A-J]\)|,(?! (?i:true|false)))))"
)
# "B: yes", "(B) True.", "B) Paris - correct", "| B | rises | ✅ |".
_VERDICT = re.compile(
    rf"(?m)(?<!= )({_GROUP})(?: ?[:.…|?()–—-]{{1,3}})? ?{_YES}"
    rf"|({_GROUP})[:.)|]? (?:(?!{_LETTER})[^\n✗✘❌]){{1,80}}?(?:\?| [|–—-]|[.,;!](?= (?i:yes|correct|true)\W*$)"
    rf"|(?= yes\W*$)) {_YES}"
    rf"|^\W{{0,3}}(?:(?i:{_any(_OPTION)}) )?({_GROUP})(?:[).:][^\n]{{0,80}}?)? (?:is|are) (?i:true|correct|right)\b"
    rf"|^\W{{0,3}}(?i:{_NAMED})({_GROUP})[^\n✗✘❌]{{0,80}}[✓✔✅][ |]*$|^\W{{0,3}}(?:[✓✔✅]|\[x\])\W{{0,3}}({_GROUP})"
)
# What may be said of several decides where it is said of one only: "B fits best".
_FITTING = _any(
    "fits? works? captures_the match(?:es)? satisf(?:y|ies) only(?!_\\w+s\\b) best better "
    "describes_it(?:_best|_exactly) would_(?:work|fit) makes?_(?:the_)?(?:most_)?sense is_in(?=[.,;]) "
    "(?:must_)?(?:remains?|survives?|holds?|stands?|wins|passes|follows|applies|it_(?:is|(?:shall|must)_be))(?=[.,;!]|_it\\b|$)"
)
_FITS = re.compile(
    rf"(?:^|[^A-Za-z ] ?"
    rf"|\b(?i:{_any('so hence thus therefore both and but that only nur because is think believe these ')}"
    rf"|{_any(_OPTION + ' ' + _SHOWN)}) )"
    rf"({_GROUP})(?: \([^()\n]{{1,80}}\)| ?[—–:])? (?:{_FITTING}"
    rf"|{_IS} (?:{_SURELY} ){{0,4}}{_any('more most [a-z]+est better one only what left necessary valid')}"
    rf"|{_IS} the (?!wrong|false|next|other|first|last|same)[a-z]+ one)\b"
    rf"|\b(?i:only|nur|seule?|só|sol[oa]) (?i:{_NAMED})({_GROUP})(?: \([^()\n]{{1,80}}\))? (?=[a-zéèü])"
    rf"|(?:is|['’]s)(?: \w+)? what (?i:{_NAMED})({_GROUP}) (?:says|states|tells|describes|claims|shows|gives)\b"
)
_LEADS = _any(
    "so thus hence therefore consequently donc also daher somit but sondern mais i\\.e\\. except only correct: "
    "correction: decision: choice: choos(?:e|ing) chose pick(?:ed|ing)? select(?:ed|ing)? say take lean mark circle "
    "ans answer(?:['’]s)? return prints wähle würde trifft dirais вариант choisi\\w* entscheide_mich_für meinung_nach "
    "quindi marcaria réponse c['’]est agit_de elijo respuesta me_quedo_con por antwort ответ выбира(?:ю|ем) это верно "
    "chọn đáp_án 것은 arrived?_at settled?_on (?:look|sound)s_like looking_for makes_(?:it|this) agrees?_on money_on "
    "bet_on goes_to mean(?:s|ing) implies guess suggests vote(?:_for)? towards? go_(?:with|for) going(?:_with|_for)? "
    "supports? expects (?:gut|intuition|hunch)_says lean(?:ing)? nehme leav(?:es?|ing)(?:_us)?(?:_with)? left_with "
    "match(?:es)? consistent_with "
    "(?:(?:corresponds?|points?|leads?|gets?|brings?)(?:_us)?|it|switch(?:ing)?|closest|nearest|equal|equivalent)_to"
)
# "so B", "we choose B", "this is listed as B", and a letter that is a sentence by itself at the end of a line.
_SO = re.compile(
    rf"(?m)(?i:(?:\b(?:{_LEADS}|(?P<is>{_IS}|gives?|get|makes?|use|want|need))"
    rf"(?: (?:that|to|of|in|by|as|under|with|best|given|\w+ed)){{0,4}}(?!\w)"
    rf"|因此|所以|아니라|故|[而得该]是|よって|(?-i:(?<![A-J] ))(?:[→⇒]|=>)|=(?= {_any(_OPTION)})"
    rf"|(?:(?<=[a-z] )=|->)(?= [A-J][.!]?$))[ ,:]{{0,3}}{_NAMED})({_GROUP}){_END}"
    rf"|(?:^(?:\d+[.)] )?|[.!?:;…] ?|(?<![Nn]ext)(?<![Tt]hen), | [–—-] )(?i:{_NAMED})({_GROUP})(?: I \w+)?[.!…]*$"
)
# "The nearest is B" may speak of something else; "that is B" and "the nearest is option B" do not.
_SUBJECT = re.compile(
    r"(?i)^\W*\|(?:it|that)['’]s|"
    r"\b(?:(?:it|this|that|which|what)(?: \w+)? ?\||(?:right|correct|false|true|best|only) one|"
    rf"{_any('solution exception guess winner richtig correcta? bonne risposta ' + _OPTION)}\b)|[(\[]"
)
# A letter that stands for an option, whatever is said of it: not "vitamin C", "Plan B" or "A big cat".
_BEFORE = _any("is it's its only get (?<=\\w_)in with for to on at that me from nur это " + _OPTION)
_MENTIONED = re.compile(
    rf"(?:^|[.,:;!?—–→∴>«-] ?|\b(?i:{_BEFORE}) )(?:(?i:{_NAMED}))({_GROUP})(?=\W*$| ?[^\w ]|"
    rf" (?:is(?! an? )|does|stands(?! for)|itself|because|then|due)\b)"
    rf"|\b(?i:{_any(_OPTION)}) ({_LETTER})|({_BRACKETS})"
)
# A letter in a text of small letters: "its b lol".
_SMALL = re.compile(r"(?<![\w.'’=-])(?:[b-hj]|a(?=[.,!?)]| because| since| cuz|$))(?![\w'’]|\.[a-z])", re.MULTILINE)
_SMALL_ALONE = re.compile(
    r"(?m)(?<!\w)\([a-hj]\)|(?:(?<=[.!?] )|(?<=\b[Ii]t is )|(?<=\b[Ii]ts )|(?<=\bwhich is )|(?<=[tT]['’]s ))"
    r"(?:[b-hj](?=[.!]?$)|[a-hj](?=\. [A-Z]))"
)
_SMALL_LABEL = re.compile(r"(?i)(?:(?:option|ans(?:wer)?\.?) )?\(?([a-z])(?:[).:]+(?:\s(?!and|or|is not|no)|$)|$)")
# A statement that nobody makes: "if B is correct", "many choose A", "I doubt that it is C".
_SUPPOSED = re.compile(
    r"(?i)\b(?:if(?! i had)|whether|suppose|assum\w+|consider|unless|otherwise|(?<!s )why)\b|无法|是否"
)
_DOUBT = _any(
    "(?<!no_)(?<!a_)doubt unclear unsure nobody nothing wrong_to may maybe perhaps possibly might could initially "
    "(?:at|i)_first was_going used_to wanting teacher book friend instinct you_(?:chose|picked|answered|selected) trap "
    "distractor textbook majority first_(?:thought|guess) common_(?:answer|choice|mistake|error|misconception) "
    "tempt\\w+ many some often people others (?<!\\bi_)(?<!\\bwe_)would_(?:choose|pick|say|answer) "
    "(?:\\bnot|n['’]t)_(?:think|believe|say|know|mean|clear|sure|certain|true_that)"
)
_UNSURE = re.compile(rf"(?:\b|(?=n['’]t)){_DOUBT}\b", re.IGNORECASE)
# "A to D", "B for adults, C for children", and what the text of an option or of a list of them says ("E. A and B"):
# none is chosen.
_ALL_OF = re.compile(
    rf"\b(?:Dr|Mrs?|Ms|Prof(?:essor)?)\.? [A-Z]\b\.?|(?<!from ){_LETTER} ?(?:to|through|[–-]) ?(?!\[){_LETTER}"
    rf"|\b(?i:between|among|of) {_LETTER}(?:, ?{_LETTER}){{0,9}},? and {_LETTER}"
    rf"|(?<=[A-Z][.):] )(?i:both |either )?{_LETTER},? ?{_AND} {_LETTER}"
    rf"|({_LETTER}),? (?:is (?:\w+ )?)?(for|in|if|when|under|unless|assuming) [^.\n]{{1,80}}?[ ,;]"
    rf"(?:(?:otherwise|else|which case),? {_LETTER}|(?!\1){_LETTER} (?:is (?:\w+ )?)?(?:\2|otherwise|else)\b)"
    rf"|\b(?:blood|chord|(?<!answer )key|grade|symbol|language|vitamin|note|alphabet|initial|favou?rite|team|size)\b"
    rf"(?: \w+){{0,5}} {_IS} (?:an? |in )?[A-Z]\b"
    r"|(?:^|\n|: |\b(?:are|have) )[(\[]?A(?=(?:[).:\]]| [–-]) (?!(?i:true|false|yes|no|not|correct)\b|[✓✔✅✗✘❌])"
    r"[^\n]{1,80}?\bB(?:[).:\]]| [–-]) )"
)
# "B (red) and D (blue)" is a list as "B and D" is.
_REMARKS = re.compile(rf"({_LETTER}) \([^()\n]{{1,60}}\)(?=,? {_AND} {_LETTER}(?! (?:is|was)\b))")
# Labels of a list that was cut off, with nothing behind the last one, or behind any.
_LAST_LABEL = re.compile(r"\n\W{0,3}([B-J])((?:选项)?[.):：])$")
_LABELS_ALONE = re.compile(r"(?:[A-J][.)] ?){3,}")
_LISTED_AT_END = re.compile(rf"{_GROUP}\W*$")
# A sentence that denies a letter, or only looks at it.
_NO_CHOICE = re.compile(
    rf"(?i)\b(?:{_NO}|wrong|incorrect\w*|fals\w*|(?<!-)out|fails?|too|no|also|start\w*|begin\w*|on to|compar\w*"
    rf"|partial\w*|partly|half(?!-)|almost|close|errad[ao]|faux|fausses?|невер\w*|गलत|plausible|possible|consider\w*"
    rf"|look\w*(?! it| for| up| like)|letter)\b|n['’]t\b|[✗✘❌]"
)
# "D keeps", among sentences about other letters.
_VERB_AFTER = re.compile(r"^(\W*)([B-HJ])(?= [a-z])")
_UNDECIDED = re.compile(r"(?i)\bcan(?:not|['’]t) decide|\b(?:it|would|may) depends?\b|\btorn\b|\bundecided|\btoss-up")
# The letter that a sentence begins with.
_BEGINS = re.compile(rf"\W{{0,4}}(?i:{_NAMED})([A-J])\b")
# "The correct answers are:", and lines that begin with letters.
_ROWS = re.compile(
    r"(?i:\b(?:correct|right|true)(?: \w+)?(?: are)?|\banswers are|\b(?:hold|apply)):"
    r"(\n+(?:[\W\d]{0,4}[A-J]\b[^\n✓✗?]{0,200}(?:\n+|$)){2,10}+)"
)
_SO_THEN = re.compile(r"(?i)\b(?:so(?! is| are| does| that)|thus|hence|therefore|which (?:makes|leaves|gives))\b")
_CLAUSE = re.compile(r"[!?;:…\n]|(?<!i\.e)\.(?!e\.)|\b(?:so|thus|hence|therefore|but|however|while)\b", re.IGNORECASE)
# "Hmm, actually no."
_TAKEN_BACK = re.compile(
    r"(?i)\b(?:(?:wait|hmm+|oops|actually|sorry)[,.!… —–-]{1,3}){1,3}(?:actually )?no\b[,.:;!…—– -]{1,3}"
    r"|\b(?:scratch that|correction|sorry, i misread)[,.:;!…—– -]{1,3}"
)
_CHECKS = re.compile(r"(?i)\blet(?: me|['’]s) (?:check|verify|see|look|double|test|think|consider|compute|re)")
_ALSO = re.compile(r"(?i)\b(?:also|too|as well)\b")
_CONDITION = re.compile(r"[^.!;:\n]{0,80}?(?:\?|\b(?:if(?! i had)|unless)\b)", re.IGNORECASE)
# A letter, and the options after it once more.
_REPEATED = re.compile(r"\W{0,3}(?![AI] ?['’a-z])[A-J]\b[^\n]{0,80}(?=\n\s{0,3}\(?A[.):] [^\n]{1,200}\n\(?[BC][.):] )")
# "the second option is right"
_PLACES = dict(zip("first second third fourth fifth".split(), LETTERS, strict=False))
_PLACE = re.compile(rf"(?i)\b(?:the )?({'|'.join(_PLACES)}) option(?= (?:is|fits|works|makes|must|best)\b|[.,!]|$)")
# "Plan A", where plans are the options.
_THING = re.compile(
    r"\b((?!(?i:and|nor|vitamin|point|angle|side|vertex|line|node) )[A-Za-z][a-z]{2,}) (?=([A-J])\b(?!['’]))"
)
# "A:" before a letter stands for "answer".
_ANSWER_LABEL = re.compile(r"^A: ?(?=\(?[A-J](?:[).:]|$))", re.MULTILINE)
# A box in a reason is no answer.
_REASON = re.compile(r"(\\boxed\{[^{}\n]{1,80}\}\$?),? (?:since|because|as|while|whereas)\b[^\n]*")

_Statement = tuple[int, frozenset[str]]


class ChoiceVerifier:
    """1.0 when the letters that the answer commits to are the reference's.

    ``reference``: a letter (``"B"``, ``"(b)"``), several for questions with several right answers (``"A, C"``), the
    number of the option from 0 on, or the text of an option. ``options``: texts of the options in order, where they are
    the same for all rows; else ``context[options_key]`` may hold them (a list, or a mapping from letters).
    """

    def __init__(
        self, *, options: Sequence[str] | None = None, letters: str = LETTERS, options_key: str = "options"
    ) -> None:
        if not letters or len(set(letters)) != len(letters) or not set(letters) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
            raise ConfigError(f"letters must be different capital letters, such as 'ABCD', not {letters!r}")
        if options is not None and len(options) > len(letters):
            raise ConfigError(f"there are {len(options)} options for {len(letters)} letters")
        self.letters, self.options_key = letters, options_key
        self.options = None if options is None else tuple(map(str, options))

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        options = self._options(context)
        letters = self.letters[: len(options)] if options else self.letters
        wanted = _reference_letters(reference, letters, options)
        if not wanted:
            return Failed(reason=f"the reference {str(reference)[:100]!r} names none of the choices {letters}")
        said = read_choice(answer, letters, options)
        right = said == wanted
        detail = "" if right else f"read {', '.join(sorted(said)) or 'no choice'}"
        return Score(value=float(right), passed=right, detail=detail)

    def _options(self, context: Mapping[str, Any] | None) -> tuple[str, ...]:
        if self.options is not None:
            return self.options
        given = (context or {}).get(self.options_key)
        if isinstance(given, Mapping):
            given = [given[letter] for letter in self.letters if letter in given]
        if isinstance(given, Sequence) and not isinstance(given, str):
            return tuple(map(str, given))[: len(self.letters)]
        return ()


def _reference_letters(reference: Any, letters: str, options: Sequence[str]) -> frozenset[str]:
    if isinstance(reference, int) and not isinstance(reference, bool):
        return frozenset(letters[reference]) if 0 <= reference < len(letters) else frozenset()
    if isinstance(reference, list | tuple | set | frozenset):
        each = [_reference_letters(item, letters, options) for item in reference]
        return frozenset().union(*each) if all(each) else frozenset()
    if not isinstance(reference, str):
        return frozenset()
    bare = re.sub(r"[\s()\[\].,;:/&]|\band\b", "", _MARKUP.sub("", reference).strip())
    # "AC" is two letters; a word in small letters, or one with a letter twice, is a text.
    letters_only = set(bare.upper()) <= set(letters) and len(set(bare)) == len(bare)
    if bare and letters_only and (bare.isupper() or len(bare) == 1):
        return frozenset(bare.upper())
    return _committed(reference, letters, options) or read_choice(reference, letters, options)


def read_choice(answer: str, letters: str = LETTERS, options: Sequence[str] = ()) -> frozenset[str]:
    """The letters an answer commits to; empty when it commits to none.

    ``read_choice("It is not (A). The answer is (B).")`` is ``{"B"}``.
    """
    text = plain(BOLD.sub(r'"\1"', reply(answer))).strip()
    repeated = _REPEATED.match(text)
    text = _REASON.sub(r"\1", _ANSWER_LABEL.sub("", repeated[0] if repeated else text))
    text = _PLACE.sub(lambda match: f"option {_PLACES[match[1].lower()]}", text)
    found = _read(text, letters, ())
    if len(found) != 1 and options:
        found = _read(lettered(text, letters, options), letters, options)
        said = (boxed(text) or [answer_phrase(text) or re.split(r"(?<=[.!?])\s+|\n+", text)[-1]])[-1]
        found = found or (restated(said, letters, options) if _settled(said) else found)
    if not found:
        things = Counter(name.lower() for name, _ in set(_THING.findall(text)))
        named = _THING.sub(lambda match: f"{match[1]} option " if things[match[1].lower()] > 2 else match[0], text)
        found = _read(named, letters, ()) if named != text else found
    return found


def _read(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letters that a text without what surrounds its answer commits to."""
    if boxes := boxed(text):
        each = [_committed(box, letters, options) for box in boxes]
        return frozenset().union(*each) if all(each) else frozenset()
    taken_back = list(_TAKEN_BACK.finditer(text))
    if taken_back and len(found := _read(text[taken_back[-1].end() :].strip(), letters, options)) == 1:
        return found
    bare = _REMARKS.sub(r"\1", _ALL_OF.sub("x", _bare(text)))
    if _LABELS_ALONE.fullmatch(bare) or _cut_in_list(bare):
        return frozenset()
    small = _SMALL if bare == bare.lower() else _SMALL_ALONE
    bare = small.sub(lambda match: match[0].upper(), bare)
    denied = {letter: match.start() for match in _DENIED.finditer(bare) for letter in _last_group(match)}
    bare = _DENIED.sub(lambda match: "…" * len(match[0]), bare)
    statements, likely = _statements(bare, letters, options)
    sentences = [sentence for sentence in re.split(r"(?<=[.!?])\s+|\n+", bare) if sentence.strip()] or ["…"]
    cut_off = (len(sentences) > 1 or len(bare.split()) > 10) and (text[-1].isalnum() or text[-1] in ",:(")
    settled_from = max((match.start() for match in _CHECKS.finditer(bare)), default=0) if cut_off else 0
    for start, found in reversed(statements):
        if found <= set(letters) and start >= max(settled_from, *(denied.get(letter, 0) for letter in found)):
            return found
    lines = (
        []
        if settled_from or _consecutive(_OF_LIST.findall(bare))
        else [line for line in bare.splitlines() if line.strip()]
    )
    for line in [*lines[-1:], *lines[:1]]:
        if found := _committed(line.rstrip("?"), letters, options):
            return found
    if cut_off or "?" in sentences[-1] or _UNDECIDED.search(bare):
        return frozenset()
    left = [likely, *map(_mentioned, _concluding(sentences, listed=_consecutive(_OF_LIST.findall(_bare(text)))))]
    left = [found - denied.keys() for found in left]
    return next((found for found in left if len(found) == 1 and found <= set(letters)), frozenset())


def _cut_in_list(text: str) -> bool:
    """Whether a text ends with the label of an option, of which there is no more."""
    last = _LAST_LABEL.search(text)
    if last is None:
        return False
    labels = re.findall(rf"(?m)^\W{{0,3}}([A-J]){re.escape(last[2])} ?\S", text)
    return last[1] not in labels and chr(ord(last[1]) - 1) in labels


def _concluding(sentences: Sequence[str], *, listed: bool) -> list[str]:
    """The last and the first of the sentences that speak of letters, where a reply does not go through them all."""
    speaking = [each for each in sentences if re.search(_LETTER, each) and not each.startswith("|")]
    walk = [match[1] for each in speaking if (match := _BEGINS.match(each)) and _settled(each)]
    concludes = bool(speaking and re.match(r"\W*(?:So|Thus|Hence|Therefore)\b", speaking[-1]))
    if not speaking or (_consecutive(walk) and not concludes) or _ALSO.search(speaking[-1]):
        return []
    last = [speaking[-1], _SO_THEN.split(speaking[-1])[-1]]
    if len(speaking) > 1:
        last = [_VERB_AFTER.sub(r"\1(\2)", each) for each in last]
    first = [] if _consecutive(walk) or _OF_LIST.match(speaking[0]) else speaking[:1]
    return [*(last if not listed or concludes else ()), *first]


def _mentioned(sentence: str) -> frozenset[str]:
    """The letters of options that a sentence speaks of, where it settles on them."""
    mentions = list(_MENTIONED.finditer(sentence))
    found = frozenset().union(*map(_last_group, mentions))
    if not mentions or "?" in sentence or found != _named("".join(re.findall(_LETTER, sentence))):
        return frozenset()
    before = _CLAUSE.split(sentence[: mentions[0].start()])[-1]
    after = _CLAUSE.split(sentence[mentions[-1].end() :])[0]
    if "[" in mentions[0][0]:  # "You keep [A] in it if you can."
        after = re.split(r"\b(?:if|when|than)\b", after)[0]
    return found if _settled(before + sentence[mentions[0].start() : mentions[-1].end()] + after) else frozenset()


def _settled(sentence: str) -> bool:
    """Whether a sentence denies nothing, asks nothing and supposes nothing."""
    return "?" not in sentence and not any(one.search(sentence) for one in (_NO_CHOICE, _UNSURE, _SUPPOSED))


def _statements(text: str, letters: str, options: Sequence[str]) -> tuple[list[_Statement], frozenset[str]]:
    """Where a text says that letters are the answer, and which, in order; and letters it says something fitting of."""
    likely: frozenset[str] = frozenset()
    said = [(one.start, one.start, _committed(one.text[:300], letters, options)) for one in announced(text)]
    for match in [*_SO.finditer(text), *_CALLED_RIGHT.finditer(text), *_FITS.finditer(text)]:
        start, end, found = match.start(), match.end(match.lastindex or 0), _last_group(match)
        before = _CLAUSE.split(text[max(0, start - 60) : start])[-1]
        is_something = match.re is _SO and match["is"] and not _SUBJECT.search(f"{before}|{match[0]}")
        if match.re is not _FITS and not is_something:
            said.append((start, match.end() if match.re is _CALLED_RIGHT else end, found))
        elif not found <= likely and _asserted(text, start, match.end()):
            likely |= found
    if verdicts := list(_VERDICT.finditer(text)):  # of a list of verdicts, all the letters that are right
        found = frozenset().union(*map(_last_group, verdicts))
        said.append((verdicts[-1].start(verdicts[-1].lastindex or 0), verdicts[-1].end(), found))
    for match in _ROWS.finditer(text):
        said.append((match.end(), match.end(), _named("".join(re.findall(r"^[\W\d]*([A-J])", match[1], re.MULTILINE)))))
    kept: list[_Statement] = []
    for start, end, found in sorted(said, key=lambda one: one[0])[-200:]:  # the last ones decide
        if found and _asserted(text, start, end):  # "A is right. B is also right."
            kept.append((start, found | (kept[-1][1] if kept and _ALSO.search(text[start:end]) else frozenset())))
    return kept, likely


def _asserted(text: str, start: int, end: int) -> bool:
    """Whether a statement is neither a condition nor a question, nor what others say."""
    clause = _CLAUSE.split(text[max(0, start - 120) : end])[-1]
    unsure = _UNSURE.search(_LISTED_AT_END.sub("", clause).rpartition(", ")[2])
    return not unsure and not _SUPPOSED.search(clause) and not _CONDITION.match(text, end)


def _consecutive(labels: Sequence[str]) -> bool:
    """Whether the last two letters follow each other: "(A) red (B) blue" makes no choice."""
    return len(labels) > 1 and ord(labels[-1]) == ord(labels[-2]) + 1


def _committed(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """Letters at the start of a short text, or those of the option whose text it is."""
    bare = _bare(text)
    said = normalize(bare)
    if exact := {one for one, option in zip(letters, options, strict=False) if normalize(_bare(option)) == said}:
        return frozenset(exact)
    match = _CHOSEN.match(bare) or _SMALL_LABEL.match(bare)
    found = _named(match[1].upper()) if match else frozenset()
    return found if found <= set(letters) else frozenset()


def _bare(text: str) -> str:
    return re.sub(r"[^\S\n]+|~", " ", _MARKUP.sub("", text)).strip().lstrip("•>→✅✔️👉 ").removeprefix("- ")


def _last_group(match: re.Match[str]) -> frozenset[str]:
    """The letters of the group of a pattern that took part."""
    return _named(match[match.lastindex or 0])


def _named(group: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Z]", group))
