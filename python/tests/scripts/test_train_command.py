"""`twinkle train`: a run's files, trackers, and objectives beside the loops of examples/."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from twinkle import LoraConfig, TransformersModel, program
from twinkle.advantage import GRPOAdvantage
from twinkle.infra import current_run
from twinkle.report import smoothed
from twinkle.sampler import TorchSampler
from twinkle.seeding import stable_seed

PROGRAM = [sys.executable, "-c", "from twinkle.program import main; main()"]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "I am N."},
        ]
    }
    for question in ("Who are you?", "What is your name?")
]
PAIRS = [
    {"prompt": "Who are you?", "chosen": "I am a helpful assistant.", "rejected": "Who?"},
    {"prompt": "What is your name?", "chosen": "Hello!", "rejected": "What is your name?"},
]
PROMPT = {"messages": [{"role": "user", "content": "What is your name?"}], "goal": 40}
REWARD = """
def near(trajectories):
    print("a print of the user's harms nobody")
    return [-abs(len(t["messages"][-1]["content"]) - t["goal"]) for t in trajectories]
def raises(trajectories):
    return [1 / (t["goal"] - 41) for t in trajectories]
def short(trajectories):
    return [1.0]
def slow(trajectories):
    import time
    time.sleep(60)
"""


@pytest.fixture
def train(engine_built, tmp_path, tiny_llama_dir):
    """Runs `twinkle train MODEL rows.jsonl ...` in tmp_path: (exit status, stdout, stderr)."""
    if program.path() is None:
        pytest.skip("bin/twinkle is not built")

    def run(rows, *arguments, path=()):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "reward.py").write_text(REWARD)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, *sys.path]))}
        environment.pop("TWINKLE_PYTHON", None)
        done = subprocess.run(
            [*PROGRAM, "train", tiny_llama_dir, "rows.jsonl", *map(str, arguments)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return run


def log_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_log_its_curve_its_config_and_its_adapter(train, tmp_path):
    status, out, err = train(CHATS, "--epochs", 2, "--batch-size", 1, "--validation", "rows.jsonl")
    assert status == 0, err
    folder = tmp_path / "outputs/rows-1"
    assert (tmp_path / "outputs/latest").resolve() == folder
    assert {path.name for path in folder.iterdir()} == {
        "adapter", "config.yaml", "log.jsonl", "loss.png", "state",
    }  # fmt: skip
    steps, validation = log_of(folder)[:-1], log_of(folder)[-1]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert [line["epoch"] for line in steps] == [0.5, 1, 1.5, 2]
    assert set(steps[0]) == {
        "step", "epoch", "loss", "lr", "grad_norm", "tokens", "tokens_per_second", "seconds",
    }  # fmt: skip
    assert set(validation) == {"step", "validation_loss"}
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert ("try it:  " in out and "'What is your name?'" in out) or "'Who are you?'" in out


def write_trackers(folder):
    """Packages of the trackers' names and calls, which write what they get into tracked.jsonl."""
    write = "import json\ndef put(kind, values, step):\n    with open('tracked.jsonl', 'a') as f:\n"
    write += "        print(json.dumps([kind, values, step]), file=f)\n"
    (folder / "wandb.py").write_text(
        write + "class Run:\n    def log(self, values, step): put('wandb', values, step)\n"
        "    def finish(self): put('wandb', {}, 0)\n"
        "def init(project, name, dir): return Run()\n"
    )
    (folder / "swanlab.py").write_text(
        write + "def init(project, experiment_name, logdir): pass\n"
        "def log(values, step): put('swanlab', values, step)\n"
        "def finish(): put('swanlab', {}, 0)\n"
    )
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard/__init__.py").write_text("")
    (folder / "tensorboard/summary.py").write_text(
        write + "class Writer:\n    def __init__(self, folder): pass\n"
        "    def add_scalar(self, tag, data, step): put('tensorboard', {tag: data}, step)\n"
        "    def close(self): put('tensorboard', {}, 0)\n"
    )


def test_trackers_get_every_number_of_the_log(train, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    write_trackers(packages)
    status, _, err = train(
        CHATS, "--epochs", 2, "--report-to", "tensorboard,wandb,swanlab", path=[packages]
    )
    assert status == 0, err
    tracked = [json.loads(line) for line in (tmp_path / "tracked.jsonl").read_text().splitlines()]
    for name in ("tensorboard", "wandb", "swanlab"):
        got = {1: {}, 2: {}, 0: {}}
        for kind, values, step in tracked:
            if kind == name:
                got[step] |= values
        lines = log_of(tmp_path / "outputs/rows-1")
        assert [got[line["step"]] | {"step": line["step"]} for line in lines] == lines


def test_a_tracker_that_is_not_there_is_refused_before_anything_is_made(train, tmp_path):
    status, _, err = train(CHATS, "--report-to", "swanlab")
    assert status == 1
    assert err == (
        "twinkle: cli: --report-to: 'swanlab' is not installed: "
        f"{sys.executable} -m pip install swanlab\n"
    )
    _, _, err = train(CHATS, "--report-to", "tensorboards")
    assert "'tensorboards' is no tracker; there are tensorboard, wandb, swanlab" in err
    assert not (tmp_path / "outputs").exists()


def test_a_reporter_that_dies_is_told_once_and_the_training_goes_on(train, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "matplotlib.py").write_text("raise OSError('no fonts')")
    status, out, err = train(CHATS, "--epochs", 2, path=[packages])
    assert status == 0, err
    assert out.startswith("saved outputs/rows-1/adapter\n")
    assert err.count("the reporter of loss.png has failed") == 1
    assert len(log_of(tmp_path / "outputs/rows-1")) == 2


def test_the_smoothed_line_is_a_weighted_mean_of_what_was_before():
    values = [4.0, 2.0, 3.0]
    weights = [(3 / 13) ** 2, 3 / 13, 1]
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert smoothed(values)[-1] == pytest.approx(expected)
    assert smoothed([2.0] * 5) == pytest.approx([2.0] * 5)


# ---- objectives


@pytest.fixture
def loop(tiny_llama_dir):
    """make(loss, lr, **options): the model of a loop, and the seed of its adapter."""

    def make(loss, lr, head=None, **options):
        model = TransformersModel(model_id=tiny_llama_dir)
        config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", **head or {})
        model.add_adapter_to_model("default", config)
        model.set_loss(loss, **options)
        model.set_optimizer("AdamW", lr=lr)
        return model

    return make


SEED = stable_seed(current_run().seed, "adapter", "default")


def assert_same(lines, expected, *names):
    for line, metric in zip(lines, expected, strict=True):
        for name in names:
            assert line[name] == pytest.approx(metric[name], rel=1e-5, abs=1e-6), (name, lines)


def chats_of_pairs():
    turns = [(row["prompt"], row[side]) for row in PAIRS for side in ("chosen", "rejected")]
    roles = ("user", "assistant")
    return [
        {"messages": [{"role": r, "content": c} for r, c in zip(roles, turn, strict=True)]}
        for turn in turns
    ]


def test_a_reward_model_has_the_numbers_of_the_loop(train, tmp_path, loop):
    flags = ("--center-rewards-coefficient", 0.1, "--epochs", 2, "--seed", SEED)
    status, out, err = train(PAIRS, "--loss", "reward", *flags)
    assert status == 0, err
    assert "it scores replies" in out and "twinkle sample" not in out
    head = {"task_type": "SEQ_CLS", "num_labels": 1}
    model = loop("RewardLoss", 5e-5, head, center_rewards_coefficient=0.1)
    model.add_metric("RewardMetric", is_training=True)
    expected, chats = [], chats_of_pairs()
    for _ in range(2):
        model.forward_backward(inputs=chats)
        model.clip_grad_and_step(max_grad_norm=1.0)
        expected.append(model.calculate_metric(is_training=True))
    names = ("loss", "grad_norm", "rewards/margins", "rewards/accuracies")
    assert_same(log_of(tmp_path / "outputs/rows-1"), expected, *names)
    model.add_adapter_to_model("saved", tmp_path / "outputs/rows-1/adapter")
    ours = model.forward_only(inputs=chats, adapter_name="default")["logits"]
    saved = model.forward_only(inputs=chats, adapter_name="saved")["logits"]
    torch.testing.assert_close(saved, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "loss, name, options",
    [
        ("dpo", "DPOLoss", {"beta": 0.2}),
        ("simpo", "SimPOLoss", {"gamma": 0.3}),
        ("orpo", "ORPOLoss", {}),
    ],
)
def test_preferences_have_the_numbers_of_the_loop(train, tmp_path, loop, loss, name, options):
    flags = [part for key, value in options.items() for part in (f"--{key}", value)]
    status, _, err = train(PAIRS, "--loss", loss, *flags, "--epochs", 2, "--seed", SEED)
    assert status == 0, err
    model = loop(name, 5e-5, **options)
    if loss == "dpo":
        model.add_metric("DPOMetric", is_training=True, beta=options["beta"])
    expected, chats = [], chats_of_pairs()
    for _ in range(2):
        reference = model.forward_only(inputs=chats, disable_lora=True)
        model.forward_backward(inputs=chats, ref_outputs=reference)
        model.clip_grad_and_step(max_grad_norm=1.0)
        expected.append(model.calculate_metric(is_training=True))
    more = ("rewards/margins", "rewards/accuracies") if loss == "dpo" else ()
    assert_same(log_of(tmp_path / "outputs/rows-1"), expected, "loss", "grad_norm", *more)


def test_kto_has_the_numbers_of_the_loop(train, tmp_path, loop):
    talks = [
        ("Who are you?", "I am a helpful assistant.", True), ("Who are you?", "Who?", False),
        ("What is your name?", "Hello!", True),
    ]  # fmt: skip
    rows = [{"prompt": q, "completion": a, "label": good} for q, a, good in talks]
    flags = ("--beta", 0.2, "--undesirable-weight", 0.5, "--epochs", 2, "--seed", SEED)
    status, _, err = train(rows, "--loss", "kto", *flags)
    assert status == 0, err
    assert "prompt, completion: read as PromptCompletionProcessor" in err
    # Each prompt with the reply of the row before it that has another prompt, the first's the last.
    replies = [(q, a) for q, a, _ in talks]
    replies += [(talks[0][0], "Hello!"), (talks[1][0], "Hello!"), (talks[2][0], "Who?")]
    chats = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in replies
    ]
    model = loop("KTOLoss", 5e-5, beta=0.2, undesirable_weight=0.5)
    desirable = [good for _, _, good in talks] + [None] * 3
    expected = []
    for _ in range(2):
        reference = model.forward_only(inputs=chats, disable_lora=True)
        now = model.forward_only(inputs=chats)
        gains = [
            0.2 * sum(x - y for x, y in zip(a, b, strict=True))
            for a, b in zip(now["logps"], reference["logps"], strict=True)
        ]
        model.forward_backward(inputs=chats, ref_outputs=reference, desirable=desirable)
        model.clip_grad_and_step(max_grad_norm=1.0)
        metric = model.calculate_metric(is_training=True)
        metric["rewards/chosen"] = float(gains[0] + gains[2]) / 2
        metric["rewards/rejected"] = float(gains[1])
        expected.append(metric)
    lines = log_of(tmp_path / "outputs/rows-1")
    assert_same(lines, expected, "loss", "grad_norm", "rewards/chosen", "rewards/rejected")
    assert lines[0]["loss"] != lines[1]["loss"]


def test_grpo_has_the_numbers_of_the_loop(train, tmp_path, loop, tiny_llama_dir):
    (tmp_path / "run.yaml").write_text(
        "loss: grpo\nreward: reward.py:near\nbeta: 0.04\nepsilon: 0.3\nnum_generations: 4\n"
        f"max_tokens: 12\nepochs: 2\nlr: 0.001\nseed: {SEED}\n"
    )
    status, _, err = train([PROMPT], "--config", "run.yaml")
    assert status == 0, err
    model = loop("GRPOLoss", 1e-3, beta=0.04, epsilon=0.3)
    sampler = TorchSampler(model=model)
    space = {}
    exec(REWARD, space)
    expected = []
    for step in range(2):
        params = {"num_samples": 4, "max_tokens": 12, "logprobs": 1, "temperature": 1.0}
        (response,) = sampler.sample([PROMPT], params | {"seed": SEED + step})
        replies = response.sequences
        chats = [reply.new_input_feature for reply in replies]
        rewards = space["near"]([{**chat, "goal": PROMPT["goal"]} for chat in chats])
        reference = model.forward_only(inputs=chats, disable_lora=True, temperature=1.0)
        model.forward_backward(
            inputs=replies,
            advantages=GRPOAdvantage()(rewards, num_generations=4).tolist(),
            old_logps=[reply.logprobs for reply in replies],
            ref_outputs=reference,
            temperature=1.0,
        )
        model.clip_grad_and_step(max_grad_norm=1.0)
        metric = model.calculate_metric(is_training=True)
        expected.append({**metric, "reward": sum(rewards) / 4})
    lines = log_of(tmp_path / "outputs/rows-1")
    assert len({line["reward"] for line in lines}) == 2
    assert_same(lines, expected, "loss", "grad_norm", "reward")


def test_texts_are_learnt_whole(train, tmp_path, loop, tiny_llama_dir):
    rows = [{"text": "Hello! I am a helpful assistant."}, {"text": "What is your name?"}]
    status, out, err = train(rows, "--loss", "pretrain", "--epochs", 2, "--seed", SEED)
    assert status == 0, err
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tiny_llama_dir)
    # One text behind the other, each with its end; every token but the first is a label.
    ids = [
        i for row in rows for i in [*tokenizer(row["text"])["input_ids"], tokenizer.eos_token_id]
    ]
    model = loop("CrossEntropyLoss", 1e-4)
    expected = []
    for _ in range(2):
        model.forward_backward(inputs=[{"input_ids": ids, "labels": [*ids[1:], -100]}])
        model.clip_grad_and_step(max_grad_norm=1.0)
        expected.append(model.calculate_metric(is_training=True))
    assert_same(log_of(tmp_path / "outputs/rows-1"), expected, "loss", "grad_norm")
    assert out.rstrip().endswith("--plain")


@pytest.mark.parametrize(
    "reward, status, text",
    [
        ("reward.py:raises", 1, "rows.jsonl line 2: ZeroDivisionError: division by zero"),
        ("reward.py:short", 1, "InvalidError: it returned 1 rewards for"),
        ("reward.py:slow", 1, "took over --reward-seconds"),
        ("reward.py:far", 1, "reward.py has no function far; it has near, raises, short, slow"),
        ("none.py:far", 1, "there is no file none.py"),
    ],
)
def test_a_reward_that_fails_is_an_error_with_its_row(train, tmp_path, reward, status, text):
    given = train(
        [PROMPT, PROMPT | {"goal": 41}], "--loss", "grpo", "--reward", reward, "--batch-size", 2,
        "--num-generations", 2, "--max-tokens", 4, "--reward-seconds", 2,
    )  # fmt: skip
    assert given[0] == status
    assert f"cli: --reward {reward}" in given[2]
    assert text in given[2].splitlines()[-1]


def test_a_reward_of_the_package_is_named_alone(train, tmp_path):
    row = {"question": "What is 2 plus 3?", "answer": "2 + 3 = 5\n#### 5"}
    status, _, err = train(
        [row], "--loss", "grpo", "--reward", "GSM8KAccuracyReward", "--preprocessor",
        "GSM8KProcessor", "--epochs", 1, "--num-generations", 2, "--max-tokens", 4,
    )  # fmt: skip
    assert status == 0, err
    assert log_of(tmp_path / "outputs/rows-1")[0]["reward"] == 0


def test_the_reporter_draws_a_log_by_itself(tmp_path):
    lines = [{"step": step, "loss": 3.0 / step} for step in range(1, 20)]
    lines.append({"step": 19, "validation_loss": 1.0})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    command = [sys.executable, "-m", "twinkle.report", str(tmp_path)]
    subprocess.run(command, input=text, text=True, check=True, timeout=120)
    assert [path.name for path in Path(tmp_path).iterdir()] == ["loss.png"]
