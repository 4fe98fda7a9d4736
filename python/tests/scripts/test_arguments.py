"""CLI.from_args(): where a script's arguments come from, and what is wrong with some."""

import subprocess
import sys

import pytest

from twinkle.cli import CLI
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder and no variables of ours: the machine's own would be arguments."""
    import os

    for name in list(os.environ):
        if name.startswith("TWINKLE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# The defaults of the documents, by group: those that are not None.
DEFAULTS = {
    "model": "mixed_precision=bf16 strategy=accelerate memory_efficient_init=False "
    "gradient_checkpointing=True trust_remote_code=True load_weights=True "
    "recompute_granularity=full recompute_method=uniform recompute_num_layers=1 "
    "use_distributed_optimizer=True variable_seq_lengths=True enable_liger=False "
    "enable_fused_ce=True",
    "lora": "target_modules=all-linear r=8 lora_alpha=32 lora_dropout=0.05",
    "dataset": "subset_name=default split=train streaming=False",
    "template": "max_length=8192 truncation_strategy=raise use_chat_template=True "
    "enable_thinking=True",
    "training": "max_steps=200 batch_size=8 micro_batch_size=2 gradient_accumulation_steps=1 "
    "output_dir=./output save_steps=50 log_interval=10 resume_only_model=False "
    "ignore_data_skip=False seed=42 full_determinism=False padding_free=False",
    "optimizer": "optimizer_cls=AdamW weight_decay=0.0 adam_beta1=0.9 adam_beta2=0.999 "
    "adam_epsilon=1e-08 max_grad_norm=1.0 lr=1e-05",
    "scheduler": "scheduler_cls=CosineAnnealingLR num_warmup_steps=0 eta_min=0.0",
    "loss": "loss_cls=CrossEntropyLoss loss_type=sigmoid epsilon=0.2 beta=0.1 sft_weight=1.0 "
    "entropy_coef=0.0 value_clip=0.2 ignore_index=-100",
    "sampler": "sampler_type=vLLMSampler gpu_memory_utilization=0.8 enable_lora=False "
    "max_lora_rank=32 enforce_eager=False",
    "sampling": "temperature=1.0 top_k=-1 top_p=1.0 repetition_penalty=1.0 num_samples=1",
    "infra": "mode=local nproc_per_node=8 ncpu_proc_per_node=8 sequence_parallel=False "
    "lazy_collect=True",
    "server": "ray_namespace=twinkle_cluster host=0.0.0.0 port=8000 log_level=INFO",
    "rl": "num_generations=8 advantage_type=GRPOAdvantage advantage_scale=group gkd_beta=0.5 "
    "gkd_temperature=1.0 gkd_topk=64 router_replay_mode=disabled gamma=1.0 gae_lambda=0.95 "
    "kl_coef=0.0 normalize_advantages=True critic_learning_rate=1e-05",
    "checkpoint": "save_optimizer=True merge_and_sync=True platform=GPU",
}


@pytest.mark.parametrize("group", DEFAULTS)
def test_the_defaults_are_those_of_the_documents(group):
    found = getattr(CLI.from_args([]), f"get_{group}_args")()
    assert " ".join(f"{key}={value}" for key, value in found.items()) == DEFAULTS[group]


def test_later_sources_win(folder, monkeypatch):
    (folder / ".env").write_text("# x\nexport BATCH_SIZE=1\nMAX_STEPS='1'\nlr=1\nOTHER=2\nseed=1\n")
    monkeypatch.setenv("TWINKLE_MAX_STEPS", "2")
    monkeypatch.setenv("TWINKLE_LR", "2")
    monkeypatch.setenv("TWINKLE_SEED", "2")
    monkeypatch.setenv("TWINKLE_UNKNOWN", "2")
    monkeypatch.setenv("MICRO_BATCH_SIZE", "9")  # without the prefix it is not ours
    (folder / "a.yaml").write_text("lr: 3\ntraining:\n  seed: 3\nlora: {r: 3, lora_alpha: 9}\n")
    args = CLI.from_args(["--config", "a.yaml", "--seed", "4"])
    assert (args.training.batch_size, args.training.max_steps) == (1, 2)
    assert (args.optimizer.learning_rate, args.training.seed) == (3.0, 4)
    assert (args.lora.lora_r, args.lora.lora_alpha) == (3, 9)
    assert args.training.micro_batch_size == 2 and args.extra == {}
    other = CLI.from_args([], env_file="a.yaml", config_file="a.yaml")
    assert other.training.batch_size == 8


def test_another_word_for_a_field_may_stand_below_its_group(folder):
    (folder / "a.yaml").write_text("optimizer: {lr: 3}\nsampling: {max-new-tokens: 5}\n")
    args = CLI.from_args(["--config", "a.yaml"])
    assert (args.optimizer.learning_rate, args.sampling.max_tokens) == (3.0, 5)


def test_a_norm_that_is_not_clipped_to_is_infinite_in_yaml_and_in_flags(folder):
    (folder / "a.yaml").write_text("optimizer: {max_grad_norm: .inf}\n")
    for arguments in (["--config", "a.yaml"], ["--max-grad-norm", "inf"]):
        assert CLI.from_args(arguments).optimizer.max_grad_norm == float("inf")


def test_flags_in_every_spelling():
    args = CLI.from_args(
        "--model-id a --tokenizer_id=b --use-lora --no-streaming --Enable-Thinking false "
        "--padding-free --max-steps 1e3 --lora-target-modules q_proj,v_proj --top_k -1 "
        '--fsdp-config {"a":1} --template-model-id t --sampling-seed 3 --num-gpus 2 '
        "--max-new-tokens 5 --use-megatron --t-max none --server-config s.yaml "
        "--judge qwen --depth 3 --fast --rates 1,2.5 --no-cache".split()
    )  # fmt: skip
    assert (args.model.model_id, args.model.tokenizer_id) == ("a", "b")
    assert args.lora.use_lora and args.training.padding_free and not args.dataset.streaming
    assert not args.template.enable_thinking and args.sampling.top_k == -1
    assert args.training.max_steps == 1000 and args.lora.lora_target_modules == ["q_proj", "v_proj"]
    assert args.model.fsdp_config == {"a": 1} and args.template.model_id == "t"
    assert (args.sampling.seed, args.training.seed) == (3, 42) and args.server.config == "s.yaml"
    assert (args.infra.nproc_per_node, args.sampling.max_tokens) == (2, 5)
    assert args.model.strategy == "native_fsdp" and args.scheduler.t_max is None
    assert args.extra == {"judge": "qwen", "depth": 3, "fast": True, "rates": [1, 2.5],
                          "cache": False}  # fmt: skip


def test_arguments_are_found_by_name():
    args = CLI.from_args(["--model-id", "a", "--sampling-seed", "3", "--judge", "qwen"])
    assert (args["model_id"], args["seed"], args["judge"]) == ("a", 42, "qwen")
    assert args.get("nothing") is None and args.get("nothing", 5) == 5
    with pytest.raises(NotFoundError, match="there is no argument 'nothing'"):
        args["nothing"]
    values = args.to_dict()
    assert (values["model_id"], values["seed"], values["judge"]) == ("a", 42, "qwen")
    assert "tokenizer_id" not in values
    assert args.get_template_args()["model_id"] == args.get_model_args()["model_id"] == "a"
    other = CLI.from_args(["--template-model-id", "b"])
    assert other.get_model_args()["model_id"] == "b" and other.model.model_id is None


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--max-steps", "ten"], "--max_steps is 'ten', it must be an integer"),
        (["--max-steps", "1.5"], "--max_steps is 1.5, it must be an integer"),
        (["--lr", "fast"], "--lr is 'fast', it must be a number"),
        (["--lr", "nan"], "--lr is nan, it must be a number"),
        (["--lr", "inf"], "--lr is inf, it must be a number"),
        (["--epsilon-high=-inf"], "--epsilon_high is -inf, it must be a number"),
        (["--max-grad-norm", "nan"], "--max_grad_norm is nan, it must be a number"),
        (["--use-lora=maybe"], "--use_lora is 'maybe', it must be True or False"),
        (["--strategy", "ddp"], "--strategy is 'ddp', it must be 'accelerate' or 'native_fsdp'"),
        (["--fsdp-config", "[1]"], r"--fsdp_config is \[1\], it must be a dict"),
        (["--fsdp-config", "{"], "it must be a dict, or the text of a JSON object"),
        (["--model-id"], "--model_id is True, it must be a text"),
        (["--seed", "none"], "--seed is 'none', it must be an integer"),
        (["train"], "'train' is not a flag such as --lr"),
        (["--use-lora", "x"], "'x' is not a flag"),
        (["--", "x"], "'--' is not a flag"),
        (["--config", "none.yaml"], "--config none.yaml does not exist"),
    ],
)
def test_wrong_flags_are_named(flags, text):
    with pytest.raises((InvalidError, NotFoundError), match=text):
        CLI.from_args(flags)


@pytest.mark.parametrize(
    ("yaml", "text"),
    [
        ("a: [", "a.yaml is not YAML"),
        ("- 1", "a.yaml holds a list, it must hold keys"),
        ("colour: 1", "a.yaml has 'colour', which no group knows"),
        ("lora: {colour: 1}", "a.yaml has 'lora_colour', which no group knows"),
        ("max_steps: many", "max_steps of a.yaml is 'many', it must be an integer"),
        ("lora: {r: true}", "lora_r of a.yaml is True, it must be an integer"),
        ("batch_size:", "batch_size of a.yaml is None, it must be an integer"),
    ],
)
def test_wrong_files_are_named(folder, yaml, text):
    (folder / "a.yaml").write_text(yaml)
    with pytest.raises(InvalidError, match=text):
        CLI.from_args(["--config", "a.yaml"])


def test_the_source_of_a_wrong_value_is_named(folder, monkeypatch):
    monkeypatch.setenv("TWINKLE_SEED", "x")
    with pytest.raises(InvalidError, match="TWINKLE_SEED of the environment is 'x', it must be an"):
        CLI.from_args([])
    monkeypatch.delenv("TWINKLE_SEED")
    (folder / ".env").write_text("SEED=y")
    with pytest.raises(InvalidError, match=r"SEED of \.env is 'y'"):
        CLI.from_args([])
    with pytest.raises(NotFoundError, match=r"env_file b\.env does not exist"):
        CLI.from_args([], env_file="b.env")
    (folder / ".env").unlink()
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(NotAvailableError, match=r"a\.yaml needs the package yaml"):
        CLI.from_args(["--config", "a.yaml"])


def test_help_lists_every_argument(folder):
    code = "from twinkle.cli import CLI; CLI.from_args()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--learning-rate (1e-05)" in done.stdout and "\nsampler\n" in done.stdout
    assert "--platform (GPU): no effect, the variable TWINKLE_DEVICE chooses" in done.stdout
