"""transformers + peft as a worker, as their users run them: bfloat16, sdpa, padded batches."""

import peft
import torch
import transformers
from foreign import Meter


class System:
    autocast = False

    def load(self, model, precision="bf16"):
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model,
            dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[precision],
            attn_implementation="sdpa",
        )
        pad = self.model.config.pad_token_id
        self.pad = pad if pad is not None else 2

    def name(self):
        return f"transformers {transformers.__version__} + peft {peft.__version__}"

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

    def train(self, ids, labels, lr):
        batch = self.padded(ids, labels)
        self.optimizer.param_groups[0]["lr"] = lr
        with Meter() as meter:
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
        return batch

    def step(self, optimizer, batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.tuned(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def start_decoding(self, num_sequences):
        del num_sequences
        self.model.eval()

    def prefill(self, prompt):
        ids = torch.tensor([prompt])
        with Meter() as meter:
            out, _ = self._generate(ids, torch.ones_like(ids), 1)
        tokens = out[:, len(prompt) :].tolist()
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "tokens": tokens}

    def decode(self, prompts, num_tokens):
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), self.pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        with Meter() as meter:
            _, first_s = self._generate(ids, mask, 1)
            out, whole_s = self._generate(ids, mask, num_tokens + 1)
        tokens = out[:, longest:].tolist()
        return {"wall_s": whole_s - first_s, "foreign": meter.foreign, "tokens": tokens}

    def _generate(self, ids, mask, num_tokens):
        with Meter() as meter, torch.inference_mode():
            out = self.model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, pad_token_id=self.pad,
                min_new_tokens=num_tokens, max_new_tokens=num_tokens,
            )  # fmt: skip
        return out, meter.wall_s
