"""Template, over the C++ one."""

import numpy as np

from twinkle import checks, hub
from twinkle.core import core
from twinkle.errors import NotAvailableError, refuse_unknown
from twinkle.preprocessor.base import map_col_to_row, map_row_to_col
from twinkle.remote.decorate import remote_class
from twinkle.remote.how import of_one
from twinkle.template.tools import ToolCallRegistry
from twinkle.without_effect import WITHOUT_EFFECT


def _no_media(what):
    """The two methods for a kind of media."""

    def each(self, given):
        if core().given_list(what, given):
            raise NotAvailableError(
                f"template: {what} need a multimodal model, which this version does not have: "
                "leave them out of the row"
            )
        return []

    def one(self, given):
        each(self, [given])

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
        self.directory = resolve(self.model_id, weights=False)
        options = {
            "use_chat_template": use_chat_template,
            "max_length": max_length,
            "truncation_strategy": truncation_strategy,
            "default_system": default_system,
            "enable_thinking": enable_thinking,
        }
        self._template = core().Template(self.directory, **options)
        vars(self).update(options)

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
        return self._template.encode(trajectory, add_generation_prompt)

    @of_one
    def batch_encode(self, trajectories, add_generation_prompt=False, **kwargs):
        """encode of a list of rows or a dict of columns, on all cores; a list, without those that
        are deleted. InvalidError: as encode's, with the row's number."""
        refuse_unknown("template: batch_encode", kwargs)
        return self._template.batch_encode(trajectories, add_generation_prompt)

    @of_one
    def check(self, trajectory):
        """The trajectory, or None when it cannot be encoded. InvalidError: it is no dict."""
        return self._template.check(trajectory)

    @of_one
    def batch_check(self, trajectories):
        """check of each: a list of as many, None for those that cannot be encoded. InvalidError: no
        list of dicts."""
        return [self.check(row) for row in core().given_list("trajectories", trajectories)]

    @of_one
    def decode(self, ids, skip_special_tokens=False, **kwargs):
        """The text of token ids; those that the tokenizer lacks give none. InvalidError: an id
        that is no integer from 0 to 2^32 - 1."""
        refuse_unknown("template: decode", kwargs)
        return self._template.decode(ids, skip_special_tokens)

    @of_one
    def batch_decode(self, rows, skip_special_tokens=False, **kwargs):
        """The text of each list of token ids. InvalidError: as decode's."""
        refuse_unknown("template: batch_decode", kwargs)
        return self._template.batch_decode(rows, skip_special_tokens)

    @of_one
    def concat_input_feature(self, feature, new_tokens):
        """The prompt's feature with sampled tokens appended, labelled, and as a message.
        InvalidError: no dict; input_ids, labels or new_tokens that are not one sequence of
        integers, other numbers of labels and input_ids, a new token below 0; more than max_length
        tokens together where truncation_strategy is neither 'left' nor 'right'."""
        return self._template.concat_input_feature(feature, new_tokens)

    @of_one
    def render(self, trajectory, add_generation_prompt=False):
        """The text that encode tokenises. InvalidError: use_chat_template is False, and as encode
        for messages."""
        return self._template.render(trajectory, add_generation_prompt)

    @of_one
    def format_trajectory(self, trajectory, add_default_system=False):
        """A copy with messages in the standard form: contents are text, <think> is taken out into
        reasoning_content, arguments of tool calls are dicts. encode does so by itself, but for
        arguments that are JSON text: those stay text where the chat template writes texts.

        add_default_system: default_system comes first where the row begins with a user message.
        InvalidError: messages that encode refuses, too.
        """
        return self._template.format_trajectory(trajectory, add_default_system)

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
        feature = checks.mapping("template: input_feature", input_feature)
        return np.arange(len(checks.ids("template: input_ids", feature.get("input_ids"))))

    def pre_forward_hook(self, model, args, kwargs):
        """(args, kwargs) of a model's forward, as they are: only media would be embedded here."""
        del model
        return args, kwargs

    preprocess_image, preprocess_images = _no_media("images")
    preprocess_video, preprocess_videos = _no_media("videos")
    preprocess_audio, preprocess_audios = _no_media("audios")


def _reply(value):
    return checks.text("template: decoded", value, none=True, empty=True) or ""


class Qwen3_5Template(Template):  # noqa: N801 (ModelScope's name)
    """The template of the Qwen 3.x families; text goes by the model's own chat template."""


def resolve(model_id, weights=True):
    """The local directory of a model id; weights=False fetches tokenizer and config alone."""
    return str(hub.get(str(model_id), weights=weights))
