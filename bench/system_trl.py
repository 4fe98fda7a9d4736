"""TRL's GRPOTrainer as a worker, with transformers' generate: bfloat16, sdpa, padded batches."""

import datasets
import peft
import torch
import transformers
import trl
from device import Device
from system_twinkle import told

RANK = 8


class Meters(transformers.TrainerCallback):
    """Measures a step, which begins with its replies and ends with its update."""

    def __init__(self, device):
        self._device = device

    def on_step_begin(self, args, state, control, **kwargs):
        self.meter = self._device.meter()
        self.meter.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        self.meter.__exit__()


class System:
    def load(self, model, precision="bf16", device="cpu"):
        transformers.utils.logging.set_verbosity_error()
        datasets.disable_progress_bars()
        self.device, self.path = Device(device), model
        self.dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=self.dtype, attn_implementation="sdpa"
        )

    def name(self):
        return f"TRL {trl.__version__} with generate of transformers {transformers.__version__}"

    def start(self, questions, group, num_tokens, lr):
        """A trainer whose every step takes all these questions; grpo_step() is one step of it."""
        prompts = [{"prompt": [{"role": "user", "content": text}]} for text in questions]
        self.meters, self.new_tokens = Meters(self.device), []
        self.trainer = trl.GRPOTrainer(
            model=self.model,
            reward_funcs=self._reward,
            train_dataset=datasets.Dataset.from_list(prompts),
            processing_class=transformers.AutoTokenizer.from_pretrained(self.path),
            callbacks=[self.meters],
            peft_config=peft.LoraConfig(
                r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
            args=trl.GRPOConfig(
                output_dir="outputs/bench/trl",
                use_cpu=self.device.name == "cpu",
                per_device_train_batch_size=len(questions) * group,
                num_generations=group,
                max_completion_length=num_tokens,
                temperature=1.0,
                max_steps=1,
                learning_rate=lr,
                weight_decay=0.01,
                lr_scheduler_type="constant",
                gradient_checkpointing=False,
                bf16=False,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
        )
        self.trainer.remove_callback(transformers.PrinterCallback)

    def _reward(self, completions, completion_ids, **kwargs):
        """As system_twinkle_script's, and notes how many tokens there are."""
        self.new_tokens.append(sum(map(len, completion_ids)))
        texts = [completion[0]["content"] for completion in completions]
        return [float(sum(map(str.isdigit, text))) for text in texts]

    def grpo_step(self):
        self.trainer.train()
        return {**told(self.meters.meter), "tokens": self.new_tokens[-1]}
