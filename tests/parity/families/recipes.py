"""Tiny random models of every family: one line of FAMILIES each.

A family's arithmetic is that of a class of transformers, its twin. Where transformers reads the
family's own files the twin is read from them; where it does not (its code lies on the hub), the
twin's tensors are renamed and fused into the family's layout, weights and gradients alike.
"""

import functools
import json
import random
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
import transformers
from parity.families.layouts import (
    SIZES,
    chatglm_config,
    chatglm_own_config,
    chatglm_own_tensors,
    chatglm_tensors,
    deepseek_config,
    deepseek_tensors,
    gemma3_config,
    internlm2_config,
    internlm2_tensors,
    internlm3_config,
    latent_config,
    mixtral_names,
    phi3_config,
    qwen3_5_config,
    qwen3_5_tensors,
    same,
)
from parity.families.oracle import Oracle
from parity.models import Case, draw_sequence, load_reference, randomise
from parity.seed import SEED

REGISTRY = Path(__file__).parents[3] / "twinkle/model/families/families.def"
DEVICES = Path(__file__).parents[3] / "twinkle/model/blocks/layer_test.cpp"
LENGTHS = (3, 66, 131)  # beyond every window below
ROPE = {"rope_type": "default", "rope_theta": 1e6}
HALF = {**ROPE, "partial_rotary_factor": 0.5}
MOE = {"moe_intermediate_size": 24, "num_experts_per_tok": 3}
GEMMA = ("gemma2", "gemma3")
LATENT = ("deepseek_v2_lite", "deepseek_v2", "deepseek_v3")
ROUTED = ("qwen3_moe", "qwen2_moe", "mixtral", "deepseek", "glm4_moe", "qwen3_next", "qwen3_5_moe")
ROUTED = (*ROUTED, *LATENT, "qwen3_moe_windowed", "gpt_oss")
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25},
}
MTP = {  # names in the checkpoints of qwen3_next and qwen3_5
    "mtp.fc.weight": torch.ones(64, 128),
    "mtp.layers.0.mlp.experts.0.up_proj.weight": torch.ones(24, 64),
}
UNREAD = MTP | {"model.visual.patch_embed.proj.weight": torch.ones(8, 3, 2, 4, 4)}
MARGIN = 5e-5  # least distance of a choice of experts from a tie: float32 moves scores by 1e-6
MLA = MOE | {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "head_dim": 8,  # transformers' V3 takes rope's size from it
    "v_head_dim": 12,
    "rms_norm_eps": 1e-5,  # the inner norms' is another
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32, "beta_slow": 1}
YARN |= {"original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
LONGROPE |= {"short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4]}
LONGROPE |= {"long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0]}
# The root of 48 is far from all numbers of bfloat16, that of 64 would be one.
GEMMA_SIZES = {"hidden_size": 48, "sliding_window": 8, "query_pre_attn_scalar": 20}
GEMMA3_FIELDS = GEMMA_SIZES | {
    "sliding_window_pattern": 2,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "attn_logit_softcapping": 5.0,  # its class does not read it
}
PREDICTORS = {  # the layer behind the last one, of deepseek_v3 and of glm4_moe
    "model.layers.2." + name: torch.linspace(-1, 1, rows * columns).view(rows, columns)
    for name, rows, columns in (
        ("eh_proj.weight", 64, 128),
        ("self_attn.kv_b_proj.weight", 112, 24),
        ("mlp.experts.0.up_proj.weight", 24, 64),
    )
}


@dataclass
class Family:
    config: type  # class of the twin's config
    fields: dict
    tensors: object = same  # (the twin's by name, its config) -> the family's by name
    hub: object = None  # the twin's config.json -> the family's; None: it is the same
    more: dict = field(default_factory=dict)  # tensors that no causal model reads
    alien: bool = False  # transformers does not read it
    zero_centred: bool = False  # norms multiply by 1 + weight, but for the delta rule's


FAMILIES = {
    # test_logprobs.py and its neighbours draw many more of the first three.
    "llama": Family(transformers.LlamaConfig, {"rope_parameters": ROPE, "attention_bias": True}),
    "qwen2": Family(
        transformers.Qwen2Config,
        {"rope_parameters": ROPE, "use_sliding_window": True, "sliding_window": 8}
        | {"max_window_layers": 1},
    ),
    "qwen3": Family(
        transformers.Qwen3Config, {"rope_parameters": ROPE, "tie_word_embeddings": True}
    ),
    "mistral": Family(transformers.MistralConfig, {"sliding_window": 8}),
    "glm": Family(transformers.GlmConfig, {"rope_parameters": HALF}),
    "glm_edge": Family(
        transformers.GlmConfig,
        {"rope_parameters": {**ROPE, "partial_rotary_factor": 1.0}, "attention_bias": False}
        | {"tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    ),
    "glm4": Family(transformers.Glm4Config, {"rope_parameters": HALF, "attention_bias": True}),
    "chatglm": Family(
        transformers.GlmConfig,
        {"rope_parameters": {**HALF, "rope_theta": 5e6}, "attention_bias": True},
        chatglm_tensors,
        chatglm_config,
        {"transformer.rotary_pos_emb.inv_freq": torch.arange(4.0)},
        alien=True,
    ),
    "internlm2": Family(
        transformers.LlamaConfig,
        {"rope_parameters": ROPE},
        internlm2_tensors,
        internlm2_config,
        alien=True,
    ),
    "internlm3": Family(
        transformers.InternLM3Config, {"rope_parameters": ROPE}, hub=internlm3_config
    ),
    "qwen3_moe": Family(
        transformers.Qwen3MoeConfig,
        MOE | {"num_experts": 8, "norm_topk_prob": True, "rope_parameters": ROPE},
    ),
    "qwen3_moe_windowed": Family(
        transformers.Qwen3MoeConfig,
        MOE
        | {"num_experts": 8, "rope_parameters": ROPE, "use_sliding_window": True}
        # in every layer, whatever the last field says
        | {"sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen2_moe": Family(
        transformers.Qwen2MoeConfig,
        MOE
        | {"num_experts": 8, "shared_expert_intermediate_size": 48, "mlp_only_layers": [0]}
        | {"rope_parameters": ROPE},
    ),
    "mixtral": Family(
        transformers.MixtralConfig,
        {"intermediate_size": 24, "num_local_experts": 8, "num_experts_per_tok": 2}
        | {"rope_parameters": ROPE},
        mixtral_names,
    ),
    "deepseek": Family(
        transformers.MixtralConfig,
        {"intermediate_size": 24, "num_local_experts": 8, "num_experts_per_tok": 2}
        | {"rope_parameters": ROPE},
        deepseek_tensors,
        deepseek_config,
        alien=True,
    ),
    "glm4_moe": Family(
        transformers.Glm4MoeConfig,
        MOE
        | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
        | {"use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 2.5}
        | {"rope_parameters": HALF},
        more=PREDICTORS,
    ),
    # transformers reads these two, but as text models, whose modules have other paths.
    "qwen3_5": Family(
        transformers.Qwen3_5TextConfig,
        DELTA | {"tie_word_embeddings": True},
        qwen3_5_tensors,
        qwen3_5_config,
        UNREAD,
        alien=True,
        zero_centred=True,
    ),
    "qwen3_5_moe": Family(
        transformers.Qwen3_5MoeTextConfig,
        MOE | DELTA | {"num_experts": 8, "shared_expert_intermediate_size": 40},
        qwen3_5_tensors,
        qwen3_5_config,
        UNREAD,
        alien=True,
        zero_centred=True,
    ),
    "qwen3_next": Family(
        transformers.Qwen3NextConfig,
        MOE | DELTA | {"num_experts": 8, "shared_expert_intermediate_size": 40},
        more=MTP,
        zero_centred=True,
    ),
    "deepseek_v2_lite": Family(
        transformers.DeepseekV2Config,
        MLA
        | {"q_lora_rank": None, "topk_method": "greedy"}
        | {"rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
        hub=latent_config,
    ),
    "deepseek_v2": Family(
        transformers.DeepseekV2Config,
        MLA
        | {"q_lora_rank": 20, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
        | {"routed_scaling_factor": 4.0, "attention_bias": True}
        | {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}},
    ),
    "deepseek_v3": Family(
        transformers.DeepseekV3Config,
        MLA
        | {"q_lora_rank": 20, "n_group": 4, "topk_group": 2}
        | {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
        hub=latent_config,
        more=PREDICTORS,
    ),
    "gpt_oss": Family(
        transformers.GptOssConfig,
        {"intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2}
        | {"sliding_window": 8, "swiglu_limit": 1.25, "swiglu_alpha": 1.5}  # a fifth is held
        | {"rope_parameters": {**YARN, "rope_theta": 1.5e5, "truncate": False}},
    ),
    "gemma2": Family(
        transformers.Gemma2Config,
        GEMMA_SIZES | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        zero_centred=True,
    ),
    "gemma3": Family(
        transformers.Gemma3TextConfig,
        GEMMA3_FIELDS,
        hub=gemma3_config,
        zero_centred=True,
    ),
    "phi3": Family(
        transformers.Phi3Config,
        {"sliding_window": 40, "original_max_position_embeddings": 64, "tie_word_embeddings": True}
        | {"rope_parameters": LONGROPE},
        hub=phi3_config,
    ),
}

# Other fields of config.json, for fewer tests.
VARIANTS = {
    "gemma3_capped": Family(
        transformers.Gemma3TextConfig,
        GEMMA3_FIELDS | {"final_logit_softcapping": 3.0},
        hub=gemma3_config,
        zero_centred=True,
    ),
    "chatglm_own_keys": Family(  # multi_query_attention is false, as its class has it
        transformers.GlmConfig,
        {"rope_parameters": HALF, "num_key_value_heads": 4, "attention_bias": True},
        chatglm_own_tensors,
        chatglm_own_config,
        alien=True,
    ),
    "internlm2_biased": Family(  # its class has them where config.json says nothing
        transformers.LlamaConfig,
        {"rope_parameters": ROPE, "attention_bias": True},
        internlm2_tensors,
        internlm2_config,
        alien=True,
    ),
    # Phi-3-mini-4k and its like: all of a head turns, by the usual rope.
    "phi3_plain": Family(transformers.Phi3Config, {"rope_parameters": ROPE}, hub=phi3_config),
}


def model_types():
    """Those of the registry, in its order."""
    return re.findall(r"^FAMILY\((\w+)\)", REGISTRY.read_text(), re.MULTILINE)


def on_cpu_alone():
    """The model types that are refused on a GPU by name, as the test there tries of each."""
    (names,) = re.findall(r"kOnTheCpuAlone\[\] = \{([^}]*)\}", DEVICES.read_text())
    return set(re.findall(r'"(\w+)"', names))


def model_type(name):
    """The model_type of a recipe, whose name begins with it."""
    return max((kind for kind in model_types() if name.startswith(kind)), key=len)


@functools.cache
def _root():
    return tempfile.TemporaryDirectory(prefix="twinkle-families-")


@dataclass
class FamilyCase(Case):
    family: Family = None
    twin: str = ""  # the directory of the twin

    @functools.cached_property
    def reference(self):
        return load_reference(self.twin)

    def fresh_reference(self):
        return load_reference(self.twin)

    def named(self, tensors):
        """The twin's tensors as the family's files have them."""
        config = transformers.AutoConfig.from_pretrained(self.twin)
        return self.family.tensors(tensors, config)


@torch.no_grad()
def centre_norms(model):
    for name, value in model.named_parameters():
        if name.endswith("norm.weight") and ".linear_attn." not in name:
            value.sub_(1)


def written(family, twin, folder):
    """The twin's files and those of the family, in `folder`; where both are."""
    twin.save_pretrained(folder / "twin")
    if not (family.hub or family.alien or family.more):
        return folder / "twin", folder / "twin"
    tensors = safetensors.torch.load_file(folder / "twin/model.safetensors")
    hub = {k: v.contiguous() for k, v in family.tensors(tensors, twin.config).items()}
    (folder / "hub").mkdir(exist_ok=True)
    safetensors.torch.save_file({**hub, **family.more}, folder / "hub/model.safetensors")
    fields = json.loads((folder / "twin/config.json").read_text())
    fields = family.hub(fields) if family.hub else fields
    (folder / "hub/config.json").write_text(json.dumps(fields))
    return folder / "hub", folder / "twin"


def far_from_ties(directory, sequences):
    """True if no choice of experts is near one, by the oracle."""
    oracle = Oracle(directory)
    with torch.no_grad():
        return all(oracle.margins_of(s["input_ids"]).min() > MARGIN for s in sequences)


@functools.cache
def case(name):
    family = (FAMILIES | VARIANTS)[name]
    config = family.config(**{**SIZES, **family.fields})
    rng = random.Random(f"{SEED}/{name}")
    vocab = config.vocab_size
    sequences = [draw_sequence(rng, n, vocab) for n in LENGTHS]
    prompts = [[rng.randrange(vocab) for _ in range(n)] for n in (1, 17, 70)]
    for more in range(60):  # seeds of a routed one until no choice is near a tie
        torch.manual_seed(SEED + sum(map(ord, name)) + 1000 * more)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        randomise(model)
        if family.zero_centred:
            centre_norms(model)
        directory, twin = written(family, model, Path(_root().name) / name)
        if name not in ROUTED or far_from_ties(directory, sequences):
            break
    else:
        raise RuntimeError(f"{name}: each of 60 models has a choice of experts near a tie")
    return FamilyCase(
        sum(map(ord, name)), name, str(directory), sequences, prompts, 4096, family, str(twin)
    )
