"""The arguments that scripts share, by group: names, types and defaults. A field that several
groups have belongs, where no group is named, to the first of them here."""

from dataclasses import dataclass
from typing import Literal, NewType

Limit = NewType("Limit", float)  # a number that may be infinite: then it limits nothing


@dataclass
class ModelArgs:
    """The model to load: the arguments of TransformersModel."""

    model_id: str | None = None
    model_cls: str | None = None
    tokenizer_id: str | None = None
    mixed_precision: Literal["no", "fp8", "fp16", "bf16"] = "bf16"
    strategy: Literal["accelerate", "native_fsdp"] = "accelerate"
    memory_efficient_init: bool = False
    gradient_checkpointing: bool = True
    trust_remote_code: bool = True
    load_weights: bool = True
    recompute_granularity: str | None = "full"
    recompute_method: str | None = "uniform"
    recompute_num_layers: int | None = 1
    recompute_modules: list | None = None
    use_distributed_optimizer: bool = True
    variable_seq_lengths: bool = True
    ddp_config: dict | None = None
    fsdp_config: dict | None = None
    grad_scaler_config: dict | None = None
    enable_liger: bool = False
    enable_fused_ce: bool = True


@dataclass
class LoraArgs:
    """The adapter that is trained, with use_lora: LoraConfig's fields under the prefix lora_."""

    use_lora: bool = False
    lora_r: int = 8
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_target_modules: list | None = None  # 'all-linear' where None
    adapter_name: str = "default"
    lora_path: str | None = None


@dataclass
class DatasetArgs:
    """Where rows come from: DatasetMeta's fields. data_slice: text, which the script reads."""

    dataset_id: str | None = None
    subset_name: str = "default"
    split: str = "train"
    streaming: bool = False
    num_proc: int | None = None
    data_slice: str | None = None
    revision: str | None = None


@dataclass
class TemplateArgs:
    """How conversations become tokens: the arguments of Template. max_length: tokens."""

    template_cls: str | None = None
    model_id: str | None = None
    max_length: int = 8192
    truncation_strategy: Literal["raise", "left", "right", "split", "delete"] = "raise"
    use_chat_template: bool = True
    enable_thinking: bool = True
    default_system: str | None = None


@dataclass
class TrainingArgs:
    """The loop: how many steps, of what size, what is saved and logged when.

    batch_size: rows; *_interval and save_steps: in the steps that the script counts.
    """

    max_steps: int = 200
    num_train_epochs: int | None = None
    batch_size: int = 8
    mini_batch_size: int | None = None
    micro_batch_size: int = 2
    gradient_accumulation_steps: int = 1
    output_dir: str = "./output"
    save_steps: int = 50
    save_total_limit: int | None = None
    log_interval: int = 10
    eval_interval: int | None = None
    eval_samples: int | None = None
    train_samples: int | None = None
    resume_from_checkpoint: str | None = None
    resume_only_model: bool = False
    ignore_data_skip: bool = False
    seed: int = 42
    full_determinism: bool = False
    padding_free: bool = False


@dataclass
class OptimizerArgs:
    """The optimizer: its name, and numbers as torch takes them. max_grad_norm: to clip to."""

    optimizer_cls: str = "AdamW"
    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: Limit = 1.0


@dataclass
class SchedulerArgs:
    """The learning rate's schedule: its name, and arguments as torch calls them."""

    scheduler_cls: str = "CosineAnnealingLR"
    num_warmup_steps: int = 0
    num_training_steps: int | None = None
    t_max: int | None = None
    eta_min: float = 0.0
    lr_decay_steps: int | None = None
    max_lr: float | None = None


@dataclass
class LossArgs:
    """The loss: its name, and the arguments of the losses of every kind."""

    loss_cls: str = "CrossEntropyLoss"
    loss_type: str = "sigmoid"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.1
    sft_weight: float = 1.0
    entropy_coef: float = 0.0
    value_clip: float = 0.2
    ignore_index: int = -100


@dataclass
class SamplerArgs:
    """The sampler: its name, and engine_args as vLLM calls them. max_model_len: tokens."""

    sampler_type: str = "vLLMSampler"
    gpu_memory_utilization: float = 0.8
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    enable_lora: bool = False
    max_lora_rank: int = 32
    enforce_eager: bool = False


@dataclass
class SamplingArgs:
    """How is sampled: the fields of SamplingParams."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    num_samples: int = 1
    logprobs: int | None = None
    seed: int | None = None
    stop: str | None = None


@dataclass
class InfraArgs:
    """Processes and devices: the arguments of initialize, and sizes of a DeviceMesh's axes."""

    mode: Literal["local", "ray", "http"] = "local"
    nproc_per_node: int = 8
    ncpu_proc_per_node: int = 8
    model_gpus: int | None = None
    sampler_gpus: int | None = None
    ref_model_gpus: int | None = None
    critic_model_gpus: int | None = None
    world_size: int | None = None
    dp_size: int | None = None
    fsdp_size: int | None = None
    tp_size: int | None = None
    pp_size: int | None = None
    cp_size: int | None = None
    ep_size: int | None = None
    etp_size: int | None = None
    ep_fsdp_size: int | None = None
    vpp_size: int | None = None
    ulysses_size: int | None = None
    sequence_parallel: bool = False
    lazy_collect: bool = True


@dataclass
class ServerArgs:
    """The service: where it listens, its file of settings."""

    config: str | None = None  # --server-config: --config is the file of all arguments
    ray_namespace: str = "twinkle_cluster"
    host: str = "0.0.0.0"
    port: int = 8000
    log_level: str = "INFO"


@dataclass
class RLArgs:
    """Reinforcement learning and distillation: generations of a prompt, advantages, rewards."""

    num_generations: int = 8
    advantage_type: str = "GRPOAdvantage"
    advantage_scale: Literal["group", "batch", "none"] = "group"
    reward_fns: list | None = None
    student_model_id: str | None = None
    teacher_model_id: str | None = None
    gkd_beta: float = 0.5
    gkd_temperature: float = 1.0
    gkd_topk: int = 64
    router_replay_mode: Literal["disabled", "R2", "R3"] = "disabled"
    gamma: float = 1.0
    gae_lambda: float = 0.95
    kl_coef: float = 0.0
    normalize_advantages: bool = True
    critic_learning_rate: float = 1e-5


@dataclass
class CheckpointArgs:
    """The contents of a checkpoint, and how weights reach the sampler."""

    save_optimizer: bool = True
    merge_and_sync: bool = True
    platform: str = "GPU"
    lora_sync_dir: str | None = None


GROUPS = {
    "model": ModelArgs, "lora": LoraArgs, "dataset": DatasetArgs, "template": TemplateArgs,
    "training": TrainingArgs, "optimizer": OptimizerArgs, "scheduler": SchedulerArgs,
    "loss": LossArgs, "sampler": SamplerArgs, "sampling": SamplingArgs, "infra": InfraArgs,
    "server": ServerArgs, "rl": RLArgs, "checkpoint": CheckpointArgs,
}  # fmt: skip
ALIASES = {"lr": "learning_rate", "max_new_tokens": "max_tokens", "num_gpus": "nproc_per_node"}
