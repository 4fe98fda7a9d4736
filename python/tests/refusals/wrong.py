"""A world in which values of wrong types and sizes are tried, and what must not change."""

from refusals.values import refuses

import twinkle
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler
from twinkle.template import Template

IDS = [5, 6, 7, 8]
FEATURE = {"input_ids": IDS, "labels": [6, 7, 8, -100]}
TALK = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


class World:
    """The objects that calls need; `state` is all that must not change."""

    def __init__(self, directory, folder):
        self.directory, self.folder = str(directory), folder
        self.model = TransformersModel(model_id=self.directory, mixed_precision="no")
        self.model.add_adapter_to_model("default", twinkle.LoraConfig(r=2))
        self.model.set_optimizer("AdamW", lr=0.01)
        self.model.forward_backward(inputs=[FEATURE])
        self.model.clip_grad_and_step()
        self.model.forward_backward(inputs=[FEATURE])
        self.model.save("good", output_dir=str(folder), save_optimizer=True)
        self.template = Template(self.directory)
        self.sampler = TorchSampler(model=self.model)
        self.sampler.set_template("Template")
        self.model.set_template("Template")
        self.dataset = Dataset(DatasetMeta(data=[{"a": 1, **TALK}, {"a": 2, **TALK}]))
        self.dataset.set_template(self.template)
        self.loader = DataLoader(self.dataset, batch_size=1)

    def state(self):
        group = self.model._group()
        inspected = self.model.engine.inspect(tenant=group.tenant).result()
        files = {f: f.read_bytes() for f in sorted(self.folder.rglob("*")) if f.is_file()}
        settings = {k: v for k, v in vars(group).items() if k not in ("train", "eval", "mode")}
        return (
            repr(inspected), files, repr(settings), self.model.get_train_configs(),
            list(self.dataset), len(self.loader), self.loader.get_state(),
            repr(self.sampler.template), repr(self.dataset.template),
            [type(m).__name__ for m in group.train.metrics + group.eval.metrics],
        )  # fmt: skip


def expect_refusals(world, name, call, right):
    """Every value that is not named in `right` is refused, and nothing has changed by it."""
    before = world.state()
    refuses(name, lambda value: call(world, value), right)
    assert world.state() == before
