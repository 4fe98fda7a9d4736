"""Arguments that are taken, since scripts for other engines have them, and change nothing here."""

_ONE_WAY = "ranks have one way to share a model"
_SLOTS = "adapters need no slots, their own configs count"
_IN_MEMORY = "rows are in memory, so workers have nothing to do"
_MEGATRON = "Megatron's; the engine keeps what the backward pass needs"
_CODE = "no code of a model's folder is ever run"
_ONE_DEVICE = "this version samples on one device"
_ONE_PASS = "a call goes over the rows once, in order, and keeps no cache"
_READ = "weights are read straight into their place"
_FILE = "a note in the adapter's file, or how another library makes the factors"
_STEP = "an optimizer's step is one pass over all parameters"

# {where: {argument: why it has no effect}}; docs/without-effect.md is made of it.
WITHOUT_EFFECT = {
    "CLI.from_args": {
        "memory_efficient_init": _READ,
        "trust_remote_code": _CODE,
        "load_weights": "weights are always read",
        "recompute_granularity": _MEGATRON,
        "recompute_method": _MEGATRON,
        "recompute_num_layers": _MEGATRON,
        "recompute_modules": _MEGATRON,
        "use_distributed_optimizer": "Megatron's; fsdp_size shares the optimizer's state",
        "variable_seq_lengths": "Megatron's; sequences of any lengths go together",
        "enable_liger": "the engine has its own kernels",
        "enable_fused_ce": "the head and its loss are always fused",
        "full_determinism": "the same run gives the same bits anyway",
        "padding_free": "no batch is ever padded",
        "platform": "the variable TWINKLE_DEVICE chooses the device",
    },
    "TransformersModel": {
        "attn_implementation": "the engine has one way to attend",
        "config": "it is that of model_id, but for use_cache; other values are refused by name",
        "device_map": "device_mesh, remote_group and TWINKLE_DEVICE choose the device",
        "instance_id": "one object is made for each constructor that is called",
        "low_cpu_mem_usage": _READ,
        "memory_efficient_init": _READ,
        "trust_remote_code": _CODE,
        "use_cache": "training keeps no keys and values, sampling always does",
    },
    "MultiLoraTransformersModel": {"lora_config": _SLOTS, "target_modules": _SLOTS},
    "ddp_config": dict.fromkeys(
        ("broadcast_buffers", "bucket_cap_mb", "check_reduction", "find_unused_parameters",
         "gradient_as_bucket_view", "init_sync", "static_graph"), _ONE_WAY),
    "fsdp_config": dict.fromkeys(
        ("auto_wrap_policy", "backward_prefetch", "cpu_ram_efficient_loading", "forward_prefetch",
         "fsdp_version", "limit_all_gathers", "manual_prefetch", "sync_module_states",
         "transformer_layer_cls_to_wrap", "use_orig_params"), _ONE_WAY),
    "forward, forward_only": {
        "micro_batch_size": "a batch is split as memory allows, which changes no result",
    },
    "forward, forward_only, forward_backward": {
        "return_logits": "with task='embedding' there are no logits: embeddings are returned",
    },
    "set_optimizer": {"foreach": _STEP, "fused": _STEP},
    "LoraConfig": {"task_type": "other than 'SEQ_CLS', " + _FILE} | dict.fromkeys(
        ("peft_type", "auto_mapping", "revision", "inference_mode", "peft_version",
         "runtime_config", "loftq_config", "megatron_core", "lora_ga_config",
         "qalora_group_size"), _FILE),
    "SAPOLoss": dict.fromkeys(("epsilon", "epsilon_high"), "nothing is clipped"),
    "vLLMSampler: engine_args": {
        "trust_remote_code": _CODE,
        "max_logprobs": "logprobs may always be up to the engine's own limit",
        "enable_sleep_mode": "the engine's memory is freed with the sampler",
        "disable_log_stats": "nothing is logged on its own; the engine's stats() has it",
        "enable_chunked_prefill": "prompts are always read in parts",
        "swap_space": "sequences are never swapped out",
        "block_size": "pages have 64 tokens",
        "max_seq_len_to_capture": "decode_graphs says whether steps are captured",
        "distributed_executor_backend": _ONE_DEVICE,
        "disable_custom_all_reduce": _ONE_DEVICE,
        "limit_mm_per_prompt": "models read text alone",
        "skip_tokenizer_init": "the tokenizer is read when it is needed",
    },
    "vLLMSampler.sleep, wake_up": dict.fromkeys(
        ("level", "tags"), "the engine's memory is shared with training, none is given back"),
    "kernelize": {"mapping": "the engine has its own kernels"},
    "DataLoader": dict.fromkeys(
        ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "timeout"),
        _IN_MEMORY),
    "Dataset.map, filter, encode, check": dict.fromkeys(
        ("load_from_cache_file", "num_proc", "desc", "keep_in_memory", "writer_batch_size"),
        _ONE_PASS),
    "Dataset": {"num_proc": "all cores read a source anyway"},
    "Template": dict.fromkeys(("trust_remote_code", "token"), _CODE) | {
        "revision": "a model's newest revision is taken; another is refused"},
}  # fmt: skip
