"""transformers + peft as a worker, as their users run them: bfloat16, sdpa, padded batches."""

from contextlib import ExitStack

import peft
import torch
import transformers
from device import Device


class AtFirstToken(transformers.StoppingCriteria):
    """Calls `begin` as soon as every sequence has one token more. Stops none."""

    def __init__(self, begin):
        self._begin = begin

    def __call__(self, input_ids, scores, **kwargs):
        if self._begin:
            self._begin()
        self._begin = None
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class System:
    autocast = False
    tuned = None
    decoding_experts = None

    def load(self, model, precision="bf16", device="cpu"):
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.device = Device(device)
        self.peak_mib = self.device.peak_mib
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model,
            dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[precision],
            attn_implementation="sdpa",
        ).to(device)
        pad = self.model.config.pad_token_id
        self.pad = pad if pad is not None else 2

    def name(self):
        return f"transformers {transformers.__version__} + peft {peft.__version__}"

    def forget(self):
        """Takes the adapters out of the model."""
        if self.tuned is not None:
            self.model = self.tuned.unload()
        self.tuned, self.optimizer, self.optimizers = None, None, {}

    def checkpoint(self):
        """Every layer is computed again for its backward pass, as its Trainer's option has it."""
        self.model.gradient_checkpointing_enable({"use_reentrant": False})

    def use_experts(self, implementation):
        """One of its ways through a layer's experts."""
        self.model.set_experts_implementation(implementation)

    def start_training(self, adapter, rank, make):
        if make:
            raise ValueError("the adapter is made by the other system")
        self.tuned = peft.PeftModel.from_pretrained(self.model, adapter, is_trainable=True)
        found = self.tuned.peft_config["default"].r
        if found != rank:
            raise ValueError(f"the adapter's rank is {found}, it must be {rank}")
        self._start()

    def start_full_training(self):
        """bf16 as its Trainer does it: float32 weights under autocast. Weights in bfloat16 would
        lose most of every step to rounding, and the losses with it."""
        self.autocast = self.model.dtype == torch.bfloat16
        self.tuned = self.model.float().requires_grad_(True)
        self._start()

    def _start(self):
        self.tuned.train()
        trained = [p for p in self.tuned.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01)

    def train(self, ids, labels, lr, repeats=1):
        batch = self.padded(ids, labels)
        self.optimizer.param_groups[0]["lr"] = lr
        with self.device.meter() as meter:
            for _ in range(repeats):
                loss = self.step(self.optimizer, batch)
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "loss": loss.item()}

    def padded(self, ids, labels):
        """labels[t] is the token after t; here they move back one place, as the library wants."""
        longest = max(map(len, ids))
        shape = (len(ids), longest)
        batch = {
            "input_ids": torch.full(shape, self.pad),
            "attention_mask": torch.zeros(shape, dtype=torch.int64),
            "labels": torch.full(shape, -100),
        }
        for row, (i, t) in enumerate(zip(ids, labels, strict=True)):
            batch["input_ids"][row, : len(i)] = torch.tensor(i)
            batch["attention_mask"][row, : len(i)] = 1
            batch["labels"][row, 1 : len(i)] = torch.tensor(t[:-1])
        return {name: values.to(self.device.name) for name, values in batch.items()}

    def step(self, optimizer, batch):
        with torch.autocast(self.device.name, torch.bfloat16, enabled=self.autocast):
            loss = self.tuned(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def start_decoding(self, num_sequences):
        del num_sequences
        self.model.eval()

    def prefill(self, prompt):
        ids = torch.tensor([prompt], device=self.device.name)
        with self.device.meter() as meter:
            out, _ = self._generate(ids, torch.ones_like(ids), 1)
        tokens = out[:, len(prompt) :].tolist()
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "tokens": tokens}

    def decode_experts_by(self, implementation):
        """Times of every token after a prompt, whose experts are passed "eager": fastest there."""
        self.decoding_experts = implementation

    def decode(self, prompts, num_tokens):
        ids, mask = self._padded_left(prompts)
        meter = self.device.meter()
        with ExitStack() as measured:
            self._use_decoding_experts("eager")

            def begin():
                self._use_decoding_experts(self.decoding_experts)
                measured.enter_context(meter)

            out, _ = self._generate(ids, mask, num_tokens + 1, begin)
        tokens = out[:, ids.shape[1] :].tolist()
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "tokens": tokens}

    def _use_decoding_experts(self, implementation):
        if self.decoding_experts:
            self.use_experts(implementation)

    def throughput(self, prompts, counts):
        """One padded batch, as long as its longest reply; what nobody asked for is not counted."""
        with self.device.meter() as meter:
            self._generate(*self._padded_left(prompts), max(counts))
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "tokens": sum(counts)}

    def _padded_left(self, prompts):
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), self.pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        return ids.to(self.device.name), mask.to(self.device.name)

    def _generate(self, ids, mask, num_tokens, at_first_token=None):
        with self.device.meter() as meter, torch.inference_mode():
            out = self.model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, pad_token_id=self.pad,
                min_new_tokens=num_tokens, max_new_tokens=num_tokens,
                stopping_criteria=[AtFirstToken(at_first_token)],
            )  # fmt: skip
        return out, meter.wall_s
