"""Real chat templates and tokenizers where they are at hand, and tokenizers dressed so that a template fits them.

Templates come from the installed package ``trl`` (its folder ``chat_templates``), or from a folder of ``*.jinja`` files
that the environment variable ROLL_CHAT_TEMPLATES names; tokenizers from the reference data beside the repository, or
from a folder of folders that ROLL_TOKENIZERS names. Nothing is copied into the project.
"""

from __future__ import annotations

import importlib.util
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

SPECIAL = re.compile(
    r"<\|[\w\-▁/.]+\|>|<｜[\w▁:\-]+｜>|<\|[a-z_]+>|<[a-z_]+\|>|\[/?[A-Z_]{3,}\]|\[g?MASK\]|<sop>"
    r"|</?s>|<bos>|<eos>|<(?:start|end)_of_turn>|<(?:/?(?:BOS|EOS)[A-Z_]*)>|<[｜|]?DSML[｜|]?>|\]~[b!]\]|\[e~\["
    r"|<(?:beginning|end)_of_\w+>|<seed:\w+>|<SPECIAL_\d+>|<sep>"
)
"""Role markers as the templates of known families spell them."""
ORDINARY = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Whole tokens of several families that are not special: replies are made of them."""
ENDS = (
    "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>", "<|return|>", "<|end|>",
    "<|END_OF_TURN_TOKEN|>", "<|end_of_text|>", "<|assistant_end|>", "<|user|>", "</s>", "<eos>",
)  # fmt: skip
STARTS = ("<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<|startoftext|>", "<bos>", "<s>", "<|endoftext|>")


def template_folder() -> Path | None:
    """Where real templates lie, or ``None``."""
    named = os.environ.get("ROLL_CHAT_TEMPLATES")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("trl")  # is not imported: it would need its dependencies
    found = [Path(place) / "chat_templates" for place in (spec.submodule_search_locations or ())] if spec else []
    return next((folder for folder in found if folder.is_dir()), None)


def template_names() -> list[str]:
    folder = template_folder()
    return sorted(path.stem for path in folder.glob("*.jinja")) if folder else []


def read_template(name: str) -> str:
    folder = template_folder()
    assert folder is not None
    return (folder / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer_folders() -> dict[str, Path]:
    """Tokenizers in Hugging Face form, by name."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "tokenizers"
    named = os.environ.get("ROLL_TOKENIZERS")
    places = [beside, *([Path(named)] if named else [])]
    return {p.parent.name: p.parent for place in places for p in sorted(place.glob("*/tokenizer.json"))}


@cache
def _file(folder: Path) -> str:
    from tokenizers import Tokenizer

    return str(Tokenizer.from_file(str(folder / "tokenizer.json")).to_str())


def dressed(tokenizer: Any, template: str) -> Any:
    """``tokenizer`` with ``template`` and the special tokens that it writes, as a model of that family has them."""
    markers = list(dict.fromkeys(SPECIAL.findall(template)))
    end = next((t for t in ENDS if t in template), None) or tokenizer.eos_token or "<|endoftext|>"
    start = next((t for t in STARTS if t in template), None) or tokenizer.bos_token or "<s>"
    tokenizer.add_special_tokens({"additional_special_tokens": [*markers, start, end]})
    tokenizer.add_tokens([t for t in ORDINARY if t in template])
    tokenizer.bos_token, tokenizer.eos_token = start, end
    tokenizer.chat_template = template
    return tokenizer


def real_tokenizer(folder: Path, template: str) -> Any:
    """A fresh copy of the tokenizer in ``folder``, dressed for ``template``."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(_file(folder))
    return dressed(PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False), template)
