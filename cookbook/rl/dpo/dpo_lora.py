"""Direct preference optimization of an adapter; the reference is the base model without it.

One device:  python cookbook/rl/dpo/dpo_lora.py --model-id smollm2 --dataset-id pairs.jsonl
Four ranks:  torchrun --nproc_per_node 4 cookbook/rl/dpo/dpo_lora.py --dp-size 4 ...

Rows: {"prompt": "...", "chosen": "...", "rejected": "..."}. --loss-type: sigmoid, hinge, ipo,
kto_pair.
"""

from itertools import islice

from peft import LoraConfig

import twinkle
from twinkle import DeviceMesh, get_logger
from twinkle.cli import CLI
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.loss import DPOLoss
from twinkle.metric import DPOMetric
from twinkle.model import TransformersModel
from twinkle.preprocessor import EmojiDPOProcessor

logger = get_logger()
args = CLI.from_args()
MODEL = args.model.model_id or "smollm2"
DATA = args.dataset.dataset_id or "ms://hjh0119/shareAI-Llama3-DPO-zh-en-emoji"


def pairs():
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=MODEL, max_length=args.template.max_length)
    keys = {} if "emoji" in DATA else {"chosen_key": "chosen", "rejected_key": "rejected"}
    dataset.map(EmojiDPOProcessor(system=args.template.default_system, **keys))
    dataset.encode()
    return dataset


def main():
    mesh = DeviceMesh.from_sizes(fsdp_size=args.infra.fsdp_size, dp_size=args.infra.dp_size)
    twinkle.initialize(mode=args.infra.mode, global_device_mesh=mesh)
    dataloader = DataLoader(dataset=pairs(), batch_size=args.training.batch_size)
    steps = min(args.training.max_steps, len(dataloader))
    model = TransformersModel(model_id=MODEL)
    lora = LoraConfig(**args.get_lora_args())
    model.add_adapter_to_model(args.lora.adapter_name, lora)
    lr = args.optimizer.learning_rate
    model.set_optimizer("AdamW", lr=lr, weight_decay=0.01)
    model.set_lr_scheduler("CosineAnnealingLR", T_max=steps, eta_min=lr / 10)
    of_loss = args.loss
    model.set_loss(
        DPOLoss(beta=of_loss.beta, loss_type=of_loss.loss_type, sft_weight=of_loss.sft_weight)
    )
    model.add_metric(DPOMetric, beta=args.loss.beta)

    for step, rows in enumerate(islice(dataloader, steps), 1):
        # Chosen, rejected, chosen, ...: each rank gets whole pairs.
        batch = [row[side] for row in rows for side in ("positive", "negative")]
        reference = model.forward_only(inputs=batch, disable_lora=True)
        model.forward_backward(inputs=batch, ref_outputs=reference)
        model.clip_grad_and_step(max_grad_norm=args.optimizer.max_grad_norm)
        if step % args.training.log_interval == 0 or step == steps:
            logger.info(f"step {step} of {steps}: {model.calculate_metric(is_training=True)}")
    model.save("dpo-lora", output_dir=args.training.output_dir)


if __name__ == "__main__":
    main()
