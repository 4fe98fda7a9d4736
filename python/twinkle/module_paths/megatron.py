"""The models of Megatron, by name: scripts may import them, and are told when they make one."""

from twinkle.errors import absent

_REMEDY = "Megatron, which this version does not have: use {}, which runs on data ranks"

MegatronModel = absent("model", "MegatronModel", _REMEDY.format("TransformersModel"))
MultiLoraMegatronModel = absent(
    "model", "MultiLoraMegatronModel", _REMEDY.format("MultiLoraTransformersModel")
)
