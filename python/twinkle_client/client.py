"""TwinkleClient: a session of a server, and what there is of runs and checkpoints."""

import atexit
import threading

from twinkle import checks
from twinkle.errors import InvalidError, NotFoundError, TwinkleError, refuse_unknown
from twinkle.logger import get_logger
from twinkle_client import records
from twinkle_client.connection import Connection, path_of

_current = None  # the client that was initialised last, which models and samplers take


def init_twinkle_client(base_url=None, api_key=None, session_heartbeat_interval=10, **kwargs):
    """A TwinkleClient, which models and samplers of `twinkle_client` use from now on. Errors: those
    of the class."""
    global _current  # noqa: PLW0603 (scripts pass no client to the classes that they make)
    refuse_unknown("client: init_twinkle_client", kwargs, ("session_metadata",))
    client = TwinkleClient(base_url, api_key, session_heartbeat_interval, **kwargs)
    _current = client
    return client


def current_client(client=None):
    """The client that is given, or the last one of init_twinkle_client. InvalidError: there is
    none, or it is closed."""
    client = client or _current
    if client is None or client.is_closed:
        raise InvalidError("client: there is no open client: call init_twinkle_client(base_url)")
    return client


class TwinkleClient:
    """A session of the server at base_url, with api_key.

    base_url, api_key: by default the variables TWINKLE_SERVER_URL and TWINKLE_SERVER_TOKEN, or
    http://127.0.0.1:8000 and EMPTY_TOKEN. session_heartbeat_interval: seconds between the signs of
    life that keep the session's adapters on the server. session_metadata: a dict for the server.
    The session ends with close(), or with this process. Every method raises NoServerError where
    nothing answers, InvalidError for a wrong key or argument, NotFoundError for a run or a
    checkpoint that is not there, or is another's.
    """

    def __init__(
        self, base_url=None, api_key=None, session_heartbeat_interval=10, session_metadata=None
    ):
        what = "client: session_heartbeat_interval"
        self._pause = checks.number(what, session_heartbeat_interval, above=0)
        if session_metadata is not None:
            checks.mapping("client: session_metadata", session_metadata)
        self.connection = Connection(base_url, api_key)
        self.base_url, self.api_key = self.connection.base_url, self.connection.api_key
        self._ended = threading.Event()
        self.connection.session_id = self.create_session(session_metadata)
        beat = threading.Thread(target=self._beat, daemon=True, name="TwinkleSessionHeartbeat")
        beat.start()
        atexit.register(self.close)

    def create_session(self, metadata=None):
        """A new session's id, which nothing here uses."""
        made = self.connection.send("POST", "/twinkle/create_session", {"metadata": metadata},
                                    patience=0)  # fmt: skip
        return made["session_id"]

    def _beat(self):
        session = {"session_id": self.session_id}
        while not self._ended.wait(self._pause):
            try:
                self.connection.send("POST", "/twinkle/session_heartbeat", session, patience=0)
            except NotFoundError as error:
                get_logger().warning(f"{error}: the session has ended, make a new client")
                return
            except TwinkleError as error:
                get_logger().warning_once(f"{error}", hash_id=f"client: beat {self.session_id}")

    @property
    def session_id(self):
        """The session's id."""
        return self.connection.session_id

    @property
    def is_closed(self):
        """True: close() was called."""
        return self._ended.is_set()

    def close(self):
        """Ends the heartbeats; the server lets the session's adapters go when it misses them."""
        self._ended.set()
        atexit.unregister(self.close)

    # ---- the server

    def health_check(self):
        """True: the server answers, and is well."""
        try:
            self.connection.send("GET", "/twinkle/healthz", patience=0)
        except TwinkleError:
            return False
        return True

    def get_server_capabilities(self):
        """supported_models: a list of records with model_name."""
        got = self.connection.get("/twinkle/get_server_capabilities")
        return records.ServerCapabilities.of(got)

    def get_capacity_info(self):
        """max_loras, used_loras and free_loras."""
        return records.CapacityInfo.of(self.connection.get("/twinkle/capacity_info"))

    # ---- runs

    def list_training_runs(self, limit=20, offset=0, all_users=False):
        """A list of TrainingRun, those that were used last first."""
        return self.list_training_runs_with_cursor(limit, offset, all_users)[0]

    def list_training_runs_with_cursor(self, limit=20, offset=0, all_users=False):
        """(list of TrainingRun, Cursor). all_users: the runs of all keys, where this one may."""
        limit = checks.integer("client: limit", limit, least=1)
        offset = checks.integer("client: offset", offset, least=0)
        every = "true" if checks.flag("client: all_users", all_users) else None
        got = self.connection.get(
            "/twinkle/training_runs", limit=limit, offset=offset, all_users=every
        )
        runs = [records.TrainingRun.of(each) for each in got["training_runs"]]
        return runs, records.Cursor.of(got["cursor"])

    def get_training_run(self, run_id):
        """The TrainingRun of an id."""
        return records.TrainingRun.of(self.connection.get(_run(run_id)))

    def find_training_run_by_model(self, base_model):
        """The runs, a list, of a base model's name; of the 100 that were used last."""
        return [run for run in self.list_training_runs(limit=100) if run.base_model == base_model]

    # ---- checkpoints

    def list_checkpoints(self, run_id):
        """The Checkpoints of a run, a list, the oldest first."""
        got = self.connection.get(_run(run_id) + "/checkpoints")
        return [records.Checkpoint.of(each) for each in got["checkpoints"]]

    def get_checkpoint_path(self, run_id, checkpoint_id):
        """path, which load takes, twinkle_path, and the parts of it."""
        place = f"{path_of(run_id)}/{path_of(checkpoint_id)}"
        got = self.connection.get("/twinkle/checkpoint_path/" + place)
        kind = checkpoint_id.partition("/")[0] if "/" in checkpoint_id else ""
        names = {"training_run_id": run_id, "checkpoint_type": kind, "checkpoint_id": checkpoint_id}
        return records.CheckpointPath.of(got | names)

    def get_checkpoint_twinkle_path(self, run_id, checkpoint_id):
        """The twinkle:// path of a checkpoint."""
        return self.get_checkpoint_path(run_id, checkpoint_id).twinkle_path

    def get_latest_checkpoint_path(self, run_id):
        """The path of a run's newest checkpoint, which load takes; None: it has none."""
        found = self.list_checkpoints(run_id)
        return self.get_checkpoint_path(run_id, found[-1].checkpoint_id).path if found else None

    def delete_checkpoint(self, run_id, checkpoint_id):
        """Deletes it: success and message."""
        path = f"{_run(run_id)}/checkpoints/{path_of(checkpoint_id)}"
        return records.DeletedCheckpoint.of(self.connection.in_turn("DELETE", path, None, ""))

    def get_weights_info(self, twinkle_path):
        """training_run_id, base_model, model_owner, is_lora and lora_rank of a path."""
        path = {"twinkle_path": checks.text("client: twinkle_path", twinkle_path)}
        return records.WeightsInfo.of(self.connection.post("/twinkle/weights_info", path))


def _run(run_id):
    return f"/twinkle/training_runs/{path_of(run_id)}"
