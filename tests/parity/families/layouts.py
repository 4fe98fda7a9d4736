"""The tensors and the config.json of families as their files have them, from those of a twin in
transformers: renames, fused projections, stacked experts, nested fields.
"""

import torch

MAX_POSITIONS = 256
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


def by_head(groups, dim):
    """Joins q, k and v: of each key head its queries, its key, its value."""

    def join(*parts):
        rows = [part.reshape(groups, -1, dim, *part.shape[1:]) for part in parts]
        return torch.cat(rows, 1).reshape(-1, *parts[0].shape[1:])

    return join


def chatglm_own_tensors(tensors, config):
    """Where every head has keys of its own."""
    join = by_head(config.num_attention_heads, config.head_dim)
    return renamed(fused(tensors, "self_attention.query_key_value", join), CHATGLM)


def chatglm_own_config(fields):
    out = chatglm_config(fields) | {"multi_query_group_num": 2}  # it is not read then
    return {k: v for k, v in out.items() if k != "multi_query_attention"}


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
    join = by_head(config.num_key_value_heads, config.hidden_size // config.num_attention_heads)
    return renamed(fused(tensors, "attention.wqkv", join), INTERNLM2)


def internlm2_config(fields):
    kept = {name: fields[name] for name in SIZES if name != "head_dim"}
    kept |= {"rms_norm_eps": fields["rms_norm_eps"], "tie_word_embeddings": False}
    kept |= {} if fields["attention_bias"] else {"bias": False}
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


def gemma3_config(fields):
    """As the hub has it: a base for each type of layer, and which types there are by a number."""
    kept = {k: v for k, v in fields.items() if k not in ("rope_parameters", "layer_types")}
    kept.pop("_sliding_window_pattern", None)
    kept |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2}
    return kept | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}


def phi3_config(fields):
    """As the hub has it: rope apart."""
    rope = dict(fields["rope_parameters"])
    kept = {k: v for k, v in fields.items() if k != "rope_parameters"}
    beside = ("rope_theta", "partial_rotary_factor")
    kept |= {k: rope[k] for k in beside if k in rope}
    factors = {k: rope[k] for k in ("short_factor", "long_factor") if k in rope}
    return kept | {"rope_scaling": {"type": "longrope", **factors} if factors else None}
