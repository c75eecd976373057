# ruff: noqa: E501
"""1,400 replies with a known final answer, in the kinds that base, chat and reasoning models write.

The frames are written by hand; names, numbers and letters vary by a fixed seed. A frame holds ``{a}`` (the answer) and
may hold ``{w}`` and ``{v}`` (two other answers that occur on the way). Labels follow from construction.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Literal, NamedTuple

from roll_envs.verifiers import Score, Verifier
from roll_envs.verifiers.choice import read_choice
from roll_envs.verifiers.choice_patterns import LETTERS
from roll_envs.verifiers.mathematics.final import final_expression


class Reply(NamedTuple):
    """One reply: the kind of writing, its task (``math`` or ``choice``), the text, and the answer that it gives."""

    kind: str
    task: str
    text: str
    answer: str


_MATH = {
    "boxed": [
        "First we get {w}.\n\nThe final answer is $\\boxed{{{a}}}$", "\\[ \\boxed{{{a}}} \\]", "\\boxed {a}",
        "So \\boxed{{{w}}}? No: I forgot one step. The result is \\boxed{{{a}}}.", "$\\boxed{{\\textbf{{{a}}}}}$",
        "Thus $x = {w}$ and the sum is $\\boxed{{{a}\\text{{ apples}}}}$.", "\\boxed{{x = {a}}}",
        "$\\fbox{{{a}}}$", "**Answer:** $\\boxed{{{a}}}$. This checks: {v} + {w} is on the way.",
    ],
    "emphasis": [
        "**Answer:** {a}", "**Answer: {a}**", "The answer is **{a}**.", "The answer is: **${a}**.", "__Answer: {a}__",
        "### Final Answer\n\n**{a}**", "The final answer is *{a}*.", "After {w} steps, the answer is `{a}`.",
        "## Answer\n{a}", "- {w} first\n- then {v}\n\n**Final answer: {a} apples**", "***Answer: {a}***",
        "> **The answer is {a}.**", "The answer is **{a} clips**.", "1. **Add**: {w}\n2. **Result**: {v}\n\n**Answer**: **{a}**",
    ],
    "thoughts": [
        "<think>Maybe {w}. The answer is {w}.</think>The answer is {a}.", "It could be {w}.</think>\n\n{a}",
        "<think>\\boxed{{{w}}}\n</think>\n\n**{a}**", "<thinking>{v}</thinking>\nThe answer is {a}.",
        "<reasoning>the answer is {w}</reasoning><answer>{a}</answer>", "[THINK]it is {w}[/THINK]{a}",
        "◁think▷The answer is {w}◁/think▷The answer is {a}.",
        "<|channel|>analysis<|message|>answer: {w}<|end|><|start|>assistant<|channel|>final<|message|>{a}",
        "<|begin_of_thought|>answer: {w}<|end_of_thought|>\n\nThe answer is {a}.",
    ],
    "tags": [
        "<answer>{a}</answer>", "It is {w} at first. <answer> {a} </answer>", "<answer>The answer is {a}.</answer>",
        "{v} then\n<ANSWER>{a}</ANSWER>", "<think>{w}</think><answer>\\boxed{{{a}}}</answer>",
        "<answer>{w}</answer> Wait, no.\n<answer>{a}</answer>", "We find it.\n<answer>{a}", "<answer>**{a}**</answer>",
        "<final_answer>{a}</final_answer>",
    ],
    "money": [
        "The answer is ${a}.", "He earned ${a}.", "So the total cost is {a} dollars.", "The answer is \\${a}.",
        "Answer: €{a}", "After paying ${w}, she has ${a} left.", "The answer is **${a}**.", "**Total: ${a}**",
        "In all it was ${w} + ${v} = ${a}", "The final answer is ${a} per week.",
    ],
    "units": [
        "The answer is {a} cm.", "Answer: {a} hours", "She has {a} apples left.", "The answer is {a} square meters.",
        "It took {w} minutes, then {v} more: the answer is {a} minutes.", "{a} clips", "Total: {a} clips",
        "Therefore, the answer is {a} people because {w} left.", "They drove {w} km and then {v} km, so {a} km.",
    ],
    "chat": [
        "Sure! Let's work through it.\n\nFirst, {w}. Then {v}.\n\nSo the answer is {a}. I hope this helps!",
        "It's {a}.", "{a}", "{a}.", "So we get {a}.", "= {a}", "... {v} + {w} = {a}", "Therefore there are {a} left.",
        "The correct answer is {a}. Let me know if you have further questions.", "Ans: {a}", "Final answer: {a}",
        "The answer to the problem is {a}.", "Hence the answer must be {a}.", "#### {a}", "steps {w}\n#### {a}",
        "If the answer is {w} there is a contradiction, so the answer is {a}.", "So the final result is {a}.",
        "The answer is {w}. Let me check. That was wrong. The answer is {a}.", "${a}$", "\\({a}\\)", "$${a}$$",
    ],
    "scripts": [
        "所以，答案是{a}。", "答案：{a}", "因此最终答案为 **{a}**。", "正确答案是{a}元。", "答えは{a}です。", "정답은 {a}입니다.",
        "La respuesta es {a}.", "La respuesta final es: {a}", "La réponse est {a}.", "Die Antwort ist {a}.",
        "Die Antwort lautet: {a}", "Ответ: {a}", "Ответ: {a} рублей.", "A resposta é {a}.", "La risposta è {a}.",
        "Đáp án là {a}.", "Jawabannya adalah {a}.", "الإجابة هي {a}", "उत्तर: {a}", "Cevap: {a}", "答案是 ${a}$。",
        "先算 {w}，再算 {v}。\n答案是：{a}", "Odpowiedź: {a}",
    ],
}  # fmt: skip

_CHOICE = {
    "letter boxed": [
        "\\boxed{{{a}}}", "So $\\boxed{{\\textbf{{({a})}}}}$.", "\\boxed{{\\text{{{a}}}}}", "$\\boxed{{\\mathrm{{{a}}}}}$",
        "We first thought \\boxed{{{w}}}, but it is \\boxed{{{a}}}.", "\\boxed{{({a})}}",
    ],
    "letter chat": [
        "The answer is {a}.", "Answer: {a}", "**Answer: {a}**", "**{a}**", "{a}", "({a})", "{a}.", "{a})", "[{a}]",
        "The correct answer is **{a}**.", "The correct option is ({a}).", "Therefore, {a} is correct.", "`{a}`",
        "Hence option {a} is the right answer.", "The best choice is {a}: it fits.", "I would choose {a}.",
        "So ({a}) is the correct answer because {w} is too small.", "I'll go with {a}.", "Thus {a} is the answer.",
        "Option {w} is tempting.\n\nFinal answer: {a}", "### Answer\n\n**{a}**", "Answer: **{a}) blue**",
        "The answer is ({a}) because ({w}) is false.", "<answer>{a}</answer>", "<answer>Option {a}</answer>",
        "Choice {a} must be correct.", "The right answer is {a}.", "**The best answer is option {a}.**",
    ],
    "letter denied": [
        "The answer is not {w}. The answer is {a}.", "It is not ({w}). The answer is ({a}).",
        "The answer is not {w}, but {a}.", "{w} is not correct. Therefore, {a} is correct.",
        "The answer is {a}, not {w}.", "We can rule out {w} and {v}. The answer is {a}.", "{a} is correct; {w} is wrong.",
        "If {w} is correct we get a contradiction. So {a} is correct.", "{w} isn't right. The correct answer is {a}.",
        "The answer is {a}. It can't be ({w}).", "The answer is {w}. Wait, that is wrong. The answer is {a}.",
        "Suppose the answer is {w}. That fails. Therefore the answer is {a}.",
    ],
    "letter thoughts": [
        "<think>The answer is {w}.</think>The answer is {a}.", "<think>{w}? {v}?</think>\n\n{a}", "{w} first.</think>({a})",
        "<think>\\boxed{{{w}}}</think>**{a}**", "[THINK]answer: {w}[/THINK]answer: {a}",
    ],
    "letter scripts": [
        "答案是{a}。", "正确答案：{a}", "故选{a}。", "所以选择 {a}", "因此，答案为（{a}）。", "正解は{a}です。", "정답은 {a}입니다.",
        "La respuesta correcta es {a}.", "La bonne réponse est {a}.", "Die richtige Antwort ist {a}.", "Ответ: {a}",
        "Правильный ответ: {a}.", "A resposta correta é {a}.", "La risposta corretta è {a}.", "Đáp án đúng là {a}.",
        "الإجابة الصحيحة هي {a}", "सही उत्तर: {a}", "Doğru cevap: {a}", "不是{w}。答案选{a}。",
    ],
}  # fmt: skip

UNDECIDED = (
    "The answer is A or B.", "It could be A. It could be B.", "<think>The answer is A.", "I don't know.",
    "The answer is not A.", "If the answer is A, it would be odd.", "Is A correct? I am not sure.", "A big dog ran.",
    "(A) red (B) blue (C) green: none of these fits.", "答案不是A。", "",
)  # fmt: skip
"""Replies that commit to no single choice; reading one letter from them is a fault."""


def replies(each: int = 9, seed: int = 7) -> list[Reply]:
    """``each`` replies of every frame with other contents; the same for the same arguments."""
    rng = random.Random(seed)
    found = []
    for task, frames in (("math", _MATH), ("choice", _CHOICE)):
        for kind, texts in frames.items():
            for text in texts:
                for _ in range(each):
                    if task == "choice":
                        a, w, v = rng.sample("ABCDE", 3)
                    else:
                        a, w, v = (str(n) for n in rng.sample(range(2, 999), 3))
                        if rng.random() < 0.2 and kind not in ("money", "scripts"):
                            a = rng.choice([f"{a}.5", f"-{a}", f"1,{rng.randint(100, 999)}", f"{a}/1009"])
                    found.append(Reply(kind, task, text.format(a=a, w=w, v=v), a))
    return found


SETS = (*"abcdefghijklmnopqrstuvwxyz", "za", "zb", "zc", "zd")
"""Of replies that others wrote; those from i on are as in logs of base, chat and reasoning models, those from r on in
natural proportions."""


_LINE_BREAK = re.compile(r"\\n(?!(?:u|eq|abla)(?![A-Za-z]))")  # no command of LaTeX


class Written(NamedTuple):
    """A reply of a file of them: its task, the answer that it gives (none, or after ``!`` one that it does not give),
    and the texts of the options of a choice."""

    task: str
    answer: str
    text: str
    options: tuple[str, ...]


def written(name: str) -> list[Written]:
    """The replies of a file beside this one: columns by tabs, the last one of options joined by ``|``."""
    found = []
    for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines():
        task, answer, text, *options = _LINE_BREAK.sub("\n", line).split("\t")
        found.append(Written(task, answer, text, tuple(options[0].split("|")) if options else ()))
    return found


def read_as(one: Written, math: Verifier) -> Literal["right", "other", "none"]:
    """Whether a reply is read as it is meant, as an answer that it does not give, or as none."""
    if one.task == "choice":
        letters = read_choice(one.text, "ABCDE" if one.answer <= "E" else LETTERS, one.options)
        right, something = letters == frozenset(one.answer) if one.answer else len(letters) != 1, bool(letters)
    else:
        verdict = math(one.text, one.answer.removeprefix("!"))
        right = isinstance(verdict, Score) and verdict.passed != one.answer.startswith("!")
        something = bool(final_expression(one.text))
    return "right" if right else "other" if something else "none"
