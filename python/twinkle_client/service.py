"""The half that a model and a sampler of a server have in common."""

from collections.abc import Mapping
from inspect import isclass

from twinkle import checks
from twinkle.errors import InvalidError, NotAvailableError, require
from twinkle_client.client import current_client
from twinkle_client.connection import path_of


class Served:
    """A name that a server serves, asked by the routes of `kind`. InvalidError: there is no client;
    settings, which are the server's. NotFoundError: the server does not serve the name."""

    kind = None

    def __init__(self, model_id, client=None, **settings):
        name = type(self).__name__
        if settings:
            raise InvalidError(
                f"client: {name} takes model_id alone, not {', '.join(sorted(settings))}: the "
                "server was started with its own settings, leave yours out"
            )
        self.client = current_client(client)
        self.model_id = checks.text(f"client: model_id of {name}", model_id).rpartition("://")[2]
        self._path = f"/{self.kind}/{path_of(self.model_id)}/twinkle"
        self.client.connection.post(f"{self._path}/create", {})

    def __repr__(self):
        return f"{type(self).__name__}({self.model_id!r} at {self.client.base_url})"


def name_of(what, given):
    """The name by which a server knows a class: a text, or a class of Twinkle or torch.
    NotAvailableError: another thing, which would have to run on the server."""
    if isclass(given) and given.__module__.partition(".")[0] in ("twinkle", "torch"):
        return given.__name__
    if not isinstance(given, str):
        raise NotAvailableError(
            f"client: {what} is {checks.short(given)}, but a server runs no code of its clients: "
            f"give the name of a class that Twinkle has, and its options beside it"
        )
    return checks.text(f"client: {what}", given)


def rows_of(inputs):
    """A list of the dicts that `inputs` is or has; of sample responses, those of their sequences.
    InvalidError: another thing, or none."""
    rows = []
    for i, each in enumerate(inputs if isinstance(inputs, (list, tuple)) else [inputs]):
        sequences = getattr(each, "sequences", None)
        found = [each] if sequences is None else [s.new_input_feature for s in sequences]
        for row in found:
            if not isinstance(row, Mapping):
                checks.refuse(f"client: inputs[{i}]", row, "an InputFeature or a Trajectory, a "
                              "dict, or a response of sample() with new_input_feature")  # fmt: skip
        rows += found
    require(rows, "client: inputs is empty: give at least one row")
    return rows
