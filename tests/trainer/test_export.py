"""A checkpoint's model as a folder that transformers reads."""

from pathlib import Path

import pytest
import torch
from loop_runs import run
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer.cli import main
from trainer.command import MISTAKE
from trainer.run.checkpoint import list_checkpoints, load_checkpoint


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_each_checkpoint_is_exported_with_its_own_weights(
    tmp_path: Path, lora_rank: int, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = {"pack_tokens": 64, "lora_rank": lora_rank}
    folder, _ = run(tmp_path, steps=2, warm_start={"steps": 1}, evaluation={"every": 0}, learner=learner)
    first, last = list_checkpoints(folder)[0], list_checkpoints(folder)[-1]
    assert main(["export", str(folder), str(tmp_path / "last")]) == 0
    assert "after 2 training steps" in capsys.readouterr().out
    assert main(["export", str(first), str(tmp_path / "first")]) == 0
    for exported, checkpoint in ((tmp_path / "last", last), (tmp_path / "first", first)):
        network = AutoModelForCausalLM.from_pretrained(exported)
        found = network.state_dict()
        for name, weight in load_checkpoint(checkpoint).model():
            assert torch.equal(found[name], weight), name
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
