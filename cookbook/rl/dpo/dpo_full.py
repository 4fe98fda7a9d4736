"""Preference optimization of all weights, with a reference model that stays as it is.

One device, both models in this process:
    python cookbook/rl/dpo/dpo_full.py --model-id smollm2 --dataset-id pairs.jsonl
On Ray, in two groups of ranks:
    python cookbook/rl/dpo/dpo_full.py --mode ray --model-gpus 4 --ref-model-gpus 4

--loss-type: sigmoid, hinge, ipo, and, without a reference, simpo, orpo, cpo.
"""

from itertools import islice

import twinkle
from twinkle import DeviceGroup, DeviceMesh, get_logger
from twinkle.cli import CLI
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.loss import CPOLoss, DPOLoss, ORPOLoss, SimPOLoss
from twinkle.metric import DPOMetric
from twinkle.model import TransformersModel
from twinkle.preprocessor import EmojiDPOProcessor

logger = get_logger()
args = CLI.from_args()
MODEL = args.model.model_id or "smollm2"
DATA = args.dataset.dataset_id or "ms://hjh0119/shareAI-Llama3-DPO-zh-en-emoji"
RANKS, OF_REFERENCE = args.infra.model_gpus or 1, args.infra.ref_model_gpus or 1
WITHOUT_REFERENCE = {
    "simpo": lambda: SimPOLoss(beta=2.5, gamma=0.5),
    "orpo": lambda: ORPOLoss(lambda_orpo=args.loss.beta),
    "cpo": lambda: CPOLoss(beta=args.loss.beta),
}


def pairs():
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=MODEL, max_length=args.template.max_length)
    keys = {} if "emoji" in DATA else {"chosen_key": "chosen", "rejected_key": "rejected"}
    dataset.map(EmojiDPOProcessor(system=args.template.default_system, **keys))
    dataset.encode()
    return dataset


def places():
    """Where the policy and its reference are: keyword arguments of each."""
    if args.infra.mode != "ray":
        twinkle.initialize(mode="local")
        return {}, {}
    groups = [
        DeviceGroup("policy", ranks=list(range(RANKS)), device_type="GPU"),
        DeviceGroup("reference", ranks=list(range(RANKS, RANKS + OF_REFERENCE)), device_type="GPU"),
    ]
    twinkle.initialize(mode="ray", nproc_per_node=RANKS + OF_REFERENCE, groups=groups)
    return (
        {"remote_group": "policy", "device_mesh": DeviceMesh.from_sizes(dp_size=RANKS)},
        {"remote_group": "reference", "device_mesh": DeviceMesh.from_sizes(dp_size=OF_REFERENCE)},
    )


def main():
    of_policy, of_reference = places()
    dataloader = DataLoader(dataset=pairs, batch_size=args.training.batch_size, **of_policy)
    policy = TransformersModel(model_id=MODEL, **of_policy)
    policy.set_optimizer("AdamW", lr=args.optimizer.learning_rate)
    policy.set_template("Template", model_id=MODEL)
    kind, beta = args.loss.loss_type, args.loss.beta
    reference = None
    if kind in WITHOUT_REFERENCE:
        policy.set_loss(WITHOUT_REFERENCE[kind]())
    else:
        policy.set_loss(DPOLoss(beta=beta, loss_type=kind))
        reference = TransformersModel(model_id=MODEL, **of_reference)
        reference.set_template("Template", model_id=MODEL)
    policy.add_metric(DPOMetric, beta=beta)

    steps = args.training.max_steps
    for step, rows in enumerate(islice(dataloader, steps), 1):
        batch = [row[side] for row in rows for side in ("positive", "negative")]
        of_loss = {}
        if reference is not None:
            of_loss["ref_outputs"] = reference.forward_only(inputs=batch)
        policy.forward_backward(inputs=batch, **of_loss)
        policy.clip_grad_and_step(max_grad_norm=args.optimizer.max_grad_norm)
        if step % args.training.log_interval == 0 or step == steps:
            logger.info(f"step {step}: {policy.calculate_metric(is_training=True)}")
    policy.save("dpo-full", output_dir=args.training.output_dir)


if __name__ == "__main__":
    main()
