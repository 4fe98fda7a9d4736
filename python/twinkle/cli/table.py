"""The arguments that scripts share, as a table by group. A field that several groups have belongs,
where no group is named, to the first of them here.

A field's entry is its default, whose type is the field's; or, where there is no default, its type:
str, int, float, list or dict, and None is allowed; or a Field.
"""

from typing import NamedTuple


class Field(NamedTuple):
    """A field's default; choices: the values that are allowed, where they are few; none: None is
    one, too; infinite: inf is one, too; kind: its type, None: the default's."""

    default: object
    choices: tuple = ()
    none: bool = False
    infinite: bool = False
    kind: type | None = None


def _group(**entries):
    """{name: Field} of a group's entries."""
    return {name: _field(entry) for name, entry in entries.items()}


def _field(entry):
    if isinstance(entry, type):
        return Field(None, none=True, kind=entry)
    field = entry if isinstance(entry, Field) else Field(entry)
    return field._replace(kind=type(field.default))


GROUPS = {
    "model": _group(
        model_id=str, model_cls=str, tokenizer_id=str,
        mixed_precision=Field("bf16", ("no", "fp8", "fp16", "bf16")),
        strategy=Field("accelerate", ("accelerate", "native_fsdp")), memory_efficient_init=False,
        gradient_checkpointing=True, trust_remote_code=True, load_weights=True,
        recompute_granularity=Field("full", none=True),
        recompute_method=Field("uniform", none=True), recompute_modules=list,
        recompute_num_layers=Field(1, none=True),
        use_distributed_optimizer=True, variable_seq_lengths=True, ddp_config=dict,
        fsdp_config=dict, grad_scaler_config=dict, enable_liger=False, enable_fused_ce=True,
    ),
    "lora": _group(
        use_lora=False, lora_r=8, lora_alpha=32, lora_dropout=0.05, lora_target_modules=list,
        adapter_name="default", lora_path=str,
    ),
    "dataset": _group(
        dataset_id=str, subset_name="default", split="train", streaming=False, num_proc=int,
        data_slice=str, revision=str,
    ),
    "template": _group(
        template_cls=str, model_id=str, max_length=8192,
        truncation_strategy=Field("raise", ("raise", "left", "right", "split", "delete")),
        use_chat_template=True, enable_thinking=True, default_system=str,
    ),
    "training": _group(
        max_steps=200, num_train_epochs=int, batch_size=8, mini_batch_size=int, micro_batch_size=2,
        gradient_accumulation_steps=1, output_dir="./output", save_steps=50, save_total_limit=int,
        log_interval=10, eval_interval=int, eval_samples=int, train_samples=int,
        resume_from_checkpoint=str, resume_only_model=False, ignore_data_skip=False, seed=42,
        full_determinism=False, padding_free=False,
    ),
    "optimizer": _group(
        optimizer_cls="AdamW", learning_rate=1e-5, weight_decay=0.0, adam_beta1=0.9,
        adam_beta2=0.999, adam_epsilon=1e-8, max_grad_norm=Field(1.0, infinite=True),
    ),
    "scheduler": _group(
        scheduler_cls="CosineAnnealingLR", num_warmup_steps=0, num_training_steps=int, t_max=int,
        eta_min=0.0, lr_decay_steps=int, max_lr=float,
    ),
    "loss": _group(
        loss_cls="CrossEntropyLoss", loss_type="sigmoid", epsilon=0.2, epsilon_high=float,
        beta=0.1, sft_weight=1.0, entropy_coef=0.0, value_clip=0.2, ignore_index=-100,
    ),
    "sampler": _group(
        sampler_type="vLLMSampler", gpu_memory_utilization=0.8, max_model_len=int,
        tensor_parallel_size=int, enable_lora=False, max_lora_rank=32, enforce_eager=False,
    ),
    "sampling": _group(
        max_tokens=int, temperature=1.0, top_k=-1, top_p=1.0, repetition_penalty=1.0,
        num_samples=1, logprobs=int, seed=int, stop=str,
    ),
    "infra": _group(
        mode=Field("local", ("local", "ray", "http")), nproc_per_node=8, ncpu_proc_per_node=8,
        model_gpus=int, sampler_gpus=int, ref_model_gpus=int, critic_model_gpus=int,
        world_size=int, dp_size=int, fsdp_size=int, tp_size=int, pp_size=int, cp_size=int,
        ep_size=int, etp_size=int, ep_fsdp_size=int, vpp_size=int, ulysses_size=int,
        sequence_parallel=False, lazy_collect=True,
    ),
    "server": _group(
        config=str, ray_namespace="twinkle_cluster", host="0.0.0.0", port=8000, log_level="INFO"
    ),
    "rl": _group(
        num_generations=8, advantage_type="GRPOAdvantage",
        advantage_scale=Field("group", ("group", "batch", "none")), reward_fns=list,
        student_model_id=str, teacher_model_id=str, gkd_beta=0.5, gkd_temperature=1.0, gkd_topk=64,
        router_replay_mode=Field("disabled", ("disabled", "R2", "R3")), gamma=1.0, gae_lambda=0.95,
        kl_coef=0.0, normalize_advantages=True, critic_learning_rate=1e-5,
    ),
    "checkpoint": _group(
        save_optimizer=True, merge_and_sync=True, platform="GPU", lora_sync_dir=str
    ),
}  # fmt: skip
ALIASES = {"lr": "learning_rate", "max_new_tokens": "max_tokens", "num_gpus": "nproc_per_node"}
