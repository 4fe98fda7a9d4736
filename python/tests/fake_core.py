"""A stand-in for twinkle._core: a bigram model, logits = (base + delta)[id], in plain torch.

An adapter trains its own delta, the full tenant trains the base. Slow, short and obvious: what the
Python classes do around it is what is tested.
"""

import json
from itertools import pairwise
from pathlib import Path

import torch

from twinkle import _core as real
from twinkle.errors import ConflictError, InvalidError

# These know no weights: they are the compiled ones.
Batch, Loop, Metric = real.Batch, real.Loop, real.Metric
as_list, part_of, is_json = real.as_list, real.part_of, real.is_json
loop_state_in, schedule_names = real.loop_state_in, real.schedule_names
refuse_misspelt, new_adapter_fields, ids = real.refuse_misspelt, real.new_adapter_fields, real.ids
check_loss, run_loss, ratio_warning = real.check_loss, real.run_loss, real.ratio_warning
loss_extras, scored_labels, label_rows = real.loss_extras, real.scored_labels, real.label_rows
check_engine_option, MAX_TOP_LOGPROBS = real.check_engine_option, real.MAX_TOP_LOGPROBS
sampling_params, engine_params = real.sampling_params, real.engine_params
TextPieces = real.TextPieces

VOCAB = 11


def is_read_as_chat(row):
    return False


def in_place_of_messages(row):
    return f"; the row has {', '.join(row)}"


class Done:
    def __init__(self, value):
        self.value = value

    def done(self):
        return True

    def cancel(self):
        return False

    def result(self, timeout=None):
        del timeout
        return self.value


class Stream:
    def __init__(self, future):
        self.future = future
        (((item, *_),),) = (future.value,)
        last = len(item["tokens"]) - 1
        self.left = [
            (0, token, logprob, item["stop_reason"] if i == last else "")
            for i, (token, logprob) in enumerate(zip(item["tokens"], item["logprobs"], strict=True))
        ]

    def cancel(self):
        self.left = []

    close = cancel

    def next(self):
        return self.left.pop(0) if self.left else None


def refuse_own_tokens(sequences):
    del sequences


DEVICE_NAMES = "'cpu', 'cuda' or 'cuda:' and a number"


def peft_config(directory):
    config = json.loads((Path(directory) / "adapter_config.json").read_text())
    return {"base_model_name_or_path": None, **config}


def engine_options():
    names = ["token_budget", "kv_tokens", "max_sequences", "prefill_tokens", "prefix_cache",
             "decode_graphs", "memory_share"]  # fmt: skip
    return [{"name": name} for name in names]


def is_device_name(name):
    return name in ("cpu", "cuda") or name.startswith("cuda:")


def default_device():
    return "cpu", ""


def why_not_on(device):
    return f"{device} is not of the fake engine"


class Template:
    def __init__(self, directory, **options):
        self.directory, self.options = directory, options

    def encode(self, row, add_generation_prompt=False):
        return self.batch_encode([row], add_generation_prompt)[0]

    def batch_encode(self, rows, add_generation_prompt=False):
        out = []
        for row in rows:
            ids = [len(m["content"]) % VOCAB for m in row["messages"]]
            out.append({**row, "input_ids": ids, "labels": [*ids[1:], -100]})
        return out

    def decode(self, ids, skip_special_tokens=False):
        return " ".join(map(str, ids))

    def concat_input_feature(self, feature, tokens):
        ids = [*feature["input_ids"], *tokens]
        return {**feature, "input_ids": ids, "labels": [-100] * len(ids)}


def _scores(loss, num_tokens, logps):
    return {
        "loss": loss, "num_tokens": num_tokens, "logps": logps, "entropies": [], "logits": [],
        "embeddings": [],
    }  # fmt: skip


class Engine:
    def __init__(
        self, model, *, mixed_precision="bf16", deterministic=True, device="cpu", value_head=False,
        **options,
    ):  # fmt: skip
        assert not value_head
        self.options = options
        torch.manual_seed(1)
        self.base = torch.randn(VOCAB, VOCAB, dtype=torch.float64)
        self.tenants, self.calls = {}, []
        self.model = model

    def model_info(self):
        return {
            "family": "bigram", "directory": self.model, "config_json": '{"width": 3}',
            "vocab_size": VOCAB, "max_positions": 32, "num_layers": 0,
            "num_routed_layers": 0, "num_experts_per_tok": 0,
            "num_parameters": VOCAB * VOCAB, "eos_ids": [0],
        }  # fmt: skip

    def _tenant(self, name):
        if name not in self.tenants:
            raise InvalidError(f"engine: there is no tenant '{name}'")
        return self.tenants[name]

    def create(self, *, tenant, lora_json="", directory="", seed=0, frozen=False):
        self.calls.append(("create", tenant))
        if tenant in self.tenants:
            raise ConflictError(f"engine: tenant '{tenant}' exists")
        full = not (lora_json or directory or frozen)
        self.tenants[tenant] = {
            "weight": self.base if full else torch.zeros_like(self.base),
            "full": full, "grad": torch.zeros_like(self.base), "tokens": 0.0, "optimizer": None,
            "step": 0, "factor": 1.0,
        }  # fmt: skip
        return Done(None)

    def delete(self, *, tenant):
        del self.tenants[tenant]
        return Done(None)

    def _logps(self, weight, sequences, temperature):
        if not sequences:
            raise InvalidError("engine: the batch is empty")
        out = []
        for s in sequences:
            ids = torch.as_tensor(s["input_ids"])
            if int(ids.max()) >= VOCAB:
                raise InvalidError(f"engine: token {int(ids.max())} is outside the vocabulary")
            labels = torch.as_tensor(s["labels"]) if "labels" in s else torch.full_like(ids, -100)
            p = torch.log_softmax(weight[ids] / temperature, -1)
            mask = labels != -100
            p = p.gather(1, labels.clamp(min=0)[:, None])[:, 0]
            out.append(torch.where(mask, p, 0.0))
        return out

    def _weight(self, t, disable_lora=False):
        return self.base if t["full"] or disable_lora else self.base + t["weight"]

    def forward(self, *, tenant, sequences, disable_lora=False, temperature=1.0, **options):
        assert options.keys() <= {"entropy", "train", "logits", "embedding", "routed_experts"}
        assert not any(map(options.get, ("logits", "embedding", "routed_experts")))
        self.calls.append(("forward", len(sequences)))
        weight = self._weight(self._tenant(tenant), disable_lora)
        logps = [p.float().numpy() for p in self._logps(weight, sequences, temperature)]
        return Done(_scores(0, 0, logps))

    def forward_backward(
        self, *, tenant, sequences, loss="CrossEntropyLoss", loss_options="", temperature=1.0,
        **asked,
    ):  # fmt: skip
        assert not any(asked.values()), "this model has none"
        self.calls.append(("forward_backward", len(sequences), loss))
        t, options = self._tenant(tenant), json.loads(loss_options or "{}")
        weight = self._weight(t).detach().clone().requires_grad_()
        logps = self._logps(weight, sequences, temperature)
        count = sum(int((torch.as_tensor(s["labels"]) != -100).sum()) for s in sequences)
        if loss == "CrossEntropyLoss":
            value = -sum(p.sum() for p in logps)
            if options.get("reduction") == "mean":
                value, count = value / count, 1
        else:
            grads = [torch.as_tensor(s["extras"]["grad"]) for s in sequences]
            value = sum((p * g).sum() for p, g in zip(logps, grads, strict=True))
            count = options["num_tokens"]
        value.backward()
        t["grad"] += weight.grad
        t["tokens"] += count
        logps = [p.detach().float().numpy() for p in logps]
        return Done(_scores(value.item(), count, logps))

    def clip_grad_norm(self, *, tenant, max_grad_norm=1.0, norm_type=2.0):
        t = self._tenant(tenant)
        self.calls.append(("clip_grad_norm", max_grad_norm))
        norm = (t["grad"] / t["tokens"]).norm(norm_type).item()
        t["factor"] = min(1.0, max_grad_norm / norm) if max_grad_norm else 1.0
        return Done({"grad_norm": norm, "num_tokens": t["tokens"], "step": t["step"]})

    def step(self, *, tenant, optimizer="AdamW", options="", max_grad_norm=0.0, norm_type=2.0):
        t, options = self._tenant(tenant), json.loads(options)
        self.calls.append(("step", options["lr"], max_grad_norm))
        grad = t["grad"] / t["tokens"] * t["factor"]
        norm = grad.norm(norm_type).item()
        if max_grad_norm and norm > max_grad_norm:
            grad = grad * (max_grad_norm / norm)
        if t["optimizer"] is None:
            t["parameter"] = torch.nn.Parameter(t["weight"])
            t["optimizer"] = getattr(torch.optim, optimizer)([t["parameter"]], **options)
        for key, value in options.items():
            t["optimizer"].param_groups[0][key] = value
        t["parameter"].grad = grad
        t["optimizer"].step()
        t["weight"].copy_(t["parameter"].data)
        t["step"] += 1
        self.zero_grad(tenant=tenant)
        return Done({"grad_norm": norm, "num_tokens": 0, "step": t["step"]})

    def zero_grad(self, *, tenant):
        t = self._tenant(tenant)
        t["grad"], t["tokens"], t["factor"] = torch.zeros_like(self.base), 0.0, 1.0
        self.calls.append(("zero_grad",))
        return Done(None)

    def reset_prefix_cache(self):
        self.calls.append(("reset_prefix_cache",))

    def sample_stream(self, *, params, **request):
        return Stream(self.sample(params=params, **request))

    def sample(self, *, tenant, prompts, params, version=0, tokenizer=""):
        self.calls.append(("sample", tenant, params))
        out = []
        for prompt, p in zip(prompts, params, strict=True):
            weight, ids, logprobs = self._weight(self._tenant(tenant)), [int(prompt[-1])], []
            rows = torch.log_softmax(weight, -1)

            def top(token, k, rows=rows):
                values, tokens = rows[token].topk(k)
                return list(zip(tokens.tolist(), values.tolist(), strict=True))

            for _ in range(p["max_tokens"]):
                row = rows[ids[-1]]
                ids.append(int(row.argmax()))
                logprobs.append(float(row.max()))
            item = {
                "tokens": ids[1:], "logprobs": logprobs, "stop_reason": "length", "matched": "",
                "top_logprobs": [top(i, p.get("top_logprobs", 0)) for i in ids[:-1]],
                "prompt_logprobs": [float(rows[a, b]) for a, b in pairwise(map(int, prompt))],
                "top_prompt_logprobs": [
                    top(int(i), p.get("top_prompt_logprobs", 0)) for i in prompt[:-1]
                ],
            }  # fmt: skip
            out.append([item] * p["num_samples"])
        return Done(out)

    def save(
        self,
        *,
        tenant,
        directory,
        optimizer=False,
        extra_json="",
        max_shard_bytes=0,
        expert_format="",
    ):
        Path(directory).mkdir(parents=True, exist_ok=True)
        self.calls.append(("save", max_shard_bytes))
        torch.save(self._tenant(tenant)["weight"], Path(directory) / "weight.pt")
        if not self._tenant(tenant)["full"]:
            config = json.dumps({"base_model_name_or_path": self.model})
            (Path(directory) / "adapter_config.json").write_text(config)
        state = {"checkpoint_version": 1, "training": {}, "extra": extra_json}
        (Path(directory) / "trainer_state.json").write_text(json.dumps(state))
        return Done(directory)

    def load(self, *, tenant, directory, optimizer=False):
        self.calls.append(("load", directory))
        self._tenant(tenant)["weight"].copy_(torch.load(Path(directory) / "weight.pt"))
        return Done("")

    def inspect(self, *, tenant, tensors=False):
        t = self._tenant(tenant)
        return Done({"tensors": {"weight": t["weight"].float().numpy()}})
