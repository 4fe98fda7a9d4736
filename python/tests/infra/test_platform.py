"""Platform: names and numbers of devices; kernelize and patches, which change nothing on them."""

from types import SimpleNamespace

import pytest

from twinkle import CPU, GPU, MPS, NPU, DeviceMesh, InvalidError, NotAvailableError, Platform
from twinkle.kernel import (
    DEFAULT_KERNEL_CONFIG,
    KernelChoice,
    hub,
    kernelize,
    liger_builtin,
    npu_builtin,
)
from twinkle.patch import NoSplitModulesPatch, Patch, apply_context, apply_patch


@pytest.mark.parametrize(
    ("name", "kind", "prefix", "variable", "backend"),
    [
        ("GPU", GPU, "cuda", "CUDA_VISIBLE_DEVICES", "nccl"),
        ("npu", NPU, "npu", "ASCEND_RT_VISIBLE_DEVICES", "hccl"),
        ("mps", MPS, "mps", None, "gloo"),
        ("cpu", CPU, "cpu", None, "gloo"),
    ],
)
def test_each_kind_has_its_words(monkeypatch, name, kind, prefix, variable, backend):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert Platform.get_platform(name) is Platform.of(name) is kind
    for of in (kind, Platform):
        given = () if of is kind else (name,)
        assert of.device_prefix(*given) == prefix
        assert of.visible_device_env(*given) == variable
        assert of.device_backend(*given) == backend
    numbered = prefix in ("cuda", "npu")
    assert kind.get_local_device() == (f"{prefix}:3" if numbered else prefix)
    assert kind.get_local_device(1) == (f"{prefix}:1" if numbered else prefix)
    with pytest.raises(InvalidError, match="device_type is 'tpu', it must be one of cuda"):
        Platform.device_prefix("tpu")


def test_this_machines_kind_is_what_torch_can_use(monkeypatch):
    import torch

    expected = "cuda" if torch.cuda.is_available() else "cpu"
    kind = Platform.get_platform()
    assert kind.device_prefix() == Platform.device_prefix() == expected
    assert DeviceMesh.from_sizes(dp_size=1, device_type=kind.device_prefix()).world_size == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Platform.get_platform() is GPU
    uuid = SimpleNamespace(uuid="12-34")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: uuid)
    assert GPU.get_vllm_device_uuid(0) == "GPU-12-34"
    with pytest.raises(NotAvailableError, match="devices of kind cpu have no UUID, GPUs have"):
        CPU.get_vllm_device_uuid()


def test_ranks_come_from_the_launcher(monkeypatch):
    for name, value in (("RANK", 5), ("LOCAL_RANK", 1), ("WORLD_SIZE", 6), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    assert (Platform.get_rank(), Platform.get_local_rank(), Platform.get_world_size()) == (5, 1, 6)
    assert Platform.get_local_world_size() == 2
    assert not Platform.is_master() and not Platform.is_local_master() and Platform.is_last_rank()
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert Platform.get_local_world_size() == 6


def test_kernelize_keeps_the_model_and_says_so(logged):
    model = object()
    assert kernelize(model) is model and kernelize(model, DEFAULT_KERNEL_CONFIG) is model
    assert logged == []
    assert npu_builtin(model) == {} == liger_builtin(model)
    assert kernelize(model, {"a.b": KernelChoice("liger", "npu"), dict: KernelChoice()}) is model
    asked = ("npu_builtin", "liger_builtin", "mapping")
    no_effect = "has no effect: the engine has its own kernels"
    assert logged == [f"kernel: {each} {no_effect}" for each in asked]
    with pytest.raises(InvalidError, match="mapping is 3, it must be a dict of classes or paths"):
        kernelize(model, 3)
    with pytest.raises(NotAvailableError, match="'a:B' is a layer of the kernels hub"):
        hub("a:B", revision="x")


def test_a_patch_is_applied_for_good_or_for_a_block():
    module = SimpleNamespace(_no_split_modules=None)
    with apply_context(module, NoSplitModulesPatch({"A"})) as patch:
        assert module._no_split_modules == {"A"} == patch.module_names
    assert module._no_split_modules is None
    with pytest.raises(KeyError), apply_context(module, "NoSplitModulesPatch"):
        assert module._no_split_modules == set()
        raise KeyError
    assert module._no_split_modules is None
    apply_patch(module, NoSplitModulesPatch)
    assert module._no_split_modules == set()
    with pytest.raises(InvalidError, match="no Patch named 'Other'; there are NoSplitModulesPatch"):
        apply_patch(module, "Other")
    with pytest.raises(NotImplementedError, match="Patch must define __call__"):
        apply_patch(module, Patch)
