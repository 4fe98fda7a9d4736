"""Every public constructor and method of models and samplers, with arguments of wrong types and
values: each is refused by an error of twinkle, and nothing has changed by it."""

import pytest
from refusals.values import COUNTS, NONE, NUMBERS, POSITIVE, SIZES
from refusals.wrong import FEATURE, World, expect_refusals

import twinkle
from twinkle import data_format
from twinkle.loss import CrossEntropyLoss
from twinkle.metric import LossMetric
from twinkle.model import MultiLoraTransformersModel, TransformersModel
from twinkle.processor import InputProcessor
from twinkle.sampler import TorchSampler

pytestmark = pytest.mark.usefixtures("engine_built", "data_built")


@pytest.fixture(scope="module")
def world(tiny_llama_dir, tmp_path_factory):
    return World(tiny_llama_dir, tmp_path_factory.mktemp("saved"))


def model_feature(name):
    return lambda w, v: w.model.forward_backward(inputs=[{**FEATURE, name: v}])


# Calls with a value in one place: {name: (call, names of the values that are right there)}.
CALLS = {
    # model
    "TransformersModel(model_id)": (lambda w, v: TransformersModel(model_id=v), set()),
    "TransformersModel(mixed_precision)": (
        lambda w, v: TransformersModel(model_id=w.directory, mixed_precision=v), set()),
    "TransformersModel(strategy)": (
        lambda w, v: TransformersModel(model_id=w.directory, strategy=v), set()),
    "TransformersModel(config)": (
        lambda w, v: TransformersModel(model_id=w.directory, config=v), NONE),
    "TransformersModel(model_cls)": (
        lambda w, v: TransformersModel(model_cls=v, model_id=w.directory), NONE),
    "TransformersModel(torch_dtype)": (
        lambda w, v: TransformersModel(model_id=w.directory, torch_dtype=v), NONE),
    "TransformersModel(device_mesh)": (
        lambda w, v: TransformersModel(model_id=w.directory, device_mesh=v), NONE),
    "TransformersModel(tokenizer_id)": (
        lambda w, v: TransformersModel(model_id=w.directory, tokenizer_id=v), NONE | {"text"}),
    "MultiLora(max_loras)": (
        lambda w, v: MultiLoraTransformersModel(model_id=w.directory, max_loras=v), SIZES),
    "MultiLora(max_r)": (
        lambda w, v: MultiLoraTransformersModel(model_id=w.directory, max_r=v), SIZES),
    "TransformersModel(grad_scaler_config)": (
        lambda w, v: TransformersModel(model_id=w.directory, grad_scaler_config={"a": v}), set()),
    "set_grad_scaler": (lambda w, v: w.model.set_grad_scaler(init_scale=v), set()),
    "reload_initial_weights": (
        lambda w, v: w.model.reload_initial_weights(adapter_name=v), NONE),
    "get_peft_config_dict": (
        lambda w, v: w.model.get_peft_config_dict(adapter_name=v), NONE),
    "set_lr_scheduler(one of torch)": (  # to which a bool is an integer
        lambda w, v: w.model.set_lr_scheduler("CosineAnnealingWarmRestarts", T_0=v),
        SIZES | {"True"}),
    "add_adapter(adapter_name)": (
        lambda w, v: w.model.add_adapter_to_model(v, twinkle.LoraConfig(r=1)), {"text"}),
    "add_adapter(config)": (lambda w, v: w.model.add_adapter_to_model("new", v), {"dict"}),
    "add_adapter(steps)": (
        lambda w, v: w.model.add_adapter_to_model(
            "new", twinkle.LoraConfig(r=1), gradient_accumulation_steps=v), SIZES),
    "remove_adapter": (lambda w, v: w.model.remove_adapter(v), NONE),
    "forward(inputs)": (lambda w, v: w.model.forward(inputs=v), set()),
    "forward(temperature)": (
        lambda w, v: w.model.forward(inputs=[FEATURE], temperature=v), POSITIVE),
    "forward_only(inputs)": (lambda w, v: w.model.forward_only(inputs=v), set()),
    "forward_only(temperature)": (
        lambda w, v: w.model.forward_only(inputs=[FEATURE], temperature=v), POSITIVE),
    "forward_only(disable_lora)": (
        lambda w, v: w.model.forward_only(inputs=[FEATURE], disable_lora=v), {"True"}),
    "forward_only(adapter_name)": (
        lambda w, v: w.model.forward_only(inputs=[FEATURE], adapter_name=v), NONE),
    "forward_backward(inputs)": (lambda w, v: w.model.forward_backward(inputs=v), set()),
    "forward_backward([inputs])": (lambda w, v: w.model.forward_backward(inputs=[v]), set()),
    "forward_backward(temperature)": (
        lambda w, v: w.model.forward_backward(inputs=[FEATURE], temperature=v), POSITIVE),
    "forward_backward(micro_batch_size)": (
        lambda w, v: w.model.forward_backward(inputs=[FEATURE], micro_batch_size=v),
        SIZES | NONE),
    "forward_backward(task)": (
        lambda w, v: w.model.forward_backward(inputs=[FEATURE], task=v), set()),
    "forward_backward(unknown)": (
        lambda w, v: w.model.forward_backward(inputs=[FEATURE], unknown=v), set()),
    "input_ids": (model_feature("input_ids"), set()),
    "labels": (model_feature("labels"), set()),
    "attention_mask": (model_feature("attention_mask"), NONE),
    "position_ids": (model_feature("position_ids"), NONE),
    "loss_scale": (model_feature("loss_scale"), NONE),
    "calculate_loss(adapter_name)": (
        lambda w, v: w.model.calculate_loss(adapter_name=v), NONE),
    "backward(steps)": (
        lambda w, v: w.model.backward(gradient_accumulation_steps=v), set()),
    "clip_grad_norm(max_grad_norm)": (
        lambda w, v: w.model.clip_grad_norm(max_grad_norm=v), NUMBERS | {"inf"}),
    "clip_grad_norm(norm_type)": (
        lambda w, v: w.model.clip_grad_norm(norm_type=v), POSITIVE | {"inf"}),
    "step(optim_params)": (lambda w, v: w.model.step(optim_params=v), NONE | {"dict"}),
    "step(lr)": (lambda w, v: w.model.step(optim_params={"lr": v}), NUMBERS),
    "step(adapter_name)": (lambda w, v: w.model.step(adapter_name=v), NONE),
    "zero_grad(adapter_name)": (lambda w, v: w.model.zero_grad(adapter_name=v), NONE),
    "lr_step(adapter_name)": (lambda w, v: w.model.lr_step(adapter_name=v), NONE),
    "clip_grad_and_step(max_grad_norm)": (
        lambda w, v: w.model.clip_grad_and_step(max_grad_norm=v),
        NUMBERS | NONE | {"inf"}),
    "clip_grad_and_step(norm_type)": (
        lambda w, v: w.model.clip_grad_and_step(norm_type=v), POSITIVE | {"inf"}),
    "clip_grad_and_step(steps)": (
        lambda w, v: w.model.clip_grad_and_step(gradient_accumulation_steps=v), SIZES | NONE),
    "set_loss": (lambda w, v: w.model.set_loss(v), set()),
    "set_loss(reduction)": (
        lambda w, v: w.model.set_loss("CrossEntropyLoss", reduction=v), set()),
    "set_optimizer": (lambda w, v: w.model.set_optimizer(v), set()),
    "set_optimizer(lr)": (lambda w, v: w.model.set_optimizer("AdamW", lr=v), NUMBERS),
    "set_optimizer(betas)": (lambda w, v: w.model.set_optimizer("AdamW", betas=v), set()),
    "set_optimizer(weight_decay)": (
        lambda w, v: w.model.set_optimizer("AdamW", weight_decay=v), NUMBERS),
    "set_optimizer(unknown)": (lambda w, v: w.model.set_optimizer("AdamW", unknown=v), set()),
    "set_lr_scheduler": (lambda w, v: w.model.set_lr_scheduler(v), set()),
    "set_lr_scheduler(num_warmup_steps)": (
        lambda w, v: w.model.set_lr_scheduler(
            "CosineWarmupScheduler", num_warmup_steps=v, num_training_steps=10),
        COUNTS - {"2**70"}),
    "set_template": (lambda w, v: w.model.set_template(v), set()),
    "set_template(max_length)": (
        lambda w, v: w.model.set_template("Template", max_length=v), COUNTS - {"2**70"} | NONE),
    "set_processor": (lambda w, v: w.model.set_processor(v), set()),
    "add_metric": (lambda w, v: w.model.add_metric(v), set()),
    "add_metric(is_training)": (
        lambda w, v: w.model.add_metric("LossMetric", is_training=v), NONE | {"True"}),
    "apply_patch": (lambda w, v: w.model.apply_patch(v), set()),
    "calculate_metric(is_training)": (
        lambda w, v: w.model.calculate_metric(is_training=v), {"True"}),
    "calculate_metric(adapter_name)": (
        lambda w, v: w.model.calculate_metric(adapter_name=v), NONE),
    "get_train_configs(adapter_name)": (
        lambda w, v: w.model.get_train_configs(adapter_name=v), NONE),
    "get_state_dict(adapter_name)": (
        lambda w, v: w.model.get_state_dict(adapter_name=v), NONE),
    "save(name)": (
        lambda w, v: w.model.save(v, output_dir=str(w.folder / "new")), NONE | {"text"}),
    "save(output_dir)": (lambda w, v: w.model.save("y", output_dir=v), {"text"}),
    "save(interval)": (
        lambda w, v: w.model.save("y", output_dir=str(w.folder / "new"), interval=v), SIZES),
    "save(max_shard_size)": (
        lambda w, v: w.model.save("y", output_dir=str(w.folder / "new"), max_shard_size=v), NONE),
    "save(save_optimizer)": (
        lambda w, v: w.model.save("y", output_dir=str(w.folder / "new"), save_optimizer=v),
        {"True"}),
    "save(consumed_train_samples)": (
        lambda w, v: w.model.save(
            "y", output_dir=str(w.folder / "new"), consumed_train_samples=v), {"0", "5"}),
    "load(name)": (lambda w, v: w.model.load(v), set()),
    "load(load_optimizer)": (
        lambda w, v: w.model.load(str(w.folder / "good"), load_optimizer=v), {"True"}),
    "load(output_dir)": (lambda w, v: w.model.load("good", output_dir=v), NONE),
    "resume_from_checkpoint": (lambda w, v: w.model.resume_from_checkpoint(v), set()),
    "resume_from_checkpoint(only)": (
        lambda w, v: w.model.resume_from_checkpoint(
            str(w.folder / "good"), resume_only_model=v), {"True"}),
    "upload_to_hub(checkpoint_dir)": (
        lambda w, v: w.model.upload_to_hub(v, "hf://a/b", async_upload=False), set()),
    "upload_to_hub(hub_model_id)": (
        lambda w, v: w.model.upload_to_hub(str(w.folder), v, async_upload=False), set()),
    # sampler
    "TorchSampler(model_id)": (lambda w, v: TorchSampler(v), set()),
    "TorchSampler(model)": (lambda w, v: TorchSampler(model=v), set()),
    "TorchSampler(engine_args)": (
        lambda w, v: TorchSampler(model=w.model, engine_args=v), NONE | {"dict"}),
    "TorchSampler(max_model_len)": (
        lambda w, v: TorchSampler(model=w.model, engine_args={"max_model_len": v}),
        {"5"} | NONE),
    "TorchSampler(dtype)": (
        lambda w, v: TorchSampler(w.directory, engine_args={"dtype": v}), NONE),
    "TorchSampler(seed)": (
        lambda w, v: TorchSampler(model=w.model, engine_args={"seed": v}),
        {"5", "0"} | NONE),
    "TorchSampler(max_num_seqs)": (
        lambda w, v: TorchSampler(w.directory, engine_args={"max_num_seqs": v}), {"5"} | NONE),
    "TorchSampler(gpu_memory_utilization)": (
        lambda w, v: TorchSampler(w.directory, engine_args={"gpu_memory_utilization": v}), NONE),
    "TorchSampler(enforce_eager)": (
        lambda w, v: TorchSampler(w.directory, engine_args={"enforce_eager": v}),
        {"True"} | NONE),
    "TorchSampler(max_lora_rank)": (
        lambda w, v: TorchSampler(model=w.model, engine_args={"max_lora_rank": v}), {"5"} | NONE),
    "TorchSampler(remote_group)": (
        lambda w, v: TorchSampler(model=w.model, remote_group=v), {"text"} | NONE),
    "TransformersModel(device_map)": (
        lambda w, v: TransformersModel(model_id=w.directory, device_map=v), NONE),
    "TransformersModel(fsdp_config)": (
        lambda w, v: TransformersModel(model_id=w.directory, fsdp_config=v), {"dict"} | NONE),
    "sample(inputs)": (lambda w, v: w.sampler.sample(v, {"max_tokens": 1}), {"list"}),
    "sample([inputs])": (lambda w, v: w.sampler.sample([v], {"max_tokens": 1}), set()),
    "sample(input_ids)": (
        lambda w, v: w.sampler.sample([{"input_ids": v}], {"max_tokens": 1}), set()),
    "sample(sampling_params)": (
        lambda w, v: w.sampler.sample([FEATURE], v), NONE | {"dict"}),
    "sample(adapter_name)": (
        lambda w, v: w.sampler.sample([FEATURE], {"max_tokens": 1}, adapter_name=v),
        NONE | {"empty text"}),
    "sample(adapter_path)": (
        lambda w, v: w.sampler.sample([FEATURE], {"max_tokens": 1}, adapter_path=v), NONE),
    "sample(use_base_model)": (
        lambda w, v: w.sampler.sample([FEATURE], {"max_tokens": 1}, use_base_model=v), {"True"}),
    "sample(return_encoded)": (
        lambda w, v: w.sampler.sample([FEATURE], {"max_tokens": 1}, return_encoded=v), {"True"}),
    "sample_stream(inputs)": (
        lambda w, v: w.sampler.sample_stream(v, {"max_tokens": 1}), set()),
    "sample_stream(sampling_params)": (
        lambda w, v: w.sampler.sample_stream([FEATURE], v), NONE | {"dict"}),
    "sample_stream(adapter_name)": (
        lambda w, v: w.sampler.sample_stream([FEATURE], {"max_tokens": 1}, adapter_name=v),
        NONE | {"empty text"}),
    "sample_stream(adapter_path)": (
        lambda w, v: w.sampler.sample_stream([FEATURE], {"max_tokens": 1}, adapter_path=v), NONE),
    "sample_stream(use_base_model)": (
        lambda w, v: w.sampler.sample_stream([FEATURE], {"max_tokens": 1}, use_base_model=v),
        {"True"}),
    "Sampler.set_template": (lambda w, v: w.sampler.set_template(v), set()),
    "SamplingParams.from_dict": (
        lambda w, v: data_format.SamplingParams.from_dict(v), {"dict"}),
    **{
        f"SamplingParams({name})": (
            lambda w, v, name=name: data_format.SamplingParams(**{name: v}), right)
        for name, right in {
            "max_tokens": COUNTS | NONE, "seed": {"0", "5"} | NONE,
            "stop": NONE | {"text", "empty text", "list"} - {"empty text"},
            "temperature": NUMBERS, "top_k": COUNTS | {"-1"}, "top_p": set(),
            "repetition_penalty": {"5", "1.5"}, "logprobs": COUNTS | NONE,
            "prompt_logprobs": COUNTS | NONE, "num_samples": {"5"},
        }.items()
    },
    # data_format
    **{
        f"LoraConfig({name})": (
            lambda w, v, name=name: twinkle.LoraConfig(**{name: v}), right)
        for name, right in {
            "r": SIZES, "lora_alpha": POSITIVE, "lora_dropout": {"0"},
            "target_modules": NONE | {"text"}, "use_rslora": {"True"},
            "bias": set(), "use_dora": {"True"},
            "init_lora_weights": {"True"}, "layers_to_transform": COUNTS | NONE | {"list"},
            "exclude_modules": NONE | {"text", "empty text", "list"},
            "layers_pattern": NONE | {"empty text", "list"},
        }.items()
    },
    "LoraConfig.from_any": (lambda w, v: twinkle.LoraConfig.from_any(v), {"dict"}),
    # the rest
    "CrossEntropyLoss(reduction)": (lambda w, v: CrossEntropyLoss(reduction=v), set()),
    "CrossEntropyLoss(ignore_index)": (lambda w, v: CrossEntropyLoss(ignore_index=v), set()),
    "CrossEntropyLoss(dft)": (lambda w, v: CrossEntropyLoss(dft=v), {"True"}),
    "LossMetric(unknown)": (lambda w, v: LossMetric(unknown=v), set()),
    "InputProcessor(padding_side)": (lambda w, v: InputProcessor(padding_side=v), set()),
    "InputProcessor(padding_free)": (lambda w, v: InputProcessor(padding_free=v), {"True"}),
    "InputProcessor(framework)": (lambda w, v: InputProcessor(framework=v), set()),
    "_core.Engine": (lambda w, v: twinkle.core.core().Engine(v), set()),
    "_core.Engine(mixed_precision)": (
        lambda w, v: twinkle.core.core().Engine(w.directory, mixed_precision=v), NONE),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused_and_change_nothing(world, name, monkeypatch):
    monkeypatch.chdir(world.folder.parent)
    expect_refusals(world, name, *CALLS[name])
