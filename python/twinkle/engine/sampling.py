"""Sampling parameters as the engine takes them, and what it sampled as SampleResponses."""

from twinkle import checks
from twinkle.data_format import SampledSequence, SampleResponse
from twinkle.data_format.sampling import SampledLogprobs
from twinkle.errors import require

# The limit of a prompt and what follows, by the folder of who asks, for errors.
_LIMITS = {"engine": "the model's positions", "sampler": "max_model_len"}


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
            checks.ids(f"{what}[{i}]", feature["input_ids"]) for i, feature in enumerate(features)
        ]
        self._rooms = [limit - len(tokens) for tokens in self.tokens]
        for i, (p, room) in enumerate(zip(params, self._rooms, strict=True)):
            require(
                room >= (p.max_tokens != 0) and (p.max_tokens or 0) <= room,
                f"{folder}: prompt {i} has {limit - room} tokens and max_tokens is {p.max_tokens}, "
                f"together they must fit {_LIMITS[folder]}, {limit}",
            )
        stops = any(p.stop and p.stop_texts for p in params)
        self._tokenizer = template()._template.directory if stops else ""

    def request(self, tenant, seed_of):
        """The arguments of the engine's sample. seed_of: a function that gives the seed of the
        prompt at an index, where its params have none."""
        each = zip(self.params, self._rooms, strict=True)
        params = [p.for_engine(room, seed_of(i)) for i, (p, room) in enumerate(each)]
        request = {"prompts": self.tokens, "params": params, "tokenizer": self._tokenizer}
        return {"tenant": tenant, **request}

    def responses(self, completions, template, shape):
        """The responses of the engine's completions. template, shape: as response_of takes them."""
        each = zip(self.features, self.tokens, completions, self.params, strict=True)
        return [response_of(*one, template, shape) for one in each]


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
    response = SampleResponse(sequences=[], prompt_token_ids=list(prompt))
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
    sequence.routed_experts, feature = routes, sequence.new_input_feature
    if feature is not None:
        length = len(feature["input_ids"])
        is_left = getattr(template, "truncation_strategy", None) == "left"
        kept = routes[num_tokens - length if is_left else 0 :][:length]
        sequence.new_input_feature = {**feature, "routed_experts": kept}


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
