"""The arithmetic of every family once more: plain torch in float64, from a checkpoint's folder, one
sequence at a time, and with autograd through the tensors as the files name them.

It knows no model of transformers and shares no code with the engine. T tokens, D width, H heads,
K key heads, d a head's width, E experts.
"""

import json
import math
from pathlib import Path

import safetensors.torch
import torch
from torch.nn import functional

GEMMA = ("gemma2", "gemma3")
PLUS_ONE = ("qwen3_next", "qwen3_5", "qwen3_5_moe", *GEMMA)  # norms multiply by 1 + weight
INTERLEAVED = ("glm", "glm4", "chatglm")  # and latent attention
SIGMOID = ("deepseek_v3", "glm4_moe")  # sigmoid of routers' logits; the others take softmax
INNER_EPS = (
    1e-6  # eps of latent attention's own norms and of the delta rule's keys, whatever is configured
)
CHATGLM = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "multi_query_group_num",
    "head_dim": "kv_channels",
    "rms_norm_eps": "layernorm_epsilon",
}


class Oracle:
    """A checkpoint's logits; `margins` [T] are those of the last call, of each token's choices of
    experts in any layer the least distance from a tie, infinite where none is made."""

    def __init__(self, directory):
        file = json.loads((Path(directory) / "config.json").read_text())
        weights = safetensors.torch.load_file(Path(directory) / "model.safetensors")
        self.weights = {k: v.double() for k, v in weights.items()}
        self.dtype = next(iter(weights.values())).dtype
        fields = file.get("text_config", file)
        self.kind = fields["model_type"].removesuffix("_text")
        if self.kind == "chatglm":
            fields = {ours: file[theirs] for ours, theirs in CHATGLM.items()}
            fields |= {"rope_theta": 1e4 * file["rope_ratio"], "partial_rotary_factor": 0.5}
        self.fields = fields
        self.latent = fields.get("kv_lora_rank") is not None
        self.heads = fields["num_attention_heads"]
        self.key_heads = fields.get("num_key_value_heads") or self.heads
        self.head_dim = fields.get("head_dim") or fields["hidden_size"] // self.heads
        beside = {k: fields[k] for k in ("rope_theta", "partial_rotary_factor") if k in fields}
        inside = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
        self.rope = {"rope_theta": 1e4, **beside, **inside}
        self.ropes = {}  # by the type of a layer, where they differ
        if self.kind == "gemma3":
            self.ropes = fields.get("rope_parameters") or {
                "full_attention": {"rope_theta": 1e6, **beside, **inside},
                "sliding_attention": {"rope_theta": fields["rope_local_base_freq"]},
            }
        if self.latent:
            self.head_dim = fields["qk_rope_head_dim"]
        self.margins = None

    def has(self, name):
        return name + ".weight" in self.weights

    def linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def norm(self, x, name, eps=None, plus_one=None):
        weight = self.weights[name + ".weight"]
        if self.kind in PLUS_ONE if plus_one is None else plus_one:
            weight = 1 + weight
        eps = self.fields["rms_norm_eps"] if eps is None else eps
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    # Rotary positions

    def angles(self, length, rope):
        """cos and sin [T, rotated pairs]."""
        pi = math.pi
        size = int(self.head_dim * rope.get("partial_rotary_factor", 1.0))
        theta, factor = rope["rope_theta"], rope.get("factor", 1.0)
        frequency = theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        kind, scale = rope.get("rope_type", rope.get("type", "default")), 1.0
        if kind == "linear":
            frequency = frequency / factor
        elif kind == "yarn":
            original = rope["original_max_position_embeddings"]

            def pair(turns):  # that turns so often over the original length
                return size * math.log(original / (turns * 2 * pi)) / (2 * math.log(theta))

            low, high = (pair(rope.get(k) or n) for k, n in (("beta_fast", 32), ("beta_slow", 1)))
            if rope.get("truncate", True):
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, size - 1)
            ramp = (torch.arange(size // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)
            ramp = ramp.clamp(0, 1)
            frequency = frequency / factor * ramp + frequency * (1 - ramp)
            scale = self.mscale(1)
            if rope.get("mscale") and rope.get("mscale_all_dim"):
                scale = self.mscale(rope["mscale"]) / self.mscale(rope["mscale_all_dim"])
        elif kind == "longrope":  # by the length of the whole sequence
            original = self.fields["original_max_position_embeddings"]
            factors = rope["long_factor" if length > original else "short_factor"]
            frequency = frequency / torch.tensor(factors, dtype=torch.float64)
            longer = self.fields["max_position_embeddings"] / original
            scale = math.sqrt(1 + math.log(longer) / math.log(original))
        elif kind not in ("default", "dynamic"):  # dynamic: the default up to the longest position
            raise NotImplementedError(kind)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
        return angle.cos() * scale, angle.sin() * scale

    def mscale(self, of):
        return 0.1 * of * math.log(self.rope["factor"]) + 1

    def rotated(self, x, kind=None):
        """Rotates the first pairs of x [T, H, d], as many as turn, in a layer of this type."""
        rope = self.ropes.get(kind, self.rope)
        cos, sin = (part[:, None] for part in self.angles(len(x), rope))
        size = 2 * cos.shape[-1]
        head, rest = x[..., :size], x[..., size:]
        if self.kind in INTERLEAVED or self.latent:
            a, b = head[..., 0::2], head[..., 1::2]
            head = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = head.chunk(2, -1)
            head = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([head, rest], -1)

    # Mixers: x [T, D] and the layer's prefix

    def attend(self, q, k, v, scale, window=None, sinks=None):
        """q [T, H, d], k [T, K, d], v [T, K, any]; sinks [H]: each one more score without a
        value."""
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) * scale
        cap = self.fields.get("attn_logit_softcapping") if self.kind == "gemma2" else None
        if cap:
            scores = cap * (scores / cap).tanh()
        i, j = torch.arange(len(q))[:, None], torch.arange(len(q))[None]
        seen = (j <= i) if window is None else (j <= i) & (j > i - window)
        scores = scores.masked_fill(~seen, -math.inf)
        if sinks is not None:
            column = sinks[:, None, None].expand(-1, len(q), 1)
            return torch.einsum(
                "hij,jhd->ihd", torch.cat([scores, column], -1).softmax(-1)[..., :-1], v
            )
        return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)

    def type_of(self, layer):
        """As layer_types has it, None where neither it nor the family says."""
        kinds = self.fields.get("layer_types")
        if kinds is None and self.kind in GEMMA:
            every = 2 if self.kind == "gemma2" else self.fields.get("sliding_window_pattern", 6)
            return "sliding_attention" if (layer + 1) % every else "full_attention"
        return kinds and kinds[layer]

    def window(self, layer):
        size = self.fields.get("sliding_window")
        if self.kind in ("mistral", "phi3"):
            return size
        if self.kind == "qwen3_moe":
            return size if self.fields["use_sliding_window"] else None
        return size if self.type_of(layer) == "sliding_attention" else None

    def attention(self, x, at, layer):
        tokens, h, k, d = len(x), self.heads, self.key_heads, self.head_dim
        gate, output = None, at + "self_attn.o_proj"
        if self.kind == "internlm2":  # for each key head: its queries, its key, its value
            y = self.linear(x, at + "attention.wqkv").view(tokens, k, h // k + 2, d)
            q, keys, values = y[:, :, :-2].reshape(tokens, h, d), y[:, :, -2], y[:, :, -1]
            output = at + "attention.wo"
        elif self.kind == "chatglm":
            y = self.linear(x, at + "self_attention.query_key_value").view(tokens, -1, d)
            q, keys, values = y.split([h, k, k], 1)
            output = at + "self_attention.dense"
        elif self.kind == "phi3":
            q, keys, values = (
                self.linear(x, at + "self_attn.qkv_proj").view(tokens, -1, d).split([h, k, k], 1)
            )
        else:
            q, keys, values = (
                self.linear(x, f"{at}self_attn.{part}_proj").view(tokens, -1, d) for part in "qkv"
            )
        if q.shape[1] == 2 * h:  # for each head: its query, its output's gate
            q, gate = q.reshape(tokens, h, 2 * d).split(d, -1)
        if self.has(at + "self_attn.q_norm"):
            q = self.norm(q, at + "self_attn.q_norm")
            keys = self.norm(keys, at + "self_attn.k_norm")
        kind = self.type_of(layer)
        q, keys = self.rotated(q, kind), self.rotated(keys, kind)
        scale = self.fields["query_pre_attn_scalar"] if self.kind in GEMMA else d
        sinks = self.weights.get(at + "self_attn.sinks")
        y = self.attend(q, keys, values, scale**-0.5, self.window(layer), sinks).flatten(1)
        return self.linear(y if gate is None else y * gate.flatten(1).sigmoid(), output)

    def latent_attention(self, x, at):
        """Expanded: every head has keys and values of its own."""
        at += "self_attn."
        plain, turned, out, rank = (
            self.fields[k]
            for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
        )
        if self.has(at + "q_proj"):
            q = self.linear(x, at + "q_proj")
        else:
            q = self.linear(x, at + "q_a_proj")
            q = self.norm(q, at + "q_a_layernorm", INNER_EPS)
            q = self.linear(q, at + "q_b_proj")
        q, q_turned = q.view(len(x), self.heads, -1).split([plain, turned], -1)
        latent, k_turned = self.linear(x, at + "kv_a_proj_with_mqa").split([rank, turned], -1)
        latent = self.norm(latent, at + "kv_a_layernorm", INNER_EPS)
        y = self.linear(latent, at + "kv_b_proj").view(len(x), self.heads, -1)
        k, v = y.split([plain, out], -1)
        k_turned = self.rotated(k_turned[:, None]).expand(-1, self.heads, -1)
        scale = (plain + turned) ** -0.5
        if self.rope.get("mscale_all_dim"):
            scale *= self.mscale(self.rope["mscale_all_dim"]) ** 2
        y = self.attend(
            torch.cat([q, self.rotated(q_turned)], -1), torch.cat([k, k_turned], -1), v, scale
        )
        return self.linear(y.flatten(1), at + "o_proj")

    def delta_rule(self, x, at):
        """Token by token: the state forgets, is corrected towards the value, and is read."""
        at, tokens = at + "linear_attn.", len(x)
        keys, heads, dk, dv = (
            self.fields["linear_" + k]
            for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        )
        of = heads // keys
        if self.has(at + "in_proj_qkvz"):  # by key head
            y = self.linear(x, at + "in_proj_qkvz").view(tokens, keys, -1)
            *qkv, z = y.split([dk, dk, of * dv, of * dv], -1)
            mixed = torch.cat([part.flatten(1) for part in qkv], -1)
            y = self.linear(x, at + "in_proj_ba").view(tokens, keys, 2 * of)
            b, a = (part.flatten(1) for part in y.split([of, of], -1))
        else:
            mixed = self.linear(x, at + "in_proj_qkv")
            z, b, a = (self.linear(x, at + "in_proj_" + name) for name in "zba")
        taps = self.weights[at + "conv1d.weight"][:, 0]
        padded = functional.pad(mixed, (0, 0, taps.shape[1] - 1, 0))
        mixed = sum(padded[i : i + tokens] * taps[:, i] for i in range(taps.shape[1]))
        q, k, v = functional.silu(mixed).split([keys * dk, keys * dk, heads * dv], -1)

        def unit(u):
            u = u.view(tokens, keys, dk)
            u = u * torch.rsqrt(u.pow(2).sum(-1, keepdim=True) + INNER_EPS)
            return u.repeat_interleave(of, 1)

        q, k, v = unit(q) * dk**-0.5, unit(k), v.view(tokens, heads, dv)
        decay = functional.softplus(a + self.weights[at + "dt_bias"])
        decay = (-self.weights[at + "A_log"].exp() * decay).exp()
        rate, state, read = b.sigmoid(), x.new_zeros(heads, dk, dv), []
        for t in range(tokens):
            state = state * decay[t, :, None, None]
            off = (v[t] - (k[t, :, :, None] * state).sum(1)) * rate[t, :, None]
            state = state + k[t, :, :, None] * off[:, None]
            read.append((q[t, :, :, None] * state).sum(1))
        y = self.norm(torch.stack(read), at + "norm", plus_one=False)
        y = y * functional.silu(z.reshape(tokens, heads, dv))
        return self.linear(y.flatten(1), at + "out_proj")

    # MLPs

    def act(self, x):
        return functional.gelu(x, approximate="tanh") if self.kind in GEMMA else functional.silu(x)

    def gated(self, x, gate, up, down):
        return self.linear(self.act(self.linear(x, gate)) * self.linear(x, up), down)

    def mlp(self, x, at):
        if self.kind == "internlm2":
            return self.gated(x, at + "w1", at + "w3", at + "w2")
        for both, down in (("gate_up_proj", "down_proj"), ("dense_h_to_4h", "dense_4h_to_h")):
            if self.has(at + both):
                gate, up = self.linear(x, at + both).chunk(2, -1)
                return self.linear(functional.silu(gate) * up, at + down)
        return self.gated(x, at + "gate_proj", at + "up_proj", at + "down_proj")

    def near(self, scores, count):
        """Notes how far the last of those chosen, by row, is from the next."""
        if count == scores.shape[-1]:
            return
        best = scores.topk(count + 1, -1).values
        gap = (best[:, -2] - best[:, -1]).detach()
        self.margins = torch.minimum(self.margins, gap.nan_to_num(nan=math.inf))

    def route(self, x, at):
        """Weights and ids of the chosen experts, [T, chosen] each."""
        count = self.fields["num_experts_per_tok"]
        logits = self.linear(x, at + ("router" if self.kind == "gpt_oss" else "gate"))
        if self.kind == "gpt_oss":  # softmax of the chosen logits alone
            self.near(logits, count)
            best = logits.topk(count, -1)
            return best.values.softmax(-1), best.indices
        scores = logits.sigmoid() if self.kind in SIGMOID else logits.softmax(-1)
        choice = scores
        if self.kind in SIGMOID:
            choice = scores + self.weights[at + "gate.e_score_correction_bias"]
        groups = self.fields.get("n_group") or 1
        if groups > 1 and self.fields.get("topk_method") != "greedy":
            by_group = choice.view(len(x), groups, -1)
            worth = by_group.amax(-1)
            if self.kind in SIGMOID:
                worth = by_group.topk(2, -1).values.sum(-1)
            self.near(worth, self.fields["topk_group"])
            kept = worth.topk(self.fields["topk_group"], -1).indices
            lost = torch.ones_like(worth, dtype=torch.bool).scatter(1, kept, False)
            choice = by_group.masked_fill(lost[..., None], -math.inf).flatten(1)
        self.near(choice, count)
        ids = choice.topk(count, -1).indices
        weights = scores.gather(1, ids)
        always = {"qwen3_5_moe": True, "mixtral": True, "deepseek_v2": False}
        if always.get(self.kind, self.fields.get("norm_topk_prob", self.kind == "qwen3_next")):
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * (self.fields.get("routed_scaling_factor") or 1.0), ids

    def expert(self, x, at, number):
        stack = self.weights.get(at + "experts.gate_up_proj")
        if stack is None:
            names = ("w1", "w3", "w2") if self.kind == "mixtral" else ("gate", "up", "down")
            end = "" if self.kind == "mixtral" else "_proj"
            return self.gated(x, *(f"{at}experts.{number}.{name}{end}" for name in names))
        gate, up = (x @ stack[number].T).chunk(2, -1)
        down = self.weights[at + "experts.down_proj"][number]
        return (functional.silu(gate) * up) @ down.T

    def clamped(self, x, at, number):
        """An expert of gpt-oss: stacks [E, in, out], a gate and its up in turn."""
        stacks = {
            name: self.weights[f"{at}experts.{name}"][number]
            for name in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
        }
        limit, alpha = self.fields["swiglu_limit"], self.fields.get("swiglu_alpha", 1.702)
        y = x @ stacks["gate_up_proj"] + stacks["gate_up_proj_bias"]
        gate, up = y[:, 0::2].clamp(max=limit), y[:, 1::2].clamp(-limit, limit)
        held = (up + 1) * gate * torch.sigmoid(alpha * gate)
        return held @ stacks["down_proj"] + stacks["down_proj_bias"]

    def experts(self, x, at):
        weights, ids = self.route(x, at)
        expert = self.clamped if self.kind == "gpt_oss" else self.expert
        out = torch.zeros_like(x)
        for number in ids.unique().tolist():
            row, place = torch.where(ids == number)
            given = expert(x[row], at, number) * weights[row, place, None]
            out = out.index_add(0, row, given)
        for name in ("shared_expert.", "shared_experts."):
            if self.has(at + name + "gate_proj"):
                shared = self.mlp(x, at + name)
                if self.has(at + "shared_expert_gate"):
                    shared = shared * self.linear(x, at + "shared_expert_gate").sigmoid()
                out = out + shared
        return out

    # The model

    def layer(self, x, at, index):
        before, after = "input_layernorm", "post_attention_layernorm"
        block = {"mixtral": "block_sparse_moe."}.get(self.kind, "mlp.")
        behind = [at + "post_self_attn_layernorm", at + "post_mlp_layernorm"]  # the blocks
        if self.kind == "internlm2":
            before, after, block = "attention_norm", "ffn_norm", "feed_forward."
        if self.kind in GEMMA:
            behind = [at + after, at + "post_feedforward_layernorm"]
            after = "pre_feedforward_layernorm"
        y = self.norm(x, at + before)
        if self.has(at + "linear_attn.out_proj"):
            y = self.delta_rule(y, at)
        else:
            y = self.latent_attention(y, at) if self.latent else self.attention(y, at, index)
        if self.has(behind[0]):
            y = self.norm(y, behind[0])
        x = x + y
        y = self.norm(x, at + after)
        y = (
            self.experts(y, at + block)
            if self.has(at + block + "gate") or self.has(at + block + "router")
            else self.mlp(y, at + block)
        )
        if self.has(behind[1]):
            y = self.norm(y, behind[1])
        return x + y

    def logits(self, ids):
        """Logits of a sequence's ids, a list: [T, vocabulary]."""
        root = "model.language_model." if self.has("model.language_model.norm") else "model."
        layers, final, embedding = (root + name for name in ("layers.", "norm", "embed_tokens"))
        head = "lm_head"
        if self.kind == "chatglm":
            layers, final = "transformer.encoder.layers.", "transformer.encoder.final_layernorm"
            embedding, head = "transformer.embedding.word_embeddings", "transformer.output_layer"
        if self.kind == "internlm2":
            embedding, head = "model.tok_embeddings", "output"
        self.margins = torch.full((len(ids),), math.inf, dtype=torch.float64)
        x = self.weights[embedding + ".weight"][torch.as_tensor(ids)]
        if self.kind in GEMMA:  # the root in the weights' type
            x = x * torch.tensor(self.fields["hidden_size"] ** 0.5).to(self.dtype).item()
        for i in range(self.fields["num_hidden_layers"]):
            x = self.layer(x, f"{layers}{i}.", i)
        out = self.linear(self.norm(x, final), head if self.has(head) else embedding)
        cap = self.fields.get("final_logit_softcapping") if self.kind in GEMMA else None
        return cap * (out / cap).tanh() if cap else out

    def logps(self, ids, labels):
        """log p of each label, [T]."""
        return self.logits(ids).log_softmax(-1).gather(1, torch.as_tensor(labels)[:, None])[:, 0]

    def margins_of(self, ids):
        self.logits(ids)
        return self.margins
