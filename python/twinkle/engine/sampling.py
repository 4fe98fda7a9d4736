"""Sampling parameters as the engine takes them, and what it sampled as SampleResponses."""

from twinkle.data_format import SampledSequence, SampleResponse
from twinkle.data_format.sampling import DEFAULT_MAX_TOKENS, SampledLogprobs


def engine_params(params, room, seed):
    """The engine's parameters for one prompt. room: tokens that fit after it; seed: the default."""
    return {
        "max_tokens": min(room, DEFAULT_MAX_TOKENS)
        if params.max_tokens is None
        else params.max_tokens,
        "seed": seed if params.seed is None else params.seed,
        "stop": params.stop_texts,
        "stop_token_ids": params.stop_token_ids,
        "temperature": float(params.temperature),
        "top_k": params.top_k or -1,
        "top_p": float(params.top_p),
        "repetition_penalty": float(params.repetition_penalty),
        "num_samples": params.num_samples,
        "ignore_eos": False,
        "min_p": float(params.min_p),
        **({"routed_experts": True} if params.routed_experts else {}),
        **params.engine_logprobs,
    }


def routes_shape(engine, asked):
    """What an array of where tokens went is reshaped to; None unless asked. Results hold this, and
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
