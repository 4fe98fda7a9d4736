"""The script of test_refusals.py, for the first process of two: MODEL. Tells {case: its error}."""

import json
import os
import sys
from pathlib import Path

import twinkle
from twinkle import DeviceMesh
from twinkle.dataloader import DataLoader
from twinkle.metric import CompletionRewardMetric
from twinkle.model import TransformersModel

model = sys.argv[1]
pair = DeviceMesh.from_sizes(dp_size=2)


def text_of(call, **environment):
    os.environ |= environment
    try:
        call()
        return "taken"
    except twinkle.errors.TwinkleError as error:
        return f"{type(error).__name__}: {error}"


def in_groups(call):
    twinkle.initialize(groups=[twinkle.DeviceGroup("mine", 2, "cpu")])
    call()


def of_sizes(**sizes):
    return text_of(lambda: TransformersModel(model, device_mesh=DeviceMesh.from_sizes(**sizes)))


def of_axes(ranks, names):
    return text_of(lambda: TransformersModel(model, device_mesh=DeviceMesh(ranks, names)))


told = {
    "axes": [
        of_sizes(dp_size=2, tp_size=2),
        of_sizes(pp_size=2),
        of_sizes(cp_size=2),
        of_sizes(dp_size=2, ep_size=2),
        of_sizes(dp_size=2, ulysses_size=2),
        of_sizes(dp_size=2, vpp_size=2),
        of_sizes(dp_size=2, etp_size=2),
        of_sizes(dp_size=2, ep_fsdp_size=2),
        of_axes([0, 1], ("ep",)),
        of_axes([[0, 1]], ("dp", "ep")),
    ],
    "another size": text_of(
        lambda: twinkle.initialize(global_device_mesh=DeviceMesh.from_sizes(dp_size=3))
    ),
    "a smaller one": text_of(
        lambda: twinkle.initialize(global_device_mesh=DeviceMesh.from_sizes(dp_size=1))
    ),
    "below 0": text_of(lambda: DeviceMesh([-1, 0], ("dp",))),
    "twice": text_of(lambda: DeviceMesh([0, 0], ("dp",))),
    "remote_group": text_of(
        lambda: in_groups(lambda: TransformersModel(model, remote_group="other"))
    ),
    "unknown axis": text_of(lambda: DeviceMesh([0, 1], ("rows",))),
    "double axis": text_of(lambda: DeviceMesh([[0, 1]], ("dp", "dp"))),
    "batch_size": text_of(lambda: DataLoader([{}] * 8, batch_size=3, device_mesh=pair)),
    "not in it": text_of(lambda: TransformersModel(model, device_mesh=DeviceMesh([2, 3], ("dp",)))),
    "nothing to shard": text_of(
        lambda: TransformersModel(
            model, device_mesh=pair, fsdp_config={"sharding_strategy": "FULL_SHARD"}
        )
    ),
    "a flag": text_of(
        lambda: TransformersModel(model, device_mesh=pair, ddp_config={"static_graph": "banana"})
    ),
    "both": text_of(
        lambda: TransformersModel(
            model,
            device_mesh=DeviceMesh.from_sizes(fsdp_size=2),
            gathered_bytes=1,
            fsdp_config={"reshard_after_forward": False},
        )
    ),
    "no launcher": text_of(lambda: TransformersModel(model, device_mesh=pair)),
    "metric": text_of(lambda: CompletionRewardMetric(device_mesh=pair).calculate()),
    "timeout": text_of(
        lambda: TransformersModel(model, device_mesh=pair), TWINKLE_DIST_TIMEOUT_SECONDS="0"
    ),
    "npu": text_of(
        lambda: TransformersModel(
            model, device_mesh=DeviceMesh.from_sizes(dp_size=2, device_type="npu")
        ),
        TWINKLE_DEVICE="",
        TWINKLE_DIST_TIMEOUT_SECONDS="9",
    ),
    "rank": text_of(lambda: pair.data_rank, RANK="-1"),
}
Path(os.environ["TOLD"], "0").write_text(json.dumps(told))
