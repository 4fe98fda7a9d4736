"""Every family of recipes.py: scores, gradients, text, adapters and saves are transformers' and
peft's, and a tenant has the same bits alone and among others.

Tolerances are those of the other files: log-probabilities 1e-4, gradients 1e-4 relative.
"""

import json
from pathlib import Path

import peft
import pytest
import safetensors.torch
import torch
from parity import models, ours, reference
from parity.families import recipes as families
from parity.test_gradients import adapted, check

from twinkle.engine import Engine
from twinkle.errors import TwinkleError

ALL = list(families.FAMILIES)
EACH = [*ALL, *families.VARIANTS]
NATIVE = [name for name in ALL if not families.FAMILIES[name].alien]
VARIANTS = [name for name, family in families.VARIANTS.items() if not family.alien]
DENSE = [name for name in ALL if name not in families.ROUTED]  # test_experts.py has the others'
ALIEN = ["chatglm", "internlm2", "qwen3_5", "deepseek"]
BF16 = ["qwen2_moe", "qwen3_5_moe", "deepseek_v2"]  # one of each kind with routed experts
DRAWN = ("llama", "qwen2", "qwen3")  # test_logprobs.py has many of them
# Families whose few rows here are one draw: test_bfloat16.py has 768.
FEW = ("gemma2", "gemma3")
ADAMW = {"optimizer": "AdamW", "options": json.dumps({"lr": 0.01})}
FIELDS = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def expect_scores(made, model, case):
    logps, entropies = ours.scores(made, case.sequences, entropy=True)
    for i, sequence in enumerate(case.sequences):
        with torch.no_grad():
            expected = reference.scores(model, sequence)
        torch.testing.assert_close(logps[i], expected[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(entropies[i], expected[1], rtol=0, atol=1e-4)


def learn(made, case, steps=2):
    for _ in range(steps):
        ours.backward(made, case.sequences)
        made.step(tenant=ours.TENANT, **ADAMW, max_grad_norm=1.0).result()


def tensors_in(folder):
    return safetensors.torch.load_file(Path(folder) / "model.safetensors")


@pytest.mark.parametrize("name", EACH)
def test_packed_sequences_score_as_each_alone_in_transformers(name):
    case = families.case(name)
    expect_scores(ours.engine(case.directory, frozen=True), case.reference, case)
    small = ours.engine(case.directory, frozen=True, token_budget=48)
    expect_scores(small, case.reference, case)


def as_transformers_4(fields):
    """config.json as that wrote it, and most of the hub's: rope's fields beside the others."""
    out = dict(fields)
    rope = out.pop("rope_parameters")
    if "sliding_attention" in rope:  # gemma3's
        out["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    out["rope_theta"], kind = rope.pop("rope_theta"), rope.pop("rope_type")
    if "partial_rotary_factor" in rope:
        out["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    out["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    out["torch_dtype"] = out.pop("dtype")
    if out["model_type"].startswith("qwen3") and "num_local_experts" in out:
        out["num_experts"] = out.pop("num_local_experts")
    return out


@pytest.mark.parametrize("name", NATIVE)
def test_config_json_of_either_version_of_transformers_says_the_same(name, tmp_path):
    case = families.case(name)
    fields = json.loads((Path(case.twin) / "config.json").read_text())
    old = as_transformers_4(fields)
    assert set(old) - set(fields) >= {"rope_theta", "rope_scaling", "torch_dtype"}
    safetensors.torch.save_file(tensors_in(case.twin), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(old))
    want, _ = ours.scores(ours.engine(case.directory, frozen=True), case.sequences)
    for folder in (case.twin, str(tmp_path)):
        got, _ = ours.scores(ours.engine(folder, frozen=True), case.sequences)
        for mine, theirs in zip(got, want, strict=True):
            assert torch.equal(mine, theirs), folder


@pytest.mark.parametrize("name", EACH)
def test_every_weights_gradient_equals_transformers_by_the_checkpoints_name(name):
    case = families.case(name)
    grads, loss = ours.gradients(ours.engine(case.directory), case.sequences)
    model = case.fresh_reference().requires_grad_(True)
    with torch.no_grad():
        assert loss == pytest.approx(reference.loss(model, case.sequences).item(), rel=1e-5)
    expected = case.named(reference.gradients(model, case.sequences))
    assert set(grads) == set(expected) - {n for n, g in expected.items() if not g.abs().max()}
    check(grads, expected)


@pytest.mark.parametrize("name", EACH)
def test_greedy_tokens_equal_transformers(name):
    case = families.case(name)
    made = ours.engine(case.directory, frozen=True)
    for prompt, (tokens, _) in zip(case.prompts, ours.greedy(made, case.prompts, 48), strict=True):
        assert len(tokens) == 48
        assert tokens == reference.most_probable(case.reference, prompt, tokens)


@pytest.mark.parametrize("name", [name for name in ALL if name not in (*DRAWN, *FEW)])
def test_bfloat16_is_as_near_to_float32_as_transformers_bfloat16(name):
    case = families.case(name)
    logps, _ = ours.scores(
        ours.engine(case.directory, precision="bf16", frozen=True), case.sequences
    )
    half = models.load_reference(case.twin, torch.bfloat16)
    mine, theirs = [], []
    for i, sequence in enumerate(case.sequences):
        with torch.no_grad():
            truth = reference.logps(case.reference, sequence)
            theirs.append((reference.logps(half, sequence) - truth).abs())
        mine.append((logps[i] - truth).abs())
    assert torch.cat(mine).mean() <= torch.cat(theirs).mean()


@pytest.mark.parametrize("name", EACH)
def test_a_model_that_learned_is_saved_in_the_layout_that_it_came_in(name, tmp_path):
    case = families.case(name)
    made = ours.engine(case.directory)
    untouched, saved = tmp_path / "untouched", tmp_path / "saved"
    made.save(tenant=ours.TENANT, directory=str(untouched)).result()
    before, copy = tensors_in(case.directory), tensors_in(untouched)
    assert before.keys() == copy.keys()
    for key, value in before.items():
        assert torch.equal(value, copy[key]), key
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(saved)).result()
    trained, _ = ours.scores(made, case.sequences)
    again, _ = ours.scores(ours.engine(str(saved), frozen=True), case.sequences)
    for mine, theirs in zip(again, trained, strict=True):
        assert torch.equal(mine, theirs)
    made.load(tenant=ours.TENANT, directory=str(untouched)).result()
    first, _ = ours.scores(ours.engine(case.directory, frozen=True), case.sequences)
    for mine, theirs in zip(ours.scores(made, case.sequences)[0], first, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", NATIVE)
def test_what_learned_and_was_saved_is_read_by_transformers(name, tmp_path):
    case = families.case(name)
    made = ours.engine(case.directory)
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path)).result()
    expect_scores(made, models.load_reference(str(tmp_path)), case)


@pytest.mark.parametrize("name", [*(name for name in DENSE if name in NATIVE), *VARIANTS])
def test_adapters_of_peft_are_read_and_ours_are_read_by_peft(name, tmp_path):
    case = families.case(name)
    model = adapted(case, tmp_path / "theirs", peft.LoraConfig(**FIELDS))
    made = ours.engine(case.directory, directory=str(tmp_path / "theirs"))
    expect_scores(made, model, case)
    grads, _ = ours.gradients(made, case.sequences)
    expected = reference.adapter_gradients(model, case.sequences)
    assert grads.keys() == expected.keys()
    check(grads, expected)
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path / "mine")
    expect_scores(made, back, case)


def merged(case, adapter, folder):
    """The base with the adapter's B A added to its weights, in the family's own files."""
    factors = safetensors.torch.load_file(Path(adapter) / "adapter_model.safetensors")
    config = json.loads((Path(adapter) / "adapter_config.json").read_text())
    weights = tensors_in(case.directory)
    paths = {key.rsplit(".lora_", 1)[0] for key in factors}
    for path in paths:
        a, b = (factors[f"{path}.lora_{x}.weight"] for x in "AB")
        name = path.removeprefix("base_model.model.") + ".weight"
        weights[name] = weights[name] + config["lora_alpha"] / config["r"] * (b @ a)
    folder.mkdir()
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text((Path(case.directory) / "config.json").read_text())
    return factors, config["lora_alpha"] / config["r"]


def of_each_expert(grads):
    """Those of stacks as gradients of each expert's linears."""
    out = {}
    for name, value in grads.items():
        head, _, stack = name.partition(".experts.")
        if stack not in ("gate_up_proj", "down_proj"):
            out[name] = value
            continue
        for e, whole in enumerate(value):
            linears = ["down_proj"] if stack == "down_proj" else ["gate_proj", "up_proj"]
            for linear, part in zip(linears, whole.chunk(len(linears)), strict=True):
                out[f"{head}.experts.{e}.{linear}.weight"] = part
    return out


@pytest.mark.parametrize("name", ALIEN)
def test_an_adapter_says_what_the_weights_with_it_added_say(name, tmp_path):
    """Where peft has no such model: paths are the checkpoint's modules, and dB = s dW A^T, dA = s
    B^T dW of the merged weights' gradients, which transformers' were compared with above."""
    case = families.case(name)
    made = ours.engine(case.directory, lora_json=json.dumps(FIELDS))
    learn(made, case, 3)
    folder = str(tmp_path / "adapter")
    made.save(tenant=ours.TENANT, directory=folder, expert_format="per_expert").result()
    factors, scale = merged(case, tmp_path / "adapter", tmp_path / "merged")
    whole = ours.engine(str(tmp_path / "merged"))
    mine, theirs = (ours.scores(e, case.sequences)[0] for e in (made, whole))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
    of_factors, of_weights = (ours.gradients(e, case.sequences)[0] for e in (made, whole))
    of_weights, expected = of_each_expert(of_weights), {}
    for key in of_factors:
        path, which = key.rsplit(".lora_", 1)
        a, b = (factors[f"base_model.model.{path}.lora_{x}.weight"] for x in "AB")
        weight = of_weights[path + ".weight"]
        expected[key] = scale * (b.T @ weight if which[0] == "A" else weight @ a.T)
    check(of_factors, expected)
    again = ours.engine(case.directory, directory=str(tmp_path / "adapter"))
    for one, other in zip(ours.scores(again, case.sequences)[0], mine, strict=True):
        assert torch.equal(one, other)


def a_neighbour_that_diverged_fails_alone(name, precision):
    """A router's scores of its rows are NaN."""
    case = families.case(name)
    rows = [{k: s[k] for k in ("input_ids", "labels")} for s in case.sequences]
    prompts = [{"input_ids": p} for p in case.prompts]
    sampling = {"max_tokens": 24, "temperature": 1.0, "seed": 5}

    def texts(samples):
        return [s.sequences[0].tokens for s in samples.result()]

    made = Engine(case.directory, mixed_precision=precision, device=ours.DEVICE)
    good, bad = (made.tenant(f"of {i}", FIELDS, seed=i) for i in range(2))
    bad.forward_backward(rows).result()
    bad.step("SGD", lr=1e30).result()
    alone = texts(good.sample(prompts, sampling))
    lost = bad.sample(prompts, {**sampling, "max_tokens": 99})
    assert texts(good.sample(prompts, sampling)) == alone
    with pytest.raises(TwinkleError, match=r"NaN|finite"):
        lost.result()


@pytest.mark.parametrize("name", families.ROUTED)
def test_a_neighbour_that_diverged_fails_alone(name):
    a_neighbour_that_diverged_fails_alone(name, "no")


@pytest.mark.parametrize("name", BF16)
def test_in_bfloat16_a_neighbour_that_diverged_fails_alone(name):
    a_neighbour_that_diverged_fails_alone(name, "bf16")


def tenants_have_the_same_bits(name, precision):
    """Gradients, scores and sampled text of three adapters in one engine, at once, and of each in
    an engine of its own."""
    case = families.case(name)
    rows = [{k: s[k] for k in ("input_ids", "labels")} for s in case.sequences]
    sampling = {"max_tokens": 24, "temperature": 1.0, "seed": 5, "logprobs": 1}

    def operations(tenant, turn):
        mine = rows[turn:] + rows[:turn]
        out = []
        for _ in range(2):
            out.append(tenant.forward_backward(mine))
            out.append(tenant.step("AdamW", lr=0.01))
        out.append(tenant.forward(mine, entropy=True))
        out.append(tenant.sample([{"input_ids": p} for p in case.prompts], sampling))
        return out

    def outcome(futures):
        *_, scores, samples = [future.result() for future in futures]
        texts = [s.sequences[0] for s in samples]
        return (
            [torch.as_tensor(v) for v in scores["logps"]],
            [t.tokens for t in texts],
            [torch.as_tensor(t.logprobs) for t in texts],
        )

    def engine():
        return Engine(
            case.directory, mixed_precision=precision, device=ours.DEVICE, token_budget=96
        )

    crowded = engine()
    tenants = [crowded.tenant(f"t{i}", {**FIELDS, "r": 2 + i}, seed=i) for i in range(3)]
    futures = [operations(tenant, i) for i, tenant in enumerate(tenants)]
    together = [outcome(f) for f in futures]
    for i in range(3):
        alone = outcome(operations(engine().tenant("me", {**FIELDS, "r": 2 + i}, seed=i), i))
        for mine, theirs in zip(alone[0] + alone[2], together[i][0] + together[i][2], strict=True):
            assert torch.equal(mine, theirs)
        assert alone[1] == together[i][1]


@pytest.mark.parametrize("name", ALL)
def test_tenants_have_the_same_bits_alone_and_among_others(name):
    tenants_have_the_same_bits(name, "no")


@pytest.mark.parametrize("name", ALL)
def test_in_bfloat16_tenants_have_the_same_bits_alone_and_among_others(name):
    tenants_have_the_same_bits(name, "bf16")
