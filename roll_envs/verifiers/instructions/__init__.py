"""Instructions that can be checked by a program: the 25 kinds of IFEval (Zhou et al. 2023, arXiv:2311.07911) by public
id, the 29 that IFEvalG adds, and 25 of IFBench's.

Rows of the public data work unchanged. Every check counts as the published code does, so that numbers compare, its
oddities included (``---`` is a bullet, keywords count inside longer words, ``P.S.`` may stand anywhere). It differs
where that code is unsafe, random or plainly wrong; ``docs/verifiers.md`` has the list.
"""

from roll_envs.verifiers.instructions.arguments import Check, Kind
from roll_envs.verifiers.instructions.text import count_sentences, count_words, split_sentences
from roll_envs.verifiers.instructions.verifier import INSTRUCTIONS, InstructionsVerifier, loose_forms, read_instructions

__all__ = [
    "INSTRUCTIONS",
    "Check",
    "InstructionsVerifier",
    "Kind",
    "count_sentences",
    "count_words",
    "loose_forms",
    "read_instructions",
    "split_sentences",
]
