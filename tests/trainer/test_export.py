"""A checkpoint's model as a folder that transformers reads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from loop_runs import run
from test_ranks_backends import needs
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer.cli import main
from trainer.command import MISTAKE
from trainer.run.checkpoint import list_checkpoints, load_checkpoint

CASES = [
    pytest.param({}, 1, id="torch"),
    pytest.param({"lora_rank": 2}, 1, id="torch with adapters"),
    pytest.param({"backend": "fsdp2"}, 2, marks=pytest.mark.slow, id="fsdp2"),
    pytest.param({"backend": "fsdp2", "lora_rank": 2}, 2, marks=pytest.mark.slow, id="fsdp2 with adapters"),
    pytest.param({"backend": "fsdp2", "precision": "bfloat16"}, 2, marks=pytest.mark.slow, id="fsdp2 in bfloat16"),
    pytest.param({"backend": "deepspeed", "stage": 3}, 2, marks=pytest.mark.cluster, id="deepspeed"),
    pytest.param({"backend": "megatron", "tensor_parallel": 2}, 2, marks=pytest.mark.megatron, id="megatron"),
]


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(("learner", "ranks"), CASES)
def test_each_checkpoint_is_exported_with_its_own_weights(
    tmp_path: Path, learner: dict[str, Any], ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in {"deepspeed", "megatron"} & {learner.get("backend", "")}:
        needs(package)
    folder, _ = run(
        tmp_path,
        steps=2,
        warm_start={"steps": 1},
        evaluation={"every": 0},
        learner={"pack_tokens": 64, **learner},
        placement={"learner": {"ranks": ranks}},
    )
    first, last = list_checkpoints(folder)[0], list_checkpoints(folder)[-1]
    assert len([*last.glob("rank-*.safetensors")]) == (ranks if ranks > 1 else 0)
    assert main(["export", str(folder), str(tmp_path / "last")]) == 0
    assert "after 2 training steps" in capsys.readouterr().out
    assert main(["export", str(first), str(tmp_path / "first")]) == 0
    for exported, checkpoint in ((tmp_path / "last", last), (tmp_path / "first", first)):
        network = AutoModelForCausalLM.from_pretrained(exported)
        found = network.state_dict()
        for name, weight in load_checkpoint(checkpoint).model():
            assert torch.equal(found[name], weight.to(found[name].dtype)), name
    trained = AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()
    assert all(
        torch.equal(trained[name], w)
        for name, w in AutoModelForCausalLM.from_pretrained(tmp_path / "last").state_dict().items()
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "last").encode("Left")


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("kept")
    folder, _ = run(tmp_path, steps=1, warm_start={"steps": 1}, evaluation={"every": 0})
    assert main(["export", str(folder), str(tmp_path / "taken")]) == MISTAKE
    assert "is there already; name a new folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["file"]
    assert main(["export", str(tmp_path / "nowhere"), str(tmp_path / "new")]) == MISTAKE
    assert not (tmp_path / "new").exists()
