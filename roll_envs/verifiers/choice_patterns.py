"""How replies to multiple choice questions name letters, deny them and doubt them: tables of patterns."""

from __future__ import annotations

from roll_envs.verifiers.phrases import patterns

LETTERS = "ABCDEFGHIJ"

_WORDS = {
    "AND": "and or nor und oder et ou y и noch ni",
    # What a letter is called; also "réponse", "respuesta", "risposta".
    "OPTION": r"""
        (?:option|choice|letter|answer|statement|sentence|alternative)s? opción letra r[éei]s?p[ou]\w+ antwort optie
        вариант विकल्प الخيار alternativa propos\w+ lettre (?:sequence|equation|pair|word)s?""",
    "SHOWN": "graph figure diagram picture image curve title ending scenario",
    "SURELY": r"""
        therefore thus (?:most_|and_)?\w+ly prob indeed in_fact also both all just the our my your final la le die
        its u[hm]+ h+m+ yes yep yeah ok(?:ay)? (?:without_a|no)_doubt without_question i_(?:think|guess) i['’]?d_say
        tl;dr""",
    # What may follow the letter that is chosen: "A big cat" and "I think" begin with words, not with choices.
    "FOLLOWING": r"""
        explanation and(?!_(?:\w+_)?\W?[A-HJ]\b) all_along because cuz since as for in on from above below to_me
        only qui die it_is here porque weil denn car perché parce_que потому although (?:even_)?though with
        rather_than over by that which more correct right richtig korrekt zu wählen nehmen sagen lol without maybe
        based if_i_had [Ii]['’]?m [Ii]_(?:think|guess|believe|suppose)
        the_(?:correct_|right_)?(?:answer|choice|winner|one|\w+est)""",
    # "not B", "neither A nor B", "rather than option C", "Incorrect: A, B".
    "NO": r"""
        not never non neither nor none_of cannot unlike rather_than instead_of than nicht weder pas не no_es
        runner-up compared_(?:with|to) second[_-](?:choice|best) ruled?_out eliminat(?:e[sd]?|ing) discard\w+
        descart\w+ reject\w+ considered""",
    "ABOUT": "would be to an? in at on the choose pick select say go going with is est ist es è la {OPTION}",
    "IS": """
        (?<!so_)(?<!as_)is are was (?:(?:must|ha[sd]_to|would|should|appears_to)_)?be must_have_been becomes being
        seems(?:_to_be)? looks sounds stands_out_as (?:it|that)['’]s ist est es è é är este là sería serait está
        jest является""",
    "RIGHT": r"""
        correct right best answer way choice pick exception winner \w+er_(?:choice|answer|option) letter_of all_that
        one_that odd_one the_true chosen selected bonne richtige? korrekt corretta correcta poprawna верен
        corr?et[ao]""",
    # What may be said of several decides where it is said of one only: "B fits best".
    "FITTING": r"""
        fits? works? captures_the match(?:es)? satisf(?:y|ies) only(?!_\w+s\b) best better
        most_(?:weaken|strengthen|undermine|support)s
        describes_it(?:_best|_exactly) would_(?:work|fit) makes?_(?:the_)?(?:most_)?sense is_in(?=[.,;])
        (?:must_)?(?:remains?|survives?|holds?|stands?|wins|passes|follows|applies|it_(?:is|(?:shall|must)_be))(?=[.,;!]|_it\b|$)""",
    "LEADS": r"""
        so thus hence therefore consequently donc also daher somit but sondern mais i\.e\. except only correct:
        correction: decision: choice: choos(?:e|ing) chose pick(?:ed|ing)? select(?:ed|ing)? say take lean mark
        circle ans answer(?:['’]s)? return prints wähle würde(?:_hier)? trifft dirais choisi\w*
        entscheide_mich_(?:\w+_)?für meinung_nach quindi marcaria réponse c['’]est agit_de elijo respuesta
        (?:me_quedo|nos_quedamos)_con por cocher(?:_la_case)? find_in antwort ответ выбира(?:ю|ем) это верно chọn
        đáp_án 것은 arrived?_at settled?_on (?:look|sound)s_like looking_for makes_(?:it|this) agrees?_on money_on
        bet_on goes_to mean(?:s|ing) implies guess suggests vote(?:_for)? towards? go_(?:with|for)
        going(?:_with|_for)? supports? remaining expects (?:gut|intuition|hunch)_says lean(?:ing)? nehme
        (?:expressed|described|captured)_by
        confident_in sure_(?:of|about) leav(?:es?|ing)(?:_us)?(?:_with)? left_with match(?:es)? consistent_with
        (?:(?:corresponds?|points?|leads?|gets?|brings?)(?:_us)?|it|switch(?:ing)?|closest|nearest|equal|equivalent)_to""",
    # A letter that stands for an option, whatever is said of it: not "vitamin C", "Plan B" or "A big cat".
    "BEFORE": r"is it's its only get (?<=\w_)in with for to on at that me from nur это {OPTION}",
    "DOUBT": r"""
        (?<!no_)(?<!a_)doubt unclear unsure nobody nothing wrong_to may maybe perhaps possibly might could initially
        (?:at|i)_first was_going used_to wanting instinct
        (?:teacher|book|friend|textbook|professor)s?_(?:say|said|says|claim\w*|think\w*|thought|mark\w*|list\w*|wrote|told)
        you_(?:chose|picked|answered|selected) trap textbook distractor\w* majority
        first_(?:thought|guess|idea|instinct) almost_(?:chose|picked|said|went)
        common_(?:answer|choice|mistake|error|misconception) tempt\w+ often
        (?:many|some|people|others|students)_(?:\w+_)?(?:think|say|choose|pick|answer|believe|would|might|may|assume|guess)
        (?<!\bi_)(?<!\bwe_)would_(?:choose|pick|say|answer|favou?r|go_(?:with|for)|prefer|argue|opt)
        would_(?:\w+_)?(?:lead|give|yield|point|result|imply)
        (?:\bnot|n['’]t)_(?:think|believe|say|know|mean|clear|sure|certain|true_that)""",
    "JOINING": "so hence thus therefore both and but that only nur because is think believe these",
    "PRAISED": "more most [a-z]+est better one only what left necessary valid",
    "ASKED": "solution exception assumption guess winner richtig correcta? bonne risposta {OPTION}",
}
"""Kinds of words: one of them; ``_`` stands for a space within one."""

_PARTS = {
    # In brackets, or bare where it is no part of a word, a number, a contraction ("I'm") or a formula ("A = 5").
    "BRACKETS": r"(?<![A-Za-zΑ-ω0-9])[(\[] ?[A-Z] ?[)\]]",
    "LETTER": (
        r"(?:{BRACKETS}"
        r"|(?<![A-Za-z0-9'’+^.=-])(?<!\d )(?!I [a-z])[A-Z](?![A-Za-z0-9₀-₉'’+^]|[.-][A-Za-z]| ?[=+^]| [<>]))"
    ),
    # "A, B and C"; in "not A, B is right" and "of A and B, B" the second B is no part of a list.
    "GROUP": (
        r"{LETTER}(?: ?[,/&、和或\n] ?{LETTER}(?! (?:is|was|has|does|would|can)\b)){0,9}+"
        r"(?:,? ?{AND}\b(?: possibly| maybe| perhaps| also)? ?{LETTER}){0,9}+"
    ),
    "NAMED": (
        r"(?:(?:{SURELY}|(?-i:a)|either|(?:l['’])?{OPTION}"
        r"|{SHOWN}(?= [A-J]\b(?!:)))\b[ :,]{0,3}|选项|選項|選択肢|#?\d[.):] ?){0,6}+<?"
    ),
    "END": (
        r"(?:(?<=[)\]])(?! ?(?!(?:is|are) true\b)[a-z])|(?= ?(?:[.,;:!)\]…>|(—–/،؛]|$|- | -|(?:→ )?(?i:{FOLLOWING})\b"
        r"|(?:选项|選項|项|項)(?![错不误誤])|比较|更|最|です|である|だ|[とに]な|と思|吧|예요|번|입니다|이다|है|सही|seçeneği|şıkkı)))"
        r"(?!\W{0,3}(?:(?:(?:which )?(?:is|was) )?(?:incorrect|wrong|false)|is not|isn['’]t|falsch|неверн\w+|faux"
        r"|(?:ف?غير|خطأ))\b|\W{0,2}[:.)|?] (?i:no)\b)"
    ),
    "YES": (
        r"(?:[✓✔✅]|(?i:(?:(?:this|it) is )?(?:just )?(?:yes|true|right|accept(?:ed)?|keep|ok(?:ay)?|richtig|vrai"
        r"|corr?et[ao]|correct[ao]?))(?= ?(?:[.:;!|()–—\n]|$|- | -|because|since| \(?[A-J]\)|,(?! (?i:true|false)))))"
    ),
}

_SAYINGS = {
    "letter": r"{LETTER}",
    # An Arabic letter by itself stands for an option.
    "arabic": r"(?<![\u0600-\u06ff\w])[أبجده](?![\u0600-\u06ff\w]| \d)",
    # The text of an option, as a letter, is the subject of a sentence.
    "begins with": r"(\[[A-J]\]) (?:is|are|was|were)\b",
    # "nothing was promised (choice A)", "all daughters carry it — option D".
    "in the end": r"(?:\(| [—–-] )(?i:{OPTION} )?([A-J])\)?\W*$",
    # "If the bank wants more of it, it should do B" says so of B.
    "condition first": r"^\W*(?:If|When|Since|As) (?![^,]*\bwere\b)[^,]{1,100}, ",
    # Text styles of LaTeX, signs of Markdown, quotes, and brackets around brackets.
    "markup": (
        r"\\(?:text(?:bf|rm|it)?|mathrm|mathbf|textsf|left|right)\b|\[\[|\]\]|<<|>>|(?<!#)##(?!#)|[*`${}\\\"“”«»「」【】]"
        r"|(?<![A-Za-z])['_]|['_](?![A-Za-z])"
    ),
    "of list": (
        r"(?m)(?:^[-*• ]{0,4}|\s(?=[(\[]|[A-J]\))|[^a-z\s]\s|ption |are )[(\[]?([A-Z])(?:[).:\]]| [–—-]|(?= \()) (?=\S)"
        r"(?!and\b|or\b)"
    ),
    "listed option": r"(?m)^\W{0,4}([A-J])[.):]\**\s(?:([^*\n]{1,80})\*\*|([^\n]{1,80})$)",
    "chosen": r"(?m)(?i:{NAMED})({GROUP}){END}",
    # "AC", where several are right.
    "joined": r"(?=[A-J]{2})(A?B?C?D?E?F?G?H?I?J?)(?=\W*(?:$|\n))",
    "denied": (
        r"(?m)(?:[✗✘❌]|(?:^|[.;] )(?i:incorrect|wrong|false|worst)(?: (?i:{OPTION}))?:) ?"
        r"((?:(?i:{OPTION} )?{LETTER}(?:, ?| ?[;&] ?| and ))*(?i:{OPTION} )?{LETTER})|"
        r"\b(?i:distractor)\w*: ?({LETTER})|"
        r"\b(?i:not) (?:[A-Za-z'’-]+ ){1,6}(\((?i:{OPTION} )?[A-J]\))|"
        # "So option B (twice) and option C (half) are not right."
        r"\b[Oo]ptions? ({LETTER}(?:[^.\n]{0,60}?(?:,|,? {AND}) (?:options? )?{LETTER}){1,6}+)"
        r"[^.\n]{0,60}? are (?:not|wrong|incorrect)\b|"
        r"(?i:(?:,? ?\b(?:and|but) )?(?:\b{NO}\b|n['’]t\b|[并也而]?不[能应應会會]?该?[是选選]?)(?: ?\b{ABOUT}\b){0,6})"
        r"[: ]{0,2}({LETTER}(?:(?:[,、] ?{LETTER}){0,9}+,? ?(?:{AND}\b|[和或、]) ?{LETTER})?)"
    ),
    # "B is the correct answer", "B) Paris is right", "B正确".
    "called right": (
        r"({GROUP})(?:(?:[:)]|(?<![a-z] [A-Z])[.]) (?:(?!\b[A-Z]\b|n['’]t\b"
        r"|\b(?:not|incorrect|wrong)\b)[^.\n]){1,60}?)?,?"
        r"(?: (?:which )?{IS} (?:(?:{SURELY}|{OPTION}) ){0,4}{RIGHT}\b(?! that| only| depends)"
        r"| (?:richtig|korrekt|(?:all )?apply|only(?=[.,;]|$))\b"
        r"| ?(?:选项|選項|项|項|が|は|가|이)? ?(?:的?(?:说法|叙述|表述|描述))?是?"
        r"(?:正确|正確|符合|最?も?適[切当]|を選|答案|对|正しい|正解|정답|맞|सही))"
        r"|\b(?i:makes?|making) (?i:{NAMED})({GROUP}) (?:the )?{RIGHT}\b"
    ),
    # "B: yes", "(B) True.", "B) Paris - correct", "| B | rises | ✅ |".
    "verdict": (
        r"(?m)(?<!= )({GROUP})(?: ?[:.…|?()–—-]{1,3})? ?{YES}"
        r"|({GROUP})[:.)|]? (?:(?!{LETTER})[^\n✗✘❌]){1,80}?(?:\?| [|–—-]|[.,;!](?= (?i:yes|correct|true)\W*$)"
        r"|(?= yes\W*$)) {YES}"
        r"|^\W{0,3}(?:(?i:{OPTION}) )?({GROUP})(?:[).:](?![^\n]{0,40}\bstatement\b)[^\n]{0,80}?)?"
        r" (?:is|are) (?i:true|correct|right)\b|(?:(?<=wers: )|(?<=(?:true|alse), ))({BRACKETS}) is true\b"
        r"|^\W{0,3}(?i:{NAMED})({GROUP})[^\n✗✘❌]{0,80}[✓✔✅][ |]*$|^\W{0,3}(?:[✓✔✅]|\[x\])\W{0,3}({GROUP})"
    ),
    "fits": (
        r"(?:^|[^A-Za-z ] ?"
        r"|\b(?i:{JOINING}"
        r"|(?:{OPTION}|{SHOWN})) )"
        r"({GROUP})(?: \([^()\n]{1,80}\)| ?[—–:])? (?:{FITTING}"
        r"|{IS} (?:{SURELY} ){0,4}{PRAISED}"
        r"|{IS} the (?!wrong|next|other|first|last|same)[a-z]+ one)\b"
        r"|\b(?i:only|nur|seule?|só|sol[oa]) (?i:{NAMED})({GROUP})(?: \([^()\n]{1,80}\))? (?=[a-zéèü])"
        r"|(?:is|['’]s)(?: \w+)? what (?i:{NAMED})({GROUP}) (?:says|states|tells|describes|claims|shows|gives)\b"
    ),
    # "so B", "we choose B", "this is listed as B", and a letter that is a sentence by itself at the end of a line.
    "so": (
        r"(?m)(?i:(?:\b(?:{LEADS}|(?P<is>{IS}|gives?|get|makes?|use|want|need))"
        r"(?: (?:that|to|of|in|by|as|at|under|with|best|given|the one|shown|\w+ed)){0,4}(?!\w)"
        r"|因此|所以|아니라|故|[而得该]是|よって|正しいのは|(?:正确|符合|错误)的(?:选项|一项)?是"
        r"|(?-i:(?<![A-J] ))(?:[→⇒∴]|=>)|=(?= {OPTION})"
        r"|(?:(?<=[a-z] )=|->)(?= [A-J][.!]?$))[ ,:]{0,3}{NAMED})({GROUP}){END}"
        r"|(?:^(?:\d+[.)] )?|[.!?:;…] ?|(?<![Nn]ext)(?<![Tt]hen)(?<![A-J](?=, [A-J]\b)), | [–—-] )"
        r"(?i:{NAMED})({GROUP})(?: I \w+)?[.!…]*$"
        r"|\bis:\n{1,2}\W{0,3}([B-J])[.)] "
        r"|\A(?:[A-Za-z'’-]+ ){1,6}(\([A-J]\))[.!]|\bleav(?:ing|es) (?:[A-Za-z'’-]+ ){1,5}(\([A-J]\))"
    ),
    # "The nearest is B" may speak of something else; "that is B" and "the nearest is option B" do not.
    "subject": (
        r"(?i)^\W*\|(?:is|(?:would|must|should) be)"
        r"|(?:^\W*|\b(?:think|guess|believe|say|so|confirm\w*,)) ?\|(?:it|that)['’]s|"
        r"\b(?:(?:it|this|that|which|what)(?: \w+)? ?\||(?:right|correct|false|true|best|only) one"
        r"|(?:most|least) [a-z]+ \||{ASKED}\b)|[(\[]"
    ),
    "mentioned": (
        r"(?:^|[.,:;!?—–→∴>«-] ?|\b(?i:{BEFORE}) )(?:(?i:{NAMED}))({GROUP})(?=\W*$| ?[^\w ]|"
        r" (?:is(?! an? )|does|stands(?! for)|itself|because|then|due)\b)"
        r"|\b(?i:{OPTION}) ({LETTER})|({BRACKETS})"
    ),
    # A letter in a text of small letters: "its b lol".
    "small": r"(?m)(?<![\w.'’=-])(?:[b-hj]|a(?=[.,!?)]| because| since| cuz|$))(?![\w'’]|\.[a-z])",
    "small alone": (
        r"(?m)(?<!\w)\( ?[a-hj] ?\)|(?<=\bla )[a-hj](?=\))"
        r"|(?:(?<=[.!?] )|(?<=\b[Ii]t is )|(?<=\b[Ii]ts )|(?<=\bwhich is )|(?<=[tT]['’]s ))"
        r"(?:[b-hj](?=[.!]?$)|[a-hj](?=\. [A-Z]))|(?<=:\n\n)[b-hj](?=\) )"
    ),
    "small label": (
        r"(?i)(?:(?:{OPTION}|la|ans\.) )?\(?([a-z])"
        r"(?:[).:]+,?(?:\s(?!and|or|is not|no|would|ف?غير|خطأ)|$)|(?-i:(?<=[b-hj])),\s|$)"
    ),
    # A statement that nobody makes: "if B is correct", "many choose A", "I doubt that it is C".
    "supposed": (
        r"(?i)\b(?:if(?! i ha(?:d|ve) to)|whether|suppose|assum(?:e[sd]?|ing)|consider|which of"
        r"|unless|otherwise|(?<!s )why(?! the (?:\w+ )?answer))\b|无法|是否"
    ),
    "unsure": r"(?i)(?:\b|(?=n['’]t)){DOUBT}\b",
    # "A to D", "B for adults, C for children", and what the text of an option or of a list of them says ("E. A and B"):
    # none is chosen.
    "all of": (
        r"\b(?:Dr|Mrs?|Ms|Prof(?:essor)?)\.? [A-Z]\b\.?|(?<!from ){LETTER} ?(?:to|through|[–-]) ?(?!\[){LETTER}"
        r"|\b(?i:between|among|of) {LETTER}(?:, ?{LETTER}){0,9},? and {LETTER}"
        r"|(?<=[A-Z][.):] )(?i:both |either )?{LETTER},? ?{AND} {LETTER}"
        r"|({LETTER}),? (?:is (?:\w+ )?)?(for|in|if|when|under|unless|assuming) [^.\n]{1,80}?[ ,;]"
        r"(?:(?:otherwise|else|which case),? {LETTER}|(?!\1){LETTER} (?:is (?:\w+ )?)?(?:\2|otherwise|else)\b)"
        r"|\b(?:blood|chord|(?<!answer )key|grade|symbol|language|vitamin|note|alphabet|initial|favou?rite|team|size)\b"
        r"(?: \w+){0,5} {IS} (?:an? |in )?[A-Z]\b"
        r"|(?:^|\n|: |\b(?:are|have) )[(\[]?A"
        r"(?=(?:[).:\]]| [–-]) (?!(?i:true|false|yes|no|not|correct|is (?:the|right|correct|true))\b|[✓✔✅✗✘❌])"
        r"[^\n]{1,80}?\bB(?:[).:\]]| [–-]) )"
    ),
    # "B (red) and D (blue)" is a list as "B and D" is.
    "remarks": r"({LETTER}) \([^()\n]{1,60}\)(?=,? {AND} {LETTER}(?! (?:is|was)\b))",
    # What a letter stands for, set apart: 'D, "A and B", is correct'.
    "in quotes": r"(?<=\b[B-HJ]), [\"“«][^\"“”«»\n]{1,80}?([.!?]?)[\"”»]",
    # Labels of a list that was cut off, with nothing behind the last one, or behind any.
    "last label": r"\n\W{0,3}([B-J])((?:选项)?[.):：])$",
    "labels alone": r"(?:[A-J][.)]\s*){3,}",
    "listed at end": r"{GROUP}\W*$",
    # A sentence that denies a letter, or only looks at it.
    "no choice": (
        r"(?i)\b(?:{NO}|wrong|incorrect\w*|fals\w*|(?<!-)out|fails?|too|no|also|start\w*|begin\w*|on to|compar\w*"
        r"|partial\w*|partly|half(?!-)|almost|close|errad[ao]|faux|fausses?|невер\w*|गलत|plausible|possible|consider\w*"
        r"|look\w*(?! it| for| up| like)|contrast|letter|joke)\b|n['’]t\b|[✗✘❌]"
    ),
    # "D keeps", among sentences about other letters.
    "verb after": r"^(\W*)([B-HJ])(?= [a-z])",
    "undecided": (
        r"(?i)\bcan(?:not|['’]t) decide|\b(?:it|would|may) depends?\b|\bdepending on (?:what|how|which)\b|\btorn\b"
        r"|\bundecided|\btoss-up"
    ),
    "refuses": (
        r"(?i)(?:cannot|can['’]t) (?:tell|say|know) which"
        r"|(?:\bnot|n['’]t) (?:\w+ ){0,8}(?:pick|choose) (?:one|any|between)\b"
        r"|(?:\banswer(?: is|:)*|boxed) ?none of (?:the |these|those|them)(?-i:(?![A-J]\b)[^,;:]){0,40}$"
    ),
    # The letter that a sentence begins with.
    "begins": r"\W{0,4}(?i:{NAMED})([A-J])\b",
    # "The correct answers are:", and lines that begin with letters.
    "rows": (
        r"(?i:(?<!not )(?<!n['’]t )\b(?:correct|right|true)(?: \w+)?(?: are)?|\banswers are|\b(?:hold|apply)):"
        r"(\n+(?:[\W\d]{0,4}[A-J]\b[^\n✓✗?]{0,200}(?:\n+|$)){2,10}+)"
    ),
    "so then": r"(?i)\b(?:so(?! is| are| does| that)|thus|hence|therefore|which (?:makes|leaves|gives))\b",
    "clause": (
        r"(?i)[!?;:…\n]|,(?= and the\b)| and the (?:rest|others|remaining)\b"
        r"|(?<!i\.e)\.(?!e\.)|\b(?:so|thus|hence|therefore|but|however|while)\b"
    ),
    # "Hmm, actually no."
    "taken back": (
        r"(?i)\b(?:(?:wait|hmm+|oops|actually|sorry)[,.!… —–-]{1,3}){1,3}(?:actually )?no\b[,.:;!…—– -]{1,3}"
        r"|\b(?:scratch that|correction|sorry, i misread)[,.:;!…—– -]{1,3}"
    ),
    "checks": r"(?i)\blet(?: me|['’]s) (?:check|verify|see|look|double|test|think|consider|compute|re)",
    "also": r"(?i)\b(?:also|too|as well)\b",
    "condition": r"(?i)[^.!;:\n]{0,80}?(?:\?|\b(?:if(?! i ha(?:d|ve) to)|unless)\b)",
    # A letter, and the options after it once more.
    "repeated": (
        r"\W{0,3}(?![AI] ?['’a-z])[A-J]\b[^\n]{0,80}"
        r"(?=\n(?:Explanation[^\n]*\n)?\s{0,3}\(?A[.):] [^\n]{1,200}\n\(?[BC][.):] )"
    ),
    # A base model's choice, and the option behind it in the list.
    "listed on": r"[\s(]{0,3}([B-Ib-i])[.)] [^\n]{1,200}?(?=\s+\(?([C-Jc-j])[.)] )",
    "place": (
        r"(?i)\b(?:the )?(first|second|third|fourth|fifth|last) (?:option|choice)"
        r"(?= (?:is|fits|works|makes|must|best|holds|stands|applies)\b|[.,!]|$)"
    ),
    # "Plan A", where plans are the options.
    "thing": (
        r"\b((?!(?i:and|nor|vitamin|point|angle|side|vertex|line|node) )[A-Za-z][a-z]{2,}) (?=([A-J])\b(?!['’]))"
    ),
    # "A:" before a letter stands for "answer".
    "answer label": r"(?m)^A: ?(?=\(?[A-J](?:[).:]|$))",
    # A box in a reason is no answer.
    "reason": r"(\\boxed\{[^{}\n]{1,80}\}\$?),? (?:since|because|as|while|whereas)\b[^\n]*",
}

SAYS = patterns(_SAYINGS, parts=_PARTS, words=_WORDS)
