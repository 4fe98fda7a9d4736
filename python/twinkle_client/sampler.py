"""vLLMSampler: text from a server's model."""

import dataclasses

from twinkle import checks
from twinkle.data_format import SampledSequence, SampleResponse
from twinkle.errors import NotAvailableError, require
from twinkle.infra import current_run
from twinkle.seeding import stable_seed
from twinkle_client.service import Served, name_of, rows_of

__all__ = ["vLLMSampler"]


class vLLMSampler(Served):  # noqa: N801 (ModelScope's name)
    """The sampler of a server, with the verbs of twinkle.sampler.vLLMSampler. model_id, client and
    errors: as MultiLoraTransformersModel's."""

    kind = "sampler"

    def __init__(self, model_id, client=None, **settings):
        super().__init__(model_id, client, **settings)
        self._calls = 0

    def _ask(self, verb, fields):
        return self.client.connection.post(f"{self._path}/{verb}", fields)

    def sample(
        self,
        inputs,
        sampling_params=None,
        adapter_name="",
        adapter_uri=None,
        num_samples=None,
        **named,
    ):
        """One SampleResponse per input, in order.

        inputs: Trajectories or InputFeatures. sampling_params: a dict or SamplingParams; in their
        place their fields may be given by name. num_samples: replies of each input. adapter_uri:
        the path of saved weights; adapter_name: a session's adapter, as it is now; neither: the
        base model. Without a seed each input has its own of the run's seed, as it has there.
        """
        params = _params(sampling_params, named, num_samples)
        rows = rows_of(inputs)
        fields = {"inputs": rows, "sampling_params": params}
        fields["adapter_name"] = checks.text("client: adapter_name", adapter_name or "", empty=True)
        if adapter_uri is not None:
            uri = getattr(adapter_uri, "twinkle_path", adapter_uri)
            fields["adapter_uri"] = checks.text("client: adapter_uri", uri)
        self._calls += 1
        if params.get("seed") is None:
            run, calls = current_run().seed, self._calls
            fields["seeds"] = [stable_seed(run, "sample", calls, i) for i in range(len(rows))]
        return [_response(each) for each in self._ask("sample", fields)["samples"]]

    def set_template(self, template_cls, **kwargs):
        """A template by its name, for inputs that are Trajectories."""
        name = name_of("template_cls", template_cls)
        fields = {"model_id": self.model_id, "adapter_name": ""} | kwargs
        self._ask("set_template", {"template_cls": name, **fields})

    def apply_patch(self, patch_cls, **kwargs):
        """A patch by its name; the server refuses those that it does not have."""
        self._ask("apply_patch", {"patch_cls": name_of("patch_cls", patch_cls), **kwargs})

    def add_adapter_to_sampler(self, *args, **kwargs):
        """Raises NotAvailableError: a sampler shares the adapters of the session's models."""
        raise NotAvailableError(
            "client: a server's sampler has the adapters of your session: sample() them by "
            "adapter_name, or saved ones by adapter_uri"
        )


def _params(given, named, num_samples):
    require(
        given is None or not named,
        f"client: {', '.join(sorted(named))} is given next to sampling_params: put it there",
    )
    if dataclasses.is_dataclass(given):
        given = dataclasses.asdict(given)
    params = dict(checks.mapping("client: sampling_params", named if given is None else given))
    if num_samples is not None:
        count = checks.integer("client: num_samples", num_samples, least=1)
        both = params.setdefault("num_samples", count)
        require(both == count, f"client: num_samples is {count}, sampling_params say {both}")
    return params


_SEQUENCE = {f.name for f in dataclasses.fields(SampledSequence)}


def _response(fields):
    sequences = []
    for each in fields["sequences"]:
        known = {name: value for name, value in each.items() if name in _SEQUENCE}
        sequences.append(SampledSequence(**known | {"tokens": _list(each["tokens"])}))
        if each.get("logprobs") is not None:
            pairs = [[tuple(pair) for pair in token] for token in each["logprobs"]]
            sequences[-1].logprobs = pairs
    response = SampleResponse(sequences)
    for name in ("prompt_token_ids", "prompt_logprobs", "topk_prompt_logprobs"):
        if fields.get(name) is not None:
            setattr(response, name, _list(fields[name]))
    return response


def _list(value):
    return value.tolist() if hasattr(value, "tolist") else list(value)
