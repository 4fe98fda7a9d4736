"""How to sample, and what was sampled."""

from dataclasses import InitVar, dataclass
from typing import Any

from twinkle import checks
from twinkle.core import core
from twinkle.errors import names_arguments

_MOST_TOKENS = 2**31 - 1


@names_arguments(
    "sampler: SamplingParams",
    n="num_samples",
    num_return_sequences="num_samples",
    num_generations="num_samples",
    max_completion_tokens="max_tokens",
    max_length="max_tokens",
    stop_token_ids="stop",
    stop_sequences="stop",
    stop_strings="stop",
)
@dataclass
class SamplingParams:
    """max_tokens: None means up to 2048 or the model's length; 0 only scores the prompt;
    max_new_tokens is taken for it.

    seed: None draws one from the run's seed. stop: text, list of texts, or list of token ids.
    temperature: 0 is greedy. top_k: -1 or 0 is all. min_p: tokens less probable than this share of
    the likeliest are out; 0 keeps all. logprobs: None; 1 for the chosen token's; k > 1 for those of
    the k likeliest tokens, and the chosen one. prompt_logprobs: the same of the prompt's tokens.
    Both are of the whole distribution at `temperature` (1 where it is 0). routed_experts: of a
    model with routed experts, where tokens go; then the prefix cache does not serve the request.
    InvalidError, of another kind of value too: max_tokens or a token id in stop outside 0 to
    2^31 - 1, a seed outside 0 to 2^64 - 1, temperature neither 0 nor from 1e-30 to 1e30, top_k
    outside -1 to 2^31 - 1, top_p not above 0 or above 1, min_p outside 0 to 1, repetition_penalty
    outside 1e-6 to 1e6, logprobs or prompt_logprobs outside 0 to 128, num_samples outside 1 to
    65536, a text in stop that is empty or has a lone surrogate, max_tokens and max_new_tokens that
    differ.
    """

    max_tokens: int | None = None
    seed: int | None = None
    stop: Any = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    num_samples: int = 1
    min_p: float = 0.0
    max_new_tokens: InitVar[int | None] = None  # transformers' name of max_tokens
    routed_experts: bool = False

    def __post_init__(self, max_new_tokens):
        given = {**vars(self), "max_new_tokens": max_new_tokens}
        for name in ("max_tokens", "max_new_tokens"):
            if given[name] is None:  # here that is as if it were not there
                del given[name]
        vars(self).update(core().sampling_params(given))

    def for_engine(self, room=_MOST_TOKENS, seed=0):
        """The compiled engine's parameters, by name. room: tokens that fit behind the prompt. seed:
        where the parameters have none. InvalidError: as the class, of what was set since."""
        return core().engine_params(vars(self), room, seed)

    @property
    def engine_logprobs(self):
        """The log-probabilities that the engine is asked for."""
        return {n: value for n, value in self.for_engine().items() if n.endswith("logprobs")}

    @property
    def stop_texts(self):
        """The texts of `stop`, as a list."""
        return self.for_engine()["stop"]

    @property
    def stop_token_ids(self):
        """The token ids of `stop`, as a list."""
        return self.for_engine()["stop_token_ids"]

    @classmethod
    def from_dict(cls, values):
        """From a dict; `max_new_tokens` is taken for `max_tokens`. InvalidError: no dict, an
        unknown name, a value that the class refuses, two that differ for those two names."""
        values = dict(checks.mapping("sampler: sampling parameters", values))
        made = cls(**values)
        core().sampling_params(values)  # max_tokens: None next to max_new_tokens: 5 differs, too
        return made

    def to_transformers(self, tokenizer=None):
        """Keyword arguments of transformers' generate()."""
        out = {
            "max_new_tokens": self.for_engine()["max_tokens"],
            "do_sample": self.temperature > 0,
            "repetition_penalty": self.repetition_penalty,
            "num_return_sequences": self.num_samples,
        }
        if self.temperature > 0:
            out.update(temperature=self.temperature, top_p=self.top_p, top_k=max(self.top_k, 0))
            out["min_p"] = self.min_p or None
        if self.stop_texts:
            out.update(stop_strings=self.stop_texts, tokenizer=tokenizer)
        if self.stop_token_ids:
            eos = getattr(tokenizer, "eos_token_id", None)
            out["eos_token_id"] = self.stop_token_ids + ([] if eos is None else [eos])
        if self.logprobs is not None:
            out.update(output_scores=True, return_dict_in_generate=True)
        return out

    def to_vllm(self, **kwargs):
        """Keyword arguments of vllm.SamplingParams, overridden by `kwargs`."""
        out = {**vars(self), "n": self.num_samples}
        for name in ("stop", "num_samples", "routed_experts"):
            del out[name]
        stops = {"stop": self.stop_texts, "stop_token_ids": self.stop_token_ids}
        return out | {name: each for name, each in stops.items() if each} | kwargs


class SampledLogprobs(list):
    """A list that carries the temperature by which the logits of its log-probabilities were
    divided. Slices and copies of it are plain lists, without one."""

    temperature = None


@dataclass
class SampledSequence:
    """stop_reason: 'stop', 'length', 'abort', 'error'. logprobs: per token [(token id, log p)]: the
    token's own, or, with logprobs > 1, the likeliest first and the token's own last where it is not
    among them; a SampledLogprobs, so that training at another temperature refuses it as old_logps.
    temperature: of the sampling parameters, or 1 where that is 0. routed_experts, on request: an
    int32 array [tokens, layers with experts, num_experts_per_tok] of the prompt's tokens and the
    sampled ones, but the last of these, which passes no layer; new_input_feature has it, too, and
    training with that sends tokens there."""

    stop_reason: str
    tokens: list
    logprobs: list | None = None
    decoded: str | None = None
    new_input_feature: dict | None = None  # prompt and completion, ready to be trained on
    routed_experts: Any = None
    temperature: float | None = None  # that logprobs belong to


@dataclass
class SampleResponse:
    """The samples of one prompt. prompt_logprobs: per prompt token, None for the first;
    topk_prompt_logprobs: the same of the likeliest tokens, [(token id, log p)], likeliest first."""

    sequences: list
    prompt_token_ids: list | None = None
    prompt_logprobs: list | None = None
    topk_prompt_logprobs: list | None = None
