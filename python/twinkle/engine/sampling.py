"""Sampling parameters as the engine takes them, and what it sampled as SampleResponses."""

import numpy as np

from twinkle import checks
from twinkle.data_format import SampledSequence, SampleResponse
from twinkle.data_format.sampling import DEFAULT_MAX_TOKENS, SampledLogprobs
from twinkle.errors import require

# By the folder of who asks, for errors.
_TOO_LONG = {
    "engine": "engine: max_tokens of prompt {index} is {wanted}, the model's positions leave room "
    "for {room}",
    "sampler": "sampler: prompt {index} has {length} tokens and max_tokens is {wanted}, together "
    "they must fit max_model_len, {limit}",
}


class Prompts:
    """The prompts of a call as the engine takes them, and what it samples as SampleResponses.

    what: of the features, 'engine: prompts', for errors. params: SamplingParams of each. limit:
    tokens of a prompt and what follows. template: a function that gives that of stop strings.
    InvalidError: a prompt is not one sequence of ids; it does not fit, or max_tokens behind it.
    """

    def __init__(self, what, features, params, limit, template):
        self.features, self.params = features, params
        folder, _, name = what.partition(": ")
        what = f"{folder}: input_ids of {name}"
        self.tokens = [
            np.asarray(checks.ids(f"{what}[{i}]", feature["input_ids"]), np.int64)
            for i, feature in enumerate(features)
        ]
        self._rooms = [limit - len(tokens) for tokens in self.tokens]
        for i, (p, room) in enumerate(zip(params, self._rooms, strict=True)):
            most = {"wanted": p.max_tokens, "room": room, "limit": limit}
            require(
                room >= (p.max_tokens != 0) and (p.max_tokens is None or p.max_tokens <= room),
                _TOO_LONG[folder].format(index=i, length=limit - room, **most),
            )
        stops = any(p.stop_texts for p in params)
        self._tokenizer = template()._template.directory if stops else ""

    def request(self, tenant, seed_of):
        """The arguments of the engine's sample. seed_of: a function that gives the seed of the
        prompt at an index, where its params have none."""
        each = zip(self.params, self._rooms, strict=True)
        params = [_engine_params(p, room, seed_of(i)) for i, (p, room) in enumerate(each)]
        request = {"prompts": self.tokens, "params": params, "tokenizer": self._tokenizer}
        return {"tenant": tenant, **request}

    def responses(self, completions, template, shape):
        """The responses of the engine's completions. template, shape: as response_of takes them."""
        each = zip(self.features, self.tokens, completions, self.params, strict=True)
        return [response_of(*one, template, shape) for one in each]


_SAME = ("num_samples", "temperature", "top_p", "min_p", "repetition_penalty")


def _engine_params(params, room, seed):
    """The engine's parameters for one prompt. room: tokens that fit after it; seed: the default."""
    most = params.max_tokens
    routes = {"routed_experts": True} if params.routed_experts else {}
    return {
        "max_tokens": min(room, DEFAULT_MAX_TOKENS) if most is None else most,
        "seed": seed if params.seed is None else params.seed,
        "stop": params.stop_texts,
        "stop_token_ids": params.stop_token_ids,
        "top_k": params.top_k or -1,
        **{name: getattr(params, name) for name in _SAME},
        **routes,
        **params.engine_logprobs,
    }


def routes_shape(engine, asked):
    """The shape of an array of where tokens went; None unless asked. Results hold this, and
    not the engine, which ends before they do."""
    if not asked:
        return None
    info = engine.model_info()
    return -1, info["num_routed_layers"], info["num_experts_per_tok"]


def response_of(feature, prompt, samples, params, template, shape=None):
    """A prompt's SampleResponse of the engine's samples; `template` (or None) decodes them. shape:
    routes_shape."""
    response = SampleResponse(sequences=[], prompt_token_ids=prompt.tolist())
    if params.max_tokens != 0:
        plain = {name: value for name, value in feature.items() if name != "routed_experts"}
        response.sequences = [_sequence(plain, item, params, template) for item in samples]
        if params.routed_experts:
            for sequence, item in zip(response.sequences, samples, strict=True):
                routes = item["routed_experts"].reshape(shape)
                _add_routes(sequence, routes, len(prompt) + len(item["tokens"]), template)
    if params.prompt_logprobs is not None:
        response.prompt_logprobs = [None, *samples[0]["prompt_logprobs"]]
    if (params.prompt_logprobs or 0) > 1:
        response.topk_prompt_logprobs = [None, *samples[0]["top_prompt_logprobs"]]
    return response


def _add_routes(sequence, routes, num_tokens, template):
    """routes: of all num_tokens but the last. A template may have cut the feature to max_length."""
    sequence.routed_experts = routes
    if sequence.new_input_feature is None:
        return
    length = len(sequence.new_input_feature["input_ids"])
    if length < num_tokens and getattr(template, "truncation_strategy", None) == "left":
        routes = routes[num_tokens - length :]
    sequence.new_input_feature = {
        **sequence.new_input_feature, "routed_experts": routes[:length],
    }  # fmt: skip


def _sequence(feature, item, params, template):
    tokens = item["tokens"]
    logprobs, temperature = None, float(params.temperature) or 1.0
    if params.logprobs is not None:
        own = list(zip(tokens, item["logprobs"], strict=True))
        logprobs = [[pair] for pair in own]
        if params.logprobs > 1:
            logprobs = [
                top if any(token == pair[0] for token, _ in top) else [*top, pair]
                for top, pair in zip(item["top_logprobs"], own, strict=True)
            ]
        logprobs = SampledLogprobs(logprobs)
        logprobs.temperature = temperature
    sequence = SampledSequence(item["stop_reason"], tokens, logprobs, temperature=temperature)
    if template is not None:
        sequence.decoded = template.decode(tokens, skip_special_tokens=True)
        sequence.new_input_feature = template.concat_input_feature(feature, tokens)
    return sequence
