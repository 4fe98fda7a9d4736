"""Results as routes give them: records of runs and checkpoints, and values with `result`."""

import dataclasses
import json
from dataclasses import dataclass
from datetime import datetime

from twinkle.errors import InternalError


class Record:
    """A record of a server's answer; fields that a newer server adds are left out."""

    @classmethod
    def of(cls, fields):
        """The record of an answer's JSON. InternalError: a field is missing, or it is no object."""
        known = {f.name for f in dataclasses.fields(cls)}
        try:
            return cls(**{name: value for name, value in fields.items() if name in known})
        except (TypeError, ValueError, AttributeError) as error:
            raise InternalError(f"client: the server's {cls.__name__} is none: {error}") from None

    def model_dump(self):
        """{field: value}."""
        return dataclasses.asdict(self)

    def model_dump_json(self, indent=None):
        """The same as JSON's text; times as ISO 8601 has them."""
        return json.dumps(
            self.model_dump(), indent=indent, ensure_ascii=False, default=datetime.isoformat
        )

    def _read_time(self, name):
        if isinstance(value := getattr(self, name), str):
            setattr(self, name, datetime.fromisoformat(value))


@dataclass
class TrainingRun(Record):
    """A run: one adapter, or one training of all weights."""

    training_run_id: str
    base_model: str
    model_owner: str = ""
    save_dir: str | None = None
    is_lora: bool = False
    corrupted: bool = False
    lora_rank: int | None = None
    last_request_time: datetime | None = None
    last_checkpoint: dict | None = None
    last_sampler_checkpoint: dict | None = None
    user_metadata: dict | None = None

    def __post_init__(self):
        self._read_time("last_request_time")


@dataclass
class Checkpoint(Record):
    """A checkpoint of a run; checkpoint_id is 'weights/NAME' or 'sampler_weights/NAME'."""

    checkpoint_id: str
    checkpoint_type: str
    time: datetime
    size_bytes: int
    twinkle_path: str
    public: bool = False
    base_model: str | None = None
    is_lora: bool = False
    lora_rank: int | None = None
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None
    user_metadata: dict | None = None

    def __post_init__(self):
        self._read_time("time")


@dataclass
class Cursor(Record):
    """The place of a page in a list."""

    limit: int
    offset: int
    total_count: int


@dataclass
class CapacityInfo(Record):
    """Adapters that a server takes at a time, and how many it has."""

    max_loras: int
    used_loras: int
    free_loras: int


@dataclass
class SupportedModel(Record):
    """A name that is served."""

    model_name: str


@dataclass
class ServerCapabilities(Record):
    """The models of a server."""

    supported_models: list

    def __post_init__(self):
        self.supported_models = [SupportedModel.of(each) for each in self.supported_models]


@dataclass
class CheckpointPath(Record):
    """The paths of a checkpoint."""

    path: str
    twinkle_path: str
    training_run_id: str
    checkpoint_type: str
    checkpoint_id: str


@dataclass
class DeletedCheckpoint(Record):
    """The answer of a delete."""

    success: bool
    message: str


@dataclass
class WeightsInfo(Record):
    """Saved weights: whose, and of which base model."""

    training_run_id: str
    base_model: str
    model_owner: str = ""
    is_lora: bool = False
    lora_rank: int | None = None


class Result:
    """A value that scripts for ModelScope's client read as `.result`, others as it is."""

    @property
    def result(self):
        """The value itself."""
        return self

    def model_dump(self):
        """{'result': the value}."""
        return {"result": self}


class Outputs(Result, dict):
    """The dict of a forward, of metrics or of weights."""


class Number(Result, float):
    """A loss, or a norm."""


class Text(Result, str):
    """A text."""


class Saved(str):
    """The twinkle:// path of what save wrote, which load, sample and upload_to_hub take."""

    @property
    def twinkle_path(self):
        """The path as a plain text."""
        return str.__str__(self)

    checkpoint_dir = twinkle_path  # a server's own folders are not the client's business

    def model_dump(self):
        """{'twinkle_path': ..., 'checkpoint_dir': ...}."""
        return {"twinkle_path": str(self), "checkpoint_dir": str(self)}
