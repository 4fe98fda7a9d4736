"""Template, over the C++ one."""

import numpy as np

from twinkle import checks, hub
from twinkle.core import core
from twinkle.errors import InvalidError, NotAvailableError, refuse_unknown
from twinkle.logger import get_logger
from twinkle.preprocessor.base import map_col_to_row, map_row_to_col
from twinkle.remote.decorate import remote_class
from twinkle.remote.how import of_one
from twinkle.template.tools import ToolCallRegistry
from twinkle.without_effect import WITHOUT_EFFECT

_SKIP = "template: skip_special_tokens"


def _no_media(what):
    """The two methods for a kind of media."""

    def one(self, given):
        raise NotAvailableError(
            f"template: {what} need a multimodal model, which this version does not have: leave "
            "them out of the row"
        )

    def each(self, given):
        return [one(self, item) for item in _list(what, given)]

    one.__doc__ = f"NotAvailableError, always: {what} come with multimodal models."
    each.__doc__ = "[] of none, else as of one."
    return one, each


@remote_class(execute="all", listed=False)
class Template:
    """Encodes with the tokenizer and chat template of a model.

    model_id: local directory, ms://, hf:// or bare id; weights are not fetched.
    max_length: tokens of a sample; None or 0: no limit. truncation_strategy, for longer ones:
    'raise', 'left' (keep the tail), 'right' (keep the head), 'split', 'delete'.
    use_chat_template=False: one user message is plain text, all of it trained.
    InvalidError: an unknown argument, a revision, another truncation_strategy, a max_length below
    0, a value of another kind; NotFoundError: no such model, or no tokenizer or chat template in
    it.
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
        refuse_unknown("template: Template", kwargs, WITHOUT_EFFECT["Template"])
        checks.newest("template: revision", kwargs.get("revision"))
        self.model_id = checks.path("template: model_id", model_id)
        checks.integer("template: max_length", max_length, 0, 2**63 - 1, none=True)
        checks.text("template: truncation_strategy", truncation_strategy)
        checks.text("template: default_system", default_system, none=True, empty=True)
        checks.flag("template: use_chat_template", use_chat_template)
        checks.flag("template: enable_thinking", enable_thinking)
        self.use_chat_template = use_chat_template
        self.default_system = default_system
        self.enable_thinking = enable_thinking
        self.max_length = max_length
        self.truncation_strategy = truncation_strategy
        self.directory = resolve(self.model_id, weights=False)
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
        """The model's tokenizer, of the C++ core."""
        return self._template.tokenizer

    @property
    def is_mm(self):
        """False: images, videos and audios cannot be encoded yet."""
        return False

    map_col_to_row = staticmethod(map_col_to_row)
    map_row_to_col = staticmethod(map_row_to_col)

    @of_one
    def encode(self, trajectory, add_generation_prompt=False, **kwargs):
        """The trajectory with input_ids, labels (already shifted), attention_mask, position_ids
        ([length] integers each) and length; None when it is too long and truncation_strategy is
        'delete'. InvalidError: a row without messages, a message of another form or role, one that
        the chat template refuses, more than max_length tokens where the strategy is 'raise'."""
        refuse_unknown("template: encode", kwargs)
        row, generation = _row(trajectory), _generation(add_generation_prompt)
        return self._template.encode(_read([row], generation)[0], generation)

    @of_one
    def batch_encode(self, trajectories, add_generation_prompt=False, **kwargs):
        """encode of a list of rows or a dict of columns, on all cores; a list, without those that
        are deleted. InvalidError: as encode's, with the row's number."""
        refuse_unknown("template: batch_encode", kwargs)
        rows, generation = _rows(trajectories), _generation(add_generation_prompt)
        return self._template.batch_encode(_read(rows, generation), generation)

    @of_one
    def check(self, trajectory):
        """The trajectory, or None when it cannot be encoded. InvalidError: it is no dict."""
        row = _row(trajectory)
        try:
            return self._template.check(row)
        except InvalidError:  # JSON cannot hold it, such as a lone surrogate
            return None

    @of_one
    def batch_check(self, trajectories):
        """check of each: a list of as many, None for those that cannot be encoded. InvalidError: no
        list of dicts."""
        return [self.check(trajectory) for trajectory in _list("trajectories", trajectories)]

    @of_one
    def decode(self, ids, skip_special_tokens=False, **kwargs):
        """The text of token ids; those that the tokenizer lacks give none. InvalidError: an id
        that is no integer from 0 to 2^32 - 1."""
        refuse_unknown("template: decode", kwargs)
        return self._template.decode(
            checks.ids("template: ids", ids), checks.flag(_SKIP, skip_special_tokens)
        )

    @of_one
    def batch_decode(self, rows, skip_special_tokens=False, **kwargs):
        """The text of each list of token ids. InvalidError: as decode's."""
        refuse_unknown("template: batch_decode", kwargs)
        return self._template.batch_decode(
            [checks.ids("template: ids", row) for row in _list("rows", rows)],
            checks.flag(_SKIP, skip_special_tokens),
        )

    @of_one
    def concat_input_feature(self, feature, new_tokens):
        """The prompt's feature with sampled tokens appended, labelled, and as a message.
        InvalidError: no dict; input_ids, labels or new_tokens that are not one sequence of
        integers, other numbers of labels and input_ids, a new token below 0; more than max_length
        tokens together where truncation_strategy is neither 'left' nor 'right'."""
        feature = _row(feature, "feature")
        for name in ("input_ids", "labels"):
            if name in feature or name == "input_ids":
                checks.ids(f"template: {name}", feature.get(name))
        return self._template.concat_input_feature(
            feature, checks.ids("template: new_tokens", new_tokens)
        )

    @of_one
    def render(self, trajectory, add_generation_prompt=False):
        """The text that encode tokenises. InvalidError: use_chat_template is False, and as encode
        for messages."""
        return self._template.render(_row(trajectory), _generation(add_generation_prompt))

    @of_one
    def format_trajectory(self, trajectory, add_default_system=False):
        """A copy with messages in the standard form: contents are text, <think> is taken out into
        reasoning_content, arguments of tool calls are dicts. encode does so by itself, but for
        arguments that are JSON text: those stay text where the chat template writes texts.

        add_default_system: default_system comes first where the row begins with a user message.
        InvalidError: messages that encode refuses, too.
        """
        wanted = checks.flag("template: add_default_system", add_default_system)
        system = wanted and self.use_chat_template and self.default_system
        row = _row(trajectory)
        return {**row, "messages": core().standard_messages(row.get("messages"), system or "")}

    # ---- tool calls in a model's text

    @of_one
    def parse_tool_call(self, decoded):
        """list[ToolCall] of a reply, whose arguments are dicts; [] when it calls nothing.

        The first format of twinkle.template.tools that finds its marks reads the whole text.
        """
        parser = ToolCallRegistry.detect_first(_reply(decoded))
        return parser.parse(decoded) if parser else []

    @of_one
    def clean_tool_call(self, decoded):
        """The reply without its tool calls, and without white space at its end."""
        parser = ToolCallRegistry.detect_first(_reply(decoded))
        return (parser.clean(decoded) if parser else decoded or "").rstrip()

    # ---- what media and other engines need; of text nothing is to be done

    @of_one
    def get_vllm_input_ids(self, input_ids):
        """The prompt's token ids as a sampler takes them: the same, as a list. InvalidError: not
        one sequence of integers."""
        return checks.ids("template: input_ids", input_ids)

    def set_mm_position_ids(self, input_feature):
        """[L] int64 positions of a feature's L tokens: 0, 1, ... InvalidError: no dict, or its
        input_ids are not one sequence of integers."""
        feature = _row(input_feature, "input_feature")
        return np.arange(len(checks.ids("template: input_ids", feature.get("input_ids"))))

    def pre_forward_hook(self, model, args, kwargs):
        """(args, kwargs) of a model's forward, as they are: only media would be embedded here."""
        del model
        return args, kwargs

    preprocess_image, preprocess_images = _no_media("images")
    preprocess_video, preprocess_videos = _no_media("videos")
    preprocess_audio, preprocess_audios = _no_media("audios")


def _row(value, what="trajectory"):
    first = next(iter(value), None) if isinstance(value, (list, tuple)) else None
    if isinstance(first, dict) and "role" in first:
        raise InvalidError(
            f"template: {what} is a list: this is one chat's list of messages: pass "
            '{"messages": [...]}, or of batch_encode [{"messages": [...]}]'
        )
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


def _read(rows, generation):
    """The rows as they are; once in a process a line of the log says as what those of a form are
    read."""
    for row in rows if isinstance(rows, list) and not generation else ():
        if said := core().reading(row):
            get_logger().info_once(f"template: {said}")
    return rows


def _reply(value):
    return checks.text("template: decoded", value, none=True, empty=True) or ""


def _generation(value):
    return checks.flag("template: add_generation_prompt", value)


class Qwen3_5Template(Template):  # noqa: N801 (ModelScope's name)
    """The template of the Qwen 3.x families; text goes by the model's own chat template."""


def resolve(model_id, weights=True):
    """The local directory of a model id; weights=False fetches tokenizer and config alone."""
    return str(hub.get(str(model_id), weights=weights))
