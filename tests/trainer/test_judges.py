"""Judges that a run serves: who asks them, their servers and what becomes of these; sandboxes on chosen processors."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model
from vllm_engines import made_environment, until

from roll_envs import Program, make_sandbox, make_verifier
from roll_envs.errors import ConfigError, EngineError
from roll_envs.sandbox import SANDBOX_CPUS
from roll_envs.verifiers.types import Failed, Score
from trainer.cluster import sandboxes_on
from trainer.cluster.seats import Machine, place
from trainer.config import RunConfig
from trainer.config.load import parse_config
from trainer.engines import judges as judges_module
from trainer.engines.judges import check_judges, command_line, judge_settings, served_judges
from trainer.engines.vllm import GPU_BUILD
from trainer.model.network import save_model
from trainer.rollout.source import Session
from trainer.run.picture import seats

FOUR = Machine(gpus=("4", "5", "6", "7"), cpus=(0, 1, 2, 3))

_CHAT = """
import argparse, http.server, json, os, signal, sys, threading
options = argparse.ArgumentParser()
options.add_argument("--port", type=int)
options.add_argument("--served-model-name")
options.add_argument("--broken", action="store_true")
given, rest = options.parse_known_args()
threading.Thread(target=lambda: (os.read(0, 1), os.killpg(0, signal.SIGKILL)), daemon=True).start()
print("judge began with", rest, flush=True)
if given.broken:
    sys.exit("no such thing as a model")

class Chat(http.server.BaseHTTPRequestHandler):
    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.reply(200 if self.path == "/health" else 404, {})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or body["model"] != given.served_model_name:
            return self.reply(404, {"error": {"message": "no such model"}})
        right = "Paris" in body["messages"][-1]["content"]
        verdict = {"reason": "as it is", "verdict": "correct" if right else "incorrect", "probability": float(right)}
        said = {"role": "assistant", "content": json.dumps(verdict)}
        self.reply(200, {"choices": [{"message": said, "finish_reason": "stop"}]})
    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", given.port), Chat).serve_forever()
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment in which a small chat server stands for vLLM."""
    folder = made_environment(tmp_path / "venv")
    program = tmp_path / "chat.py"
    program.write_text(textwrap.dedent(_CHAT))
    (folder / "bin" / "python").write_text(f"#!/bin/sh\nshift\nexec '{sys.executable}' '{program}' \"$@\"\n")
    return folder


@pytest.fixture
def judge_model(tmp_path: Path) -> Path:
    save_model(tiny_model(), tmp_path / "judge-model")
    return tmp_path / "judge-model"


def config_of(more: str = "", env: str = "{id: roll/FrozenLake-v0}") -> RunConfig:
    return parse_config(f"format: 1\nname: t\nsteps: 1\nenv: {env}\n{more}\n")


def judging(environment: Path, model: Path, more: str = "") -> RunConfig:
    return config_of(f"judges:\n  referee: {{model: '{model}', venv: '{environment}', device: cpu{more}}}")


def ended(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def referee(**options: Any) -> Any:
    return make_verifier(
        "llm_judge", url="judge:referee", model="referee", **{"tries": 20, "deadline_s": 30, **options}
    )


def process_of(name: str = "ROLL_JUDGE_REFEREE") -> int:
    """The process that listens at a judge's address."""
    port = os.environ[name].rpartition(":")[2].partition("/")[0]
    for place_ in Path("/proc").iterdir():
        if place_.name.isdigit():
            try:
                words = (place_ / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--served-model-name" in words and port.encode() in words:
                return int(place_.name)
    raise AssertionError("nobody listens there")


# -- servers -----------------------------------------------------------------------------------------------------------


def test_verifiers_ask_a_served_judge_by_its_name(environment: Path, judge_model: Path) -> None:
    judge = referee(cache_items=1)
    with served_judges(judging(environment, judge_model), [()], [0]):
        assert os.sched_getaffinity(process_of()) == {0}
        right, wrong = judge("It is Paris.", "the capital"), judge("It is Rome.", "the capital")
        assert isinstance(right, Score)
        assert isinstance(wrong, Score)
        assert (right.value, wrong.value) == (1.0, 0.0)
        pid = process_of()
    assert "ROLL_JUDGE_REFEREE" not in os.environ
    assert not Path(f"/proc/{pid}").exists()
    unserved = judge("It is Oslo.", "the capital")
    assert isinstance(unserved, Failed)
    assert "'judge:referee': no such judge is served" in unserved.reason
    judge.close()


def test_a_judge_that_dies_is_started_again_and_verdicts_wait(environment: Path, judge_model: Path) -> None:
    judge = referee()
    with served_judges(judging(environment, judge_model, ", restarts: 1"), [()], []):
        first = process_of()
        os.kill(first, signal.SIGKILL)
        verdict = judge("It is Paris.", "the capital")
        assert isinstance(verdict, Score)
        assert verdict.value == 1.0
        second = process_of()
        assert second != first
        os.kill(second, signal.SIGKILL)  # its restarts are used up
        hurried = referee(tries=2, deadline_s=3)
        until(lambda: ended(second))
        assert isinstance(hurried("It is Bern.", "the capital"), Failed)
        hurried.close()
    judge.close()


def test_a_judge_that_does_not_come_up_says_why(environment: Path, judge_model: Path) -> None:
    config = judging(environment, judge_model, ", arguments: [--broken]")
    said = r"judges\.referee: its server ended\. (.|\n)*no such thing as a model"
    with pytest.raises(EngineError, match=said), served_judges(config, [()], []):
        raise AssertionError("it answers")
    assert "ROLL_JUDGE_REFEREE" not in os.environ


def test_a_judge_without_a_model_is_refused(environment: Path, tmp_path: Path) -> None:
    config, said = judging(environment, tmp_path / "nothing"), r"judges\.referee\.model: no Hugging Face model in"
    with pytest.raises(ConfigError, match=said), served_judges(config, [()], []):
        raise AssertionError("it answers")


def test_a_session_serves_judges_before_workers_that_inherit_their_addresses(
    environment: Path, judge_model: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "What is the capital of France?", "answer": "Paris"}) + "\n")
    verifier = {"name": "llm_judge", "url": "judge:referee", "model": "referee"}
    env = f"{{id: roll/Dataset-v0, kwargs: {{path: '{rows}', verifier: {json.dumps(verifier)}}}}}"
    more = (
        f"judges:\n  referee: {{model: '{judge_model}', venv: '{environment}', device: cpu}}\n"
        "rollout: {manager: process, workers: 1}\nplacement: {judges: {cpus: [0]}, sandboxes: {cpus: [0]}}\n"
        "engine: {name: scripted, answers: [Paris]}\nevaluation: {tasks: 1}"
    )
    config = config_of(more, env)
    check_judges(config)
    with Session(config) as session:
        assert os.environ[SANDBOX_CPUS] == "0"
        (episode,) = session.collect(session.evaluation_tasks(1), 1)[0].trajectories
    assert episode.success, episode.outcome
    assert SANDBOX_CPUS not in os.environ


def test_a_server_s_command_by_what_it_computes_on(tmp_path: Path) -> None:
    build = made_environment(tmp_path / "gpu", **GPU_BUILD)
    text = f"judges: {{big: {{model: x, venv: '{build}', tensor_parallel_size: 2, arguments: [--seed, '1']}}}}"
    judge = config_of(text).judges["big"]
    words = command_line("big", judge, tmp_path, "http://127.0.0.1:77")
    found = dict(pairwise(words))
    expected = {
        "--model": str(tmp_path), "--served-model-name": "big", "--host": "127.0.0.1", "--port": "77",
        "--dtype": "bfloat16", "--max-model-len": "8192", "--max-num-seqs": "64", "--tensor-parallel-size": "2",
        "--gpu-memory-utilization": "0.9", "--seed": "1",
    }  # fmt: skip
    assert found.items() >= expected.items()
    assert words[0] == str(build / "bin" / "python")
    assert "--enforce-eager" not in words
    variables = judges_module._variables(judge, ("5", "6"))
    assert variables["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert not {"VLLM_SERVER_DEV_MODE", "VLLM_PLUGINS"} & variables.keys() - os.environ.keys()
    on_cpu = judge.model_copy(update={"device": "cpu", "kv_cache_gib": 3})
    words, variables = (
        command_line("big", on_cpu, tmp_path, "http://127.0.0.1:77"),
        judges_module._variables(on_cpu, ()),
    )
    assert ("--enforce-eager" in words, variables["VLLM_CPU_KVCACHE_SPACE"]) == (True, "3")
    assert judge_settings(judge).resolved("auto").dtype == "bfloat16"


# -- who sits where ----------------------------------------------------------------------------------------------------


@pytest.fixture
def two_judges(tmp_path: Path) -> str:
    """One of two GPUs and one of one, with vLLM's build for GPUs."""
    build = made_environment(tmp_path / "gpu", **GPU_BUILD)
    big, small = f"model: x, venv: '{build}', tensor_parallel_size: 2", f"model: y, venv: '{build}'"
    return f"judges:\n  big: {{{big}}}\n  small: {{{small}}}\n"


def test_judges_take_gpus_that_learner_and_engine_leave(two_judges: str) -> None:
    assert place(config_of(two_judges), FOUR).judges == ((1, 2), (3,))
    listed = config_of(two_judges + "placement: {judges: {devices: [3, 1, 2]}}")
    found = place(listed, FOUR)
    assert found.judges == ((3, 1), (2,))
    shown = {(seat.place, seat.who) for seat in seats(listed, found)}
    assert {("3", "judge big"), ("1", "judge big"), ("2", "judge small")} <= shown


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("judges: {devices: [0, 1, 2]}", r"judges\.devices \[0, 1, 2\]: GPU 0 is the learner's or the engine's"),
        ("judges: {devices: [1, 2]}", r"devices \[1, 2\]: the judges big, small need 3 GPUs .*, and there are 2"),
        ("learner: {ranks: 2}", r"^the judges big, small need 3 GPUs .* and there are 2; this machine has 4"),
        ("judges: {devices: [1, 2, 9]}", r"judges\.devices \[1, 2, 9\]: this machine has no GPU 9"),
        ("judges: {cpus: 1}", r"judges\.cpus 1: no judge that this run serves computes on processors"),
        ("judges: {devices: [1, 1]}", r"judges\.devices is \[1, 1\]; a list names each number once"),
    ],
)
def test_a_placement_of_judges_that_cannot_be_met_is_refused(two_judges: str, placement: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        place(config_of(f"{two_judges}placement: {{{placement}}}"), FOUR)


def test_processors_of_judges_and_sandboxes() -> None:
    text = "judges: {small: {model: y, device: cpu}}\nplacement: {judges: {cpus: 2}, sandboxes: {cpus: [0]}}"
    config = config_of(text)
    found = place(config, FOUR)
    assert (found.judges, found.judge_cpus, found.sandbox_cpus) == (((),), (1, 2), (0,))
    shown = {(seat.place, seat.who) for seat in seats(config, found)}
    assert {("CPUs 1-2", "judge small"), ("CPUs 0", "sandboxes")} <= shown
    with pytest.raises(ConfigError, match=r"judges\.devices 1: no judge that this run serves computes on a GPU"):
        place(config_of("placement: {judges: {devices: 1}}"), FOUR)
    with pytest.raises(ConfigError, match=r"sandboxes\.cpus is set, but sandboxes of rollout\.manager 'ray'"):
        config_of("placement: {sandboxes: {cpus: 1}}\nrollout: {manager: ray}")


# -- what is refused before anything starts ----------------------------------------------------------------------------


def test_a_judge_that_is_asked_and_not_served_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = "{id: roll/Dataset-v0, kwargs: {verifier: {name: llm_judge, url: 'judge:umpire', model: m}}}"
    with pytest.raises(
        ConfigError, match=r"ask 'judge:umpire', and the judges of this run are none; add judges\.umpire"
    ):
        check_judges(config_of(env=asking))
    monkeypatch.setenv("ROLL_JUDGE_UMPIRE", "http://elsewhere/v1")
    check_judges(config_of(env=asking))


def test_a_judge_s_vllm_must_be_there_and_ray_cannot_reach_it(tmp_path: Path, environment: Path) -> None:
    with pytest.raises(ConfigError, match=r"judges\.referee: engine 'vllm': it is not in .*judges\.referee\.venv"):
        check_judges(judging(tmp_path / "nowhere", tmp_path))
    config = judging(environment, tmp_path)
    check_judges(config)
    with_ray = config.model_copy(update={"rollout": config.rollout.model_copy(update={"manager": "ray"})})
    with pytest.raises(ConfigError, match=r"loopback address, which environments of rollout\.manager 'ray' do"):
        check_judges(with_ray)
    with pytest.raises(ConfigError, match=r"judges"):
        config_of("judges: {'A b': {model: x}}")


# -- sandboxes ---------------------------------------------------------------------------------------------------------


def test_sandboxes_run_on_the_processors_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SANDBOX_CPUS, raising=False)
    program = Program(source="print(sorted(__import__('os').sched_getaffinity(0)))")
    last = max(os.sched_getaffinity(0))
    with sandboxes_on([last]), make_sandbox("local") as sandbox:
        assert sandbox.run(program).stdout == b"[%d]\n" % last
    assert SANDBOX_CPUS not in os.environ
    for wrong in ("9999", "x"):
        monkeypatch.setenv(SANDBOX_CPUS, wrong)
        said = rf"ROLL_SANDBOX_CPUS is '{wrong}'; allowed: numbers of 0"
        with pytest.raises(ConfigError, match=said), make_sandbox("local") as sandbox:
            sandbox.run(program)
