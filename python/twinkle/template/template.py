"""Template, over the C++ one."""

from twinkle import checks
from twinkle.core import core
from twinkle.errors import refuse_unknown

_SKIP = "template: skip_special_tokens"
_INERT = ("trust_remote_code", "revision", "token")


class Template:
    """Encodes with the tokenizer and chat template of a model.

    model_id: local directory, ms://, hf:// or bare id; weights are not fetched.
    max_length: tokens of a sample; None or 0: no limit. truncation_strategy, for longer ones:
    'raise', 'left' (keep the tail), 'right' (keep the head), 'split', 'delete'.
    use_chat_template=False: one user message is plain text, all of it trained.
    """

    def __init__(
        self,
        model_id,
        use_chat_template=True,
        max_length=8192,
        truncation_strategy="raise",
        default_system=None,
        enable_thinking=True,
        **kwargs,
    ):
        refuse_unknown("template: Template", kwargs, _INERT)
        checks.newest("template: revision", kwargs.get("revision"))
        self.model_id = checks.path("template: model_id", model_id)
        checks.integer("template: max_length", max_length, 0, 2**63 - 1, none=True)
        checks.text("template: truncation_strategy", truncation_strategy)
        checks.text("template: default_system", default_system, none=True, empty=True)
        checks.flag("template: use_chat_template", use_chat_template)
        checks.flag("template: enable_thinking", enable_thinking)
        self.max_length = max_length
        self.truncation_strategy = truncation_strategy
        self.directory = resolve(model_id, weights=False)
        self._template = core().Template(
            self.directory,
            use_chat_template=use_chat_template,
            max_length=max_length,
            truncation_strategy=truncation_strategy,
            default_system=default_system,
            enable_thinking=enable_thinking,
        )

    @property
    def tokenizer(self):
        return self._template.tokenizer

    @property
    def is_mm(self):
        """Whether images, videos or audios can be encoded: not yet."""
        return False

    def encode(self, trajectory, add_generation_prompt=False):
        """The trajectory with input_ids, labels (already shifted), attention_mask, position_ids
        and length; None when it is too long and truncation_strategy is 'delete'."""
        return self._template.encode(_row(trajectory), _generation(add_generation_prompt))

    def batch_encode(self, trajectories, add_generation_prompt=False):
        """encode of a list of rows or a dict of columns, on all cores; a list."""
        return self._template.batch_encode(_rows(trajectories), _generation(add_generation_prompt))

    def check(self, trajectory):
        """The trajectory, or None when it cannot be encoded."""
        return self._template.check(_row(trajectory))

    def batch_check(self, trajectories):
        return [self.check(trajectory) for trajectory in _list("trajectories", trajectories)]

    def decode(self, ids, skip_special_tokens=False):
        return self._template.decode(
            checks.ids("template: ids", ids), checks.flag(_SKIP, skip_special_tokens)
        )

    def batch_decode(self, rows, skip_special_tokens=False):
        return self._template.batch_decode(
            [checks.ids("template: ids", row) for row in _list("rows", rows)],
            checks.flag(_SKIP, skip_special_tokens),
        )

    def concat_input_feature(self, feature, new_tokens):
        """The prompt's feature with sampled tokens appended, labelled, and as a message."""
        feature = _row(feature, "feature")
        for name in ("input_ids", "labels"):
            if name in feature or name == "input_ids":
                checks.ids(f"template: {name}", feature.get(name))
        return self._template.concat_input_feature(
            feature, checks.ids("template: new_tokens", new_tokens)
        )

    def render(self, trajectory, add_generation_prompt=False):
        """The text that encode tokenises."""
        return self._template.render(_row(trajectory), _generation(add_generation_prompt))


def _row(value, what="trajectory"):
    return dict(checks.mapping(f"template: {what}", value))


def _list(what, value):
    if not hasattr(value, "__iter__") or isinstance(value, (str, bytes, dict, type)):
        checks.refuse(f"template: {what}", value, "a list")
    return value


def _rows(value):
    """Rows as they are, or a dict of columns, whose columns must be lists."""
    if isinstance(value, dict):
        return {key: list(_list(f"column {key}", column)) for key, column in value.items()}
    return [_row(row) for row in _list("trajectories", value)]


def _generation(value):
    return checks.flag("template: add_generation_prompt", value)


class Qwen3_5Template(Template):  # noqa: N801 (upstream's name)
    """The template of the Qwen 3.x families; text goes by the model's own chat template."""


def resolve(model_id, weights=True):
    """The local directory of a model id; weights=False fetches tokenizer and config alone."""
    from twinkle import hub

    return str(hub.get(str(model_id), weights=weights))
