"""Tiny random models of the families whose files are not llama's: one line of FAMILIES each.

A family's arithmetic is that of a class of transformers, its twin. Where transformers reads the
family's own files the twin is read from them; where it does not (its code lies on the hub), the
twin's tensors are renamed and fused into the family's layout, weights and gradients alike.
"""

import functools
import json
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
import transformers
from parity.models import Case, draw_sequence, load_reference, randomise
from parity.seed import SEED

MAX_POSITIONS = 256
LENGTHS = (3, 66, 131)  # beyond every window below
SIZES = {
    "vocab_size": 161,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ROPE = {"rope_type": "default", "rope_theta": 1e6}
HALF = {**ROPE, "partial_rotary_factor": 0.5}


def same(tensors, config):
    return dict(tensors)


def renamed(tensors, pairs):
    out = {}
    for name, value in tensors.items():
        there = name
        for theirs, ours in pairs:
            there = there.replace(theirs, ours)
        out[there] = value
    return out


def fused(tensors, into, join):
    """q, k and v as the one tensor `into`, by `join`."""
    out = {}
    for name, value in tensors.items():
        if ".self_attn.q_proj." in name:
            k, v = (tensors[name.replace("q_proj", other)] for other in ("k_proj", "v_proj"))
            out[name.replace("self_attn.q_proj", into)] = join(value, k, v)
        elif ".k_proj." not in name and ".v_proj." not in name:
            out[name] = value
    return out


CHATGLM = [
    ("model.embed_tokens.", "transformer.embedding.word_embeddings."),
    ("model.layers.", "transformer.encoder.layers."),
    ("model.norm.", "transformer.encoder.final_layernorm."),
    ("lm_head.", "transformer.output_layer."),
    ("self_attn.o_proj.", "self_attention.dense."),
    ("gate_up_proj.", "dense_h_to_4h."),
    ("mlp.down_proj.", "mlp.dense_4h_to_h."),
]


def chatglm_tensors(tensors, config):
    stacked = fused(tensors, "self_attention.query_key_value", lambda *rows: torch.cat(rows))
    return renamed(stacked, CHATGLM)


def chatglm_config(fields):
    return {
        "model_type": "chatglm",
        "architectures": ["ChatGLMModel"],
        "add_bias_linear": False,
        "add_qkv_bias": fields["attention_bias"],
        "ffn_hidden_size": fields["intermediate_size"],
        "hidden_size": fields["hidden_size"],
        "kv_channels": fields["head_dim"],
        "layernorm_epsilon": fields["rms_norm_eps"],
        "multi_query_attention": True,
        "multi_query_group_num": fields["num_key_value_heads"],
        "num_attention_heads": fields["num_attention_heads"],
        "num_layers": fields["num_hidden_layers"],
        "original_rope": True,
        "padded_vocab_size": fields["vocab_size"],
        "post_layer_norm": True,
        "rmsnorm": True,
        "rope_ratio": fields["rope_parameters"]["rope_theta"] / 10000,
        "seq_length": fields["max_position_embeddings"],
        "tie_word_embeddings": False,
        "vocab_size": fields["vocab_size"] - 1,
    }


INTERNLM2 = [
    ("model.embed_tokens.", "model.tok_embeddings."),
    ("lm_head.", "output."),
    ("self_attn.o_proj.", "attention.wo."),
    ("mlp.gate_proj.", "feed_forward.w1."),
    ("mlp.up_proj.", "feed_forward.w3."),
    ("mlp.down_proj.", "feed_forward.w2."),
    ("post_attention_layernorm.", "ffn_norm."),
    ("input_layernorm.", "attention_norm."),
]


def internlm2_tensors(tensors, config):
    groups, dim = config.num_key_value_heads, config.hidden_size // config.num_attention_heads

    def join(*parts):  # of each key head: its queries, its key, its value
        rows = [part.reshape(groups, -1, dim, *part.shape[1:]) for part in parts]
        return torch.cat(rows, 1).reshape(-1, *parts[0].shape[1:])

    return renamed(fused(tensors, "attention.wqkv", join), INTERNLM2)


def internlm2_config(fields):
    kept = {name: fields[name] for name in SIZES if name != "head_dim"}
    kept |= {"rms_norm_eps": fields["rms_norm_eps"], "tie_word_embeddings": False, "bias": False}
    kept |= {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"]}
    return kept | {"rope_theta": 1e6, "rope_scaling": {"type": "dynamic", "factor": 2.0}}


def internlm3_config(fields):
    """As the hub has it: transformers writes the class that it takes."""
    rope = {"rope_type": "dynamic", "factor": 6.0}
    kept = {k: v for k, v in fields.items() if k not in ("rope_parameters", "architectures")}
    return kept | {
        "architectures": ["InternLM3ForCausalLM"],
        "rope_theta": fields["rope_parameters"]["rope_theta"],
        "rope_scaling": rope,
        "bias": False,
        "qkv_bias": False,
    }


MOE = {"moe_intermediate_size": 24, "num_experts_per_tok": 3}
LATENT = ("deepseek_v2_lite", "deepseek_v2", "deepseek_v3")
ROUTED = ("qwen3_moe", "qwen2_moe", "mixtral", "deepseek", "glm4_moe", "qwen3_next", "qwen3_5_moe")
ROUTED = (*ROUTED, *LATENT)
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25},
}
UNREAD = {  # of qwen3_5's checkpoints
    "mtp.fc.weight": torch.ones(64, 128),
    "model.visual.patch_embed.proj.weight": torch.ones(8, 3, 2, 4, 4),
}
MARGIN = 5e-5  # of every choice of experts from a tie: float32 moves scores by 1e-6


def mixtral_names(tensors, config):
    return renamed(tensors, [(".mlp.", ".block_sparse_moe.")])


DEEPSEEK = [
    (".block_sparse_moe.", ".mlp."),
    (".w1.", ".gate_proj."),
    (".w3.", ".up_proj."),
    (".w2.", ".down_proj."),
]


def deepseek_tensors(tensors, config):
    return renamed(tensors, DEEPSEEK)


def deepseek_config(fields):
    """Without shared experts, which Mixtral, its twin, has none of, and with weights of sum 1."""
    kept = {name: fields[name] for name in SIZES if name != "intermediate_size"}
    kept |= {"model_type": "deepseek", "architectures": ["DeepseekForCausalLM"]}
    kept |= {"intermediate_size": 96, "moe_intermediate_size": fields["intermediate_size"]}
    kept |= {"n_routed_experts": fields["num_local_experts"], "n_shared_experts": None}
    kept |= {"num_experts_per_tok": 2, "norm_topk_prob": True, "scoring_func": "softmax"}
    kept |= {"first_k_dense_replace": 0, "moe_layer_freq": 1, "tie_word_embeddings": False}
    kept |= {"rms_norm_eps": fields["rms_norm_eps"], "attention_bias": False}
    return kept | {"rope_theta": fields["rope_parameters"]["rope_theta"], "rope_scaling": None}


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


def latent_config(fields):
    """As the hub has it: rope apart, and DeepSeek's own names."""
    rope = dict(fields["rope_parameters"])
    kept = {k: v for k, v in fields.items() if k not in ("rope_parameters", "head_dim")}
    kept |= {"rope_theta": rope.pop("rope_theta"), "moe_layer_freq": 1}
    kept |= {"rope_scaling": {"type": rope.pop("rope_type"), **rope}}
    v3 = fields["model_type"] == "deepseek_v3"
    if v3:
        kept |= {"topk_method": "noaux_tc"}
    return kept | {"scoring_func": "sigmoid" if v3 else "softmax"}


PREDICTORS = {  # V3's layer behind the last one
    "model.layers.2." + name: torch.linspace(-1, 1, rows * columns).view(rows, columns)
    for name, rows, columns in (
        ("eh_proj.weight", 64, 128),
        ("self_attn.kv_b_proj.weight", 112, 24),
        ("mlp.experts.0.up_proj.weight", 24, 64),
    )
}


def margin(model, sequences):
    """How far the last chosen expert is from the next, at the closest choice."""
    closest = [torch.inf]

    def look(router, inputs, _):
        x = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
        scores = x @ router.weight.double().T
        correction = getattr(router, "e_score_correction_bias", None)
        by_two = correction is not None
        scores = scores.softmax(-1) if correction is None else scores.sigmoid() + correction
        groups = getattr(model.config, "n_group", 1) or 1
        if groups > 1:
            by = scores.view(len(x), groups, -1)
            worth = by.topk(2, -1).values.sum(-1) if by_two else by.amax(-1)
            best = worth.topk(model.config.topk_group + 1, -1)
            closest.append((best.values[:, -2] - best.values[:, -1]).min().item())
            keep = torch.zeros_like(worth, dtype=torch.bool)
            keep = keep.scatter(1, best.indices[:, :-1], True)
            scores = by.masked_fill(~keep[..., None], -torch.inf).flatten(1)
        top = scores.topk(model.config.num_experts_per_tok + 1, -1).values
        closest.append((top[:, -2] - top[:, -1]).min().item())

    hooks = [
        layer.mlp.gate.register_forward_hook(look)
        for layer in model.model.layers
        if hasattr(layer.mlp, "gate")
    ]
    with torch.no_grad():
        for sequence in sequences:
            model(torch.tensor(sequence["input_ids"])[None])
    for hook in hooks:
        hook.remove()
    return min(closest)


def stacked(tensors):
    """The experts' as one tensor each, [E, 2F, D] and [E, D, F]."""
    out, experts = {}, {}
    for name, value in tensors.items():
        head, _, rest = name.partition(".experts.")
        number, _, linear = rest.partition(".")
        if number.isdigit():
            experts.setdefault(head, {})[int(number), linear.split("_")[0]] = value
        else:
            out[name] = value
    for head, of in experts.items():
        each = range(len(of) // 3)
        pairs = [torch.cat([of[e, "gate"], of[e, "up"]]) for e in each]
        out[f"{head}.experts.gate_up_proj"] = torch.stack(pairs)
        out[f"{head}.experts.down_proj"] = torch.stack([of[e, "down"] for e in each])
    return out


def qwen3_5_tensors(tensors, config):
    return {
        "model.language_model." + n.removeprefix("model.") if n.startswith("model.") else n: t
        for n, t in stacked(tensors).items()
    }


def qwen3_5_config(fields):
    """As the hub has it: the text model's fields are nested."""
    rope = {**fields["rope_parameters"], "mrope_interleaved": True, "mrope_section": [11, 11, 10]}
    text = {k: v for k, v in fields.items() if k != "architectures"} | {"rope_parameters": rope}
    text |= {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1}
    kind = fields["model_type"].removesuffix("_text")
    name = "Qwen3_5Moe" if kind == "qwen3_5_moe" else "Qwen3_5"
    return {
        "architectures": [f"{name}ForConditionalGeneration"],
        "model_type": kind,
        "tie_word_embeddings": fields["tie_word_embeddings"],
        "text_config": text,
        "vision_config": {"model_type": kind, "depth": 1},
        "image_token_id": 1,
    }


@dataclass
class Family:
    config: type  # of the twin
    fields: dict
    tensors: object = same  # (the twin's by name, its config) -> the family's by name
    hub: object = None  # the twin's config.json -> the family's; None: it is the same
    more: dict = field(default_factory=dict)  # tensors that no causal model reads
    alien: bool = False  # transformers does not read it
    zero_centred: bool = False  # norms multiply by 1 + weight, but for the delta rule's


FAMILIES = {
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
    "qwen2_moe": Family(
        transformers.Qwen2MoeConfig,
        MOE
        | {"num_experts": 8, "shared_expert_intermediate_size": 40, "mlp_only_layers": [0]}
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
}


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


@functools.cache
def case(name):
    family = FAMILIES[name]
    twin = Path(_root().name) / f"{name}-twin"
    config = family.config(**{**SIZES, **family.fields})
    rng = random.Random(f"{SEED}/{name}")
    vocab = config.vocab_size
    sequences = [draw_sequence(rng, n, vocab) for n in LENGTHS]
    prompts = [[rng.randrange(vocab) for _ in range(n)] for n in (1, 17, 70)]
    for more in range(60):  # of a routed one until no choice is near a tie
        torch.manual_seed(SEED + sum(map(ord, name)) + 1000 * more)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        randomise(model)
        if family.zero_centred:
            centre_norms(model)
        if name not in ROUTED or margin(model, sequences) > MARGIN:
            break
    model.config.eos_token_id = model.generation_config.eos_token_id = None  # glm's are beyond 160
    model.save_pretrained(twin)
    directory = twin
    if family.hub or family.alien:
        directory = Path(_root().name) / name
        directory.mkdir()
        tensors = safetensors.torch.load_file(twin / "model.safetensors")
        hub = {k: v.contiguous() for k, v in family.tensors(tensors, config).items()}
        safetensors.torch.save_file({**hub, **family.more}, directory / "model.safetensors")
        fields = json.loads((twin / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(family.hub(fields)))
    return FamilyCase(
        sum(map(ord, name)), name, str(directory), sequences, prompts, 4096, family, str(twin)
    )
