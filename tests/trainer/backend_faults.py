"""Faults planted in backends, ranks and what joins them to a run: sums that are missing, shards of the wrong rank,
flags that nobody reads, placements that are ignored.

``python tests/trainer/backend_faults.py fsdp2|deepspeed|ranks|wiring [number or part of a name ...]`` plants those of
one part, one at a time, and runs the tests of that part; those of DeepSpeed need it installed.
"""

from __future__ import annotations

import sys

from oracle_faults import CRITIC, GRADIENTS, Fault, Suite, plant

FSDP2, ZERO, DEEPSPEED = (f"trainer/learner/{name}.py" for name in ("fsdp2", "zero", "deepspeed"))
STEPS = "trainer/learner/steps.py"
SEATS, PLACES, CREW = (f"trainer/cluster/{name}.py" for name in ("seats", "learner_ranks", "crew"))
BUCKETS, REPLICA, REMOTE = (f"trainer/engines/{name}.py" for name in ("buckets", "replica", "remote"))
SNAPSHOT, UPDATE, LOOP = "trainer/learner/snapshot.py", "trainer/run/update.py", "trainer/run/loop.py"
RANK, RANKED = "trainer/cluster/rank.py", "trainer/cluster/ranked.py"

RANKS = (
    *(
        f"tests/trainer/test_learner_ranks.py::test_{name}"
        for name in (
            "what_is_dealt_comes_back_in_its_place",
            "one_rank_gives_the_numbers_of_this_process",
            "a_reference_that_stays_has_no_weights_beside_adapters",
        )
    ),
    "tests/trainer/test_ranks.py",
    "tests/trainer/test_learner_ranks.py::test_two_ranks_give_the_numbers_of_this_process",
)
"""The quick ones first."""
SUITES = {
    "fsdp2": Suite(("tests/trainer/test_fsdp2.py",), "", "uneven"),
    "deepspeed": Suite(
        ("tests/trainer/test_deepspeed.py",), "", "zero1 or zero2-half-offload or zero3-offload or model_stays"
    ),
    "ranks": Suite(tuple(RANKS), ""),
    "wiring": Suite(
        tuple(
            f"tests/trainer/test_{name}.py"
            for name in (
                "crew",
                "placement",
                "roles",
                "learner_ranks",
                "offload",
                "saving",
                "checkpoint",
                "rank_weights",
                "sent_changes",
                "transfer",
                "vllm_contract",
                "sglang_contract",
                "replicas",
                "loop_wiring",
            )
        ),
        only="test_placement",
    ),
}

OWN_DENOMINATORS = "        denominators = self._ranks.denominators(denominators)\n"

DENOMINATORS = (
    Fault("the denominators of one rank", STEPS, "total = ranks.denominators(own)", "total = own"),
    Fault("the critic's denominators of one rank", STEPS, "max(total.tokens, 1)", "max(own.tokens, 1)"),
)

FAULTS = {
    "fsdp2": [
        Fault(
            "gradients are averaged",
            FSDP2,
            "            sharded.set_gradient_divide_factor(1.0)  # summed, not averaged\n",
            "",
        ),
        Fault("cut by the local norm", FSDP2, 'self.sum({"": squares_of(local)})[""]', "squares_of(local)"),
        Fault(
            "weights are cut by the norm without a limit",
            FSDP2,
            "return clipped(local, self",
            "return clipped([], self",
        ),
        Fault("shards of another rank", FSDP2, "* self.rank  # torch", "* (self.count - 1 - self.rank)  # torch"),
        Fault("all ranks keep the state", FSDP2, "return found if keep or self.rank == 0 else {}", "return found"),
        Fault(
            "offload is ignored",
            FSDP2,
            "self._offload = CPUOffloadPolicy() if cpu_offload else OffloadPolicy()",
            "self._offload = OffloadPolicy()",
            "offload",
        ),
        Fault(
            "shards of copies are not offloaded",
            FSDP2,
            'self._home = torch.device("cpu") if cpu_offload else device',
            "self._home = device",
            "offload",
        ),
        Fault(
            "gradients are summed in half precision",
            FSDP2,
            "reduce_dtype=torch.float32",
            "reduce_dtype=compute",
            "layers_are_cut or uneven",
        ),
        Fault(
            "the whole model is gathered at once",
            FSDP2,
            "for module in (*layers, root):",
            "for module in (root,):",
            "layers_are_cut or uneven",
        ),
        Fault(
            "weights stay whole after scoring",
            FSDP2,
            "        self._root.reshard()\n",
            "",
        ),
        Fault("the reference is the policy", FSDP2, "        return scorer\n", "        return self._policy\n"),
        Fault(
            "the reference begins at 0",
            FSDP2,
            "        scorer.load_weights(self.weights())\n        return scorer",
            "        return scorer",
        ),
        Fault(
            "the policy resumes without its optimiser's state",
            FSDP2,
            'does, on all ranks.\n        """\n        super().load_optimizer_state(self._ranks.sharded_state(state))',
            'does, on all ranks.\n        """\n        self._ranks.sharded_state(state)',
        ),
        Fault(
            "the critic resumes without its optimiser's state",
            FSDP2,
            'rank 0 is given."""\n        super().load_optimizer_state(self._ranks.sharded_state(state))',
            'rank 0 is given."""\n        self._ranks.sharded_state(state)',
        ),
        Fault(
            "no masters in a checkpoint",
            FSDP2,
            "for p in self.values] if half else []",
            "for p in self.values if not half]",
            "bfloat16 and not adapters",
        ),
        *DENOMINATORS,
        Fault(
            "the critic is not stepped", CRITIC, "take_step(self._optimizers, lr)", "take_step(self._optimizers, 0.0)"
        ),
        Fault(
            "frozen weights are float32",
            FSDP2,
            "            if parameter.requires_grad:\n                parameter.data",
            "            if True:\n                parameter.data",
            "bfloat16 and adapters",
        ),
        Fault(
            "the optimiser steps rounded shards",
            FSDP2,
            "parameter.data = parameter.data.float()",
            "pass",
            "bfloat16 and not adapters",
        ),
    ],
    "deepspeed": [
        Fault(
            "gradients are averaged", ZERO, "backward(made * self._ranks.count)", "backward(made)", "zero2 and not half"
        ),
        Fault(
            "the denominators of one rank",
            DEEPSPEED,
            OWN_DENOMINATORS + '        sums = {"total": 0.0}',
            '        sums = {"total": 0.0}',
            "zero1 and not half",
        ),
        Fault(
            "the critic's denominators of one rank",
            DEEPSPEED,
            OWN_DENOMINATORS + "        sums: dict[str, float] = {}",
            "        sums: dict[str, float] = {}",
            "zero1 and not half",
        ),
        Fault(
            "stage 2 is 1",
            ZERO,
            '"stage": settings.stage,',
            '"stage": 1 if settings.stage == 2 else settings.stage,',
            "zero2-half-offload",
        ),
        Fault("stage 3 is 2", ZERO, '"stage": settings.stage,', '"stage": min(settings.stage, 2),', "zero3-half"),
        Fault(
            "the optimiser is not offloaded",
            ZERO,
            'zero["offload_optimizer"] = {"device": "cpu"}',
            "pass",
            "zero2-half-offload",
        ),
        Fault("weights are not offloaded", ZERO, 'zero["offload_param"] = {"device": "cpu"}', "pass", "zero3-offload"),
        Fault(
            "the threshold is DeepSpeed's", ZERO, '": settings.param_persistence_threshold', '": 100_000', "zero3-half"
        ),
        Fault(
            "gradients are not cut",
            ZERO,
            "if optimizer is None else optimizer.max_grad_norm",
            "if True else 0.0",
            "zero1 and not half",
        ),
        Fault(
            "gradients are sent in half precision",
            ZERO,
            '"communication_data_type": "fp32"',
            '"communication_data_type": "bf16"',
        ),
        Fault(
            "gradients are added in half precision",
            ZERO,
            '{"grad_accum_dtype": "fp32"}',
            '{"grad_accum_dtype": "bf16"}',
        ),
        Fault("the learning rate is the first one", ZERO, 'group["lr"] = lr\n', "pass\n", "zero1 and not half"),
        Fault(
            "a refused step leaves its gradients",
            ZERO,
            "gradients.update(dict.fromkeys(gradients))",
            "pass",
            "zero1 and not half",
        ),
        Fault(
            "a step is refused on one rank",
            GRADIENTS,
            "self._ranks.any(not (math.isfinite(norm) and norm <= self._limit))",
            "bool(self._ranks.rank) and not (math.isfinite(norm) and norm <= self._limit)",
            "zero1 and not half",
        ),
        Fault("float32 copies of weights that are gone", ZERO, "self._zero.refresh_fp32_params()", "pass"),
        Fault(
            "the critic is not stepped",
            DEEPSPEED,
            "self._values.step(lr, lambda",
            "self._values.step(0.0, lambda",
            "zero1 and not half",
        ),
        Fault(
            "the reference of stage 3 is the policy",
            DEEPSPEED,
            "_ShardedScorer(self._sharded(self._policy.form().requires_grad_(False)))",
            "_ShardedScorer(self._policy)",
            "zero3-offload",
        ),
        Fault(
            "the reference is scored at temperature 1",
            DEEPSPEED,
            "frozen.to(self._device), self._temperature",
            "frozen.to(self._device), 1.0",
            "zero1 and not half",
        ),
        Fault("resumed without moments", ZERO, "self._set(parameter, whole, name)", "pass", "zero1 and not half"),
        Fault(
            "resumed at the first step",
            ZERO,
            '["step"] = torch.tensor(step)',
            '["step"] = torch.tensor(0.0)',
            "zero1 and not half",
        ),
        Fault("resumed without float32 copies", ZERO, "self._set(parameter, master)", "pass"),
        Fault("resumed without skipped steps", DEEPSPEED, 'int(state.get("skipped", 0))', "0", "model_stays"),
        Fault(
            "moments of another rank",
            ZERO,
            "padded[count * self._ranks.rank :]",
            "padded[count * (self._ranks.count - 1 - self._ranks.rank) :]",
            "zero3-offload",
        ),
        Fault(
            "weights that are loaded do not reach the shards",
            ZERO,
            "GatheredParameters(own[name], modifier_rank=0)",
            "GatheredParameters(own[name], modifier_rank=None)",
            "zero3-offload",
        ),
    ],
    "ranks": [
        Fault(
            "gradients are not summed", GRADIENTS, "distributed.all_reduce(parameter.grad, group=self.group)", "pass"
        ),
        Fault(
            "gradients are averaged",
            GRADIENTS,
            "distributed.all_reduce(parameter.grad, group=self.group)",
            "distributed.all_reduce(parameter.grad.div_(self.count), group=self.group)",
        ),
        Fault(
            "numbers of one rank",
            GRADIENTS,
            "        return found\n\n    def sum",
            "        return [value] * self.count\n\n    def sum",
        ),
        Fault("a step is skipped on one rank", GRADIENTS, "return any(self.gather(flag))", "return flag"),
        *DENOMINATORS,
        Fault(
            "the critic's gradients are not summed", CRITIC, "        self._ranks.add_gradients(self._parameters)\n", ""
        ),
        Fault("the metrics of one rank", STEPS, 'ranks.sum({"tokens": tokens, **sums})', '{"tokens": tokens, **sums}'),
        Fault("every rank counts all sequences", RANKED, "none if rank else denominators", "denominators"),
        Fault(
            "results of another rank",
            RANKED,
            "zip(pieces, found, strict=True)",
            "zip(pieces, found[::-1], strict=True)",
        ),
        Fault("pieces in the order of their work", RANKED, "in sorted(part.items())", "in part.items()"),
        Fault("parts of a line in the order of their work", RANKED, "for p in sorted(at)", "for p in at"),
        Fault(
            "the first lines of every piece",
            RANKED,
            "slice(piece.first, piece.last)",
            "slice(0, piece.last - piece.first)",
        ),
        Fault(
            "the first positions of every piece",
            RANKED,
            "slice(piece.start, piece.end)",
            "slice(0, piece.end - piece.start)",
        ),
        Fault(
            "weights are copied the other way",
            RANK,
            "self._parts[name].load_weights(self._parts[source].weights())",
            "self._parts[source].load_weights(self._parts[name].weights())",
        ),
        Fault(
            "the state of the last rank",
            RANKED,
            'self._crew.call("state", self._name)[0]',
            'self._crew.call("state", self._name)[-1]',
        ),
        Fault(
            "the critic's state goes to the policy",
            RANKED,
            '"part", self._name, "load_optimizer_state"',
            '"part", "learner", "load_optimizer_state"',
        ),
        Fault(
            "a state is not put back",
            RANKED,
            'self._crew.call("part", self._name, "load_optimizer_state", state)',
            "pass",
        ),
        Fault("the ratio is to the given log-probs", RANKED, "lr=lr, on_policy=on_policy)", "lr=lr)"),
        Fault("a reference always stays", RANKED, 'call("add_reference", fixed)', 'call("add_reference", True)'),
        Fault(
            "no warm start", RANKED, "made = (dump_config(config), warm_start,", "made = (dump_config(config), False,"
        ),
        Fault("the critic's settings are the defaults", RANK, "CriticConfig(**settings)", "CriticConfig()"),
        Fault(
            "the critic scores for the reference",
            RANKED,
            'RankedScorer(self._crew, "reference")',
            'RankedScorer(self._crew, "learner")',
        ),
    ],
    "wiring": [
        Fault(
            "servers ignore the placement",
            SEATS,
            'found["gpus"] = ",".join(machine.gpus[gpu] for gpus in placement.rollout for gpu in gpus)',
            "pass",
            "test_placement",
        ),
        Fault(
            "ranks ignore the placement",
            PLACES,
            "for gpu in placement.visible(rank)) for rank",
            "for gpu in (rank,)) for rank",
            "test_learner_ranks",
        ),
        Fault(
            "processes of ranks are told no GPU",
            CREW,
            "env={**os.environ, **environments[rank]}",
            "env={**os.environ}",
            "test_placement or test_crew or test_learner_ranks",
        ),
        Fault(
            "reference and critic stay with the policy",
            PLACES,
            "part.move(*devices)",
            "pass",
            "test_learner_ranks",
        ),
        Fault(
            "ranks of this machine are one process",
            PLACES,
            'config.cluster == "local" and config.placement.learner.ranks == 1',
            'config.cluster == "local"',
            "test_learner_ranks",
        ),
        Fault(
            "loads are computed, and pieces dealt in turn",
            RANKED,
            "shares = balance([round(work(piece)) for piece in pieces], ranks, quadratic=0.0)",
            "shares = [range(rank, len(pieces), ranks) for rank in range(ranks)]",
            "test_learner_ranks",
        ),
        Fault(
            "ranks ignore the critic's backend",
            RANK,
            'self._learner_of("critic")',
            'self._parts["learner"]',
            "test_roles",
        ),
        Fault(
            "this process ignores roles' backends",
            UPDATE,
            "return role_host(config, name, learner, session.model.network.config)",
            "return learner",
            "test_roles",
        ),
        Fault(
            "the weights that rank 1 wrote are not read",
            SNAPSHOT,
            'for share in self.shares for pair in _mapped(self.folder / share, f"{network}/")',
            'for share in self.shares[:1] for pair in _mapped(self.folder / share, f"{network}/")',
            "test_saving or test_checkpoint",
        ),
        Fault(
            "deadlines are not kept",
            CREW,
            "_OTHERS_S if errors else self._timeout_s)",
            "_OTHERS_S if errors else 20 * self._timeout_s)",
            "test_crew",
        ),
        Fault(
            "steps have the deadline of the start",
            PLACES,
            "        crew.set_timeout(placed.timeout_s)\n",
            "",
            "test_learner_ranks or test_crew",
        ),
        Fault(
            "the learner is not brought back",
            LOOP,
            "        for part in self.parts.offloading:\n            part.reload()\n",
            "",
            "test_offload",
        ),
        Fault(
            "ranks are not brought back",
            RANKED,
            'self._crew.call("part", self._name, "reload")',
            "pass",
            "test_offload",
        ),
        Fault(
            "a restart begins anew",
            LOOP,
            "counters = Counters.load(state, self.folder.path)\n        run =",
            "counters = Counters()\n        run =",
            "test_learner_ranks or test_loop_wiring or test_saving",
        ),
        Fault(
            "a restart has first weights",
            LOOP,
            "        run.load(state)\n        run.damaged",
            "        run.damaged",
            "test_learner_ranks or test_loop_wiring or test_saving",
        ),
        Fault(
            "no probe",
            REPLICA,
            "                await self._probe(sent)\n",
            "                pass\n",
            "test_replicas or test_vllm_contract or test_transfer",
        ),
        Fault(
            "the version stays",
            REMOTE,
            "old, self._sent, self.version = self._sent, sent, sent.version",
            "old, self._sent = self._sent, sent",
            "test_replicas or test_vllm_contract or test_transfer",
        ),
        Fault(
            "changes are nothing", BUCKETS, "        if not len(places):\n", "        if True:\n", "test_sent_changes"
        ),
        Fault(
            "buckets tell the order backwards",
            BUCKETS,
            "            if pieces:\n                yield memory[:end], pieces\n",
            "            if pieces:\n                yield memory[:end], [\n"
            "                    (a[0], *b[1:]) for a, b in zip(pieces, pieces[::-1], strict=True)\n"
            "                ]\n",
            "test_transfer or test_rank_weights",
        ),
        Fault(
            "rank 1 writes no weights",
            "trainer/cluster/rank_weights.py",
            "mine=lambda number: number % len(writers) == place",
            "mine=lambda number: place == 0 and number % len(writers) == place",
            "test_rank_weights",
        ),
    ],
}


if __name__ == "__main__":
    if sys.argv[1:2] == [] or sys.argv[1] not in FAULTS:
        sys.exit(f"which part: {', '.join(FAULTS)}?")
    sys.exit(min(plant(FAULTS[sys.argv[1]], sys.argv[2:], SUITES[sys.argv[1]]), 1))
