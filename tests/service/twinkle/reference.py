"""A reference of Twinkle's own protocol (docs/twinkle-protocol.md) for tests: the local classes of
this package behind its routes, in threads of this process, one request at a time. It keeps nothing
but files of checkpoints."""

import json
import re
import shutil
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import torch

from twinkle import errors
from twinkle.infra import current_run
from twinkle.model import MultiLoraTransformersModel, TransformersModel
from twinkle.sampler import vLLMSampler
from twinkle.seeding import stable_seed
from twinkle_client import body

STATUS = {
    errors.NotFoundError: 404, errors.ConflictError: 409, errors.BusyError: 503,
    errors.NotAvailableError: 501, errors.InvalidError: 422,
}  # fmt: skip
VOID = ("backward", "step", "zero_grad", "lr_step", "apply_patch")
SETTERS = ("loss", "optimizer", "lr_scheduler", "template", "processor")
FIELD = {f"set_{name}": f"{name}_cls" for name in SETTERS} | {
    "add_metric": "metric_cls", "apply_patch": "patch_cls", "set_lr_scheduler": "scheduler_cls",
}  # fmt: skip


class RefusalError(Exception):
    """An answer that is none of the local classes'."""

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status = status


class Model(MultiLoraTransformersModel):
    """The local class, whose adapters begin with the seeds of their clients."""

    seeds = {}  # noqa: RUF012

    def _new_group(self, adapter_name, config, steps):
        group = super()._new_group(adapter_name, config, steps)
        group.created["seed"] = self.seeds.get(adapter_name, group.created["seed"])
        return group


class Reference:
    """url: where it is. keys: those that it takes; None: any. full: all weights are trained, by one
    run. `does`: verbs that were done, in their order, each with its run."""

    def __init__(self, model, state, names=("tiny",), keys=None, full=False):
        self.names, self.keys, self.state = names, keys, Path(state)
        self.full = full
        self.model = TransformersModel(model) if full else Model(model, max_loras=64)
        self.sampler = vLLMSampler(model=self.model)
        self.lock = threading.RLock()
        self.sessions, self.runs, self.uploads, self.last, self.does = {}, {}, {}, {}, []
        self._numbers = count(1)
        self.http = Http(("127.0.0.1", 0), Handler)
        self.http.reference = self
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def folder(self, path):
        """The folder of a twinkle:// path."""
        return self.state / path.removeprefix("twinkle://")

    # ---- sessions, runs, checkpoints

    def answer(self, method, path, fields, asked):
        """The value of an answer. asked: key, session, number."""
        for verb, pattern, function in ROUTES:
            found = re.fullmatch(pattern, path)
            if verb == method and found:
                with self.lock:
                    return function(self, fields, asked, **found.groupdict())
        raise RefusalError(404, f"there is no {method} {path}")

    def create_session(self, fields, asked):
        session = f"session-{next(self._numbers)}"
        self.sessions[session] = asked.key
        return {"session_id": session}

    def heartbeat(self, fields, asked):
        if self.sessions.get(fields["session_id"]) != asked.key:
            raise RefusalError(404, "Unknown session")
        return {}

    def capacity(self, fields, asked):
        used = len([name for name in self.model.optimizer_group if name])
        most = 0 if self.full else self.model.max_loras
        return {"max_loras": most, "used_loras": used, "free_loras": most - used}

    def own_run(self, asked, run):
        found = self.runs.get(run)
        if found is None or found["model_owner"] != asked.key:
            raise RefusalError(404, f"there is no training run {run!r}")
        return found

    def told_of(self, run):
        return {k: v for k, v in run.items() if k != "checkpoints"} | {
            "last_checkpoint": run["checkpoints"][-1] if run["checkpoints"] else None
        }

    def list_runs(self, fields, asked):
        own = [run for run in self.runs.values() if run["model_owner"] == asked.key]
        own.sort(key=lambda run: run["last_request_time"], reverse=True)
        limit, offset = (int(fields.get(k, v)) for k, v in (("limit", 20), ("offset", 0)))
        cursor = {"limit": limit, "offset": offset, "total_count": len(own)}
        runs = [self.told_of(run) for run in own[offset : offset + limit]]
        return {"training_runs": runs, "cursor": cursor}

    def get_run(self, fields, asked, run):
        return self.told_of(self.own_run(asked, run))

    def list_checkpoints(self, fields, asked, run):
        return {"checkpoints": self.own_run(asked, run)["checkpoints"], "cursor": None}

    def checkpoint(self, asked, run, name):
        for each in self.own_run(asked, run)["checkpoints"]:
            if each["checkpoint_id"] == name:
                return each
        raise RefusalError(404, f"run {run!r} has no checkpoint {name!r}")

    def resolved(self, asked, path):
        found = re.fullmatch(r"twinkle://([^/]+)/((?:sampler_)?weights/[\w-]+)", str(path))
        if not found:
            raise RefusalError(422, f"the path is {path!r}, it must be twinkle://RUN/KIND/NAME")
        self.checkpoint(asked, *found.groups())
        return str(self.folder(path))

    def checkpoint_path(self, fields, asked, run, name):
        path = self.checkpoint(asked, run, name)["twinkle_path"]
        return {"path": path, "twinkle_path": path}

    def delete_checkpoint(self, fields, asked, run, name):
        found = self.checkpoint(asked, run, name)
        self.runs[run]["checkpoints"].remove(found)
        shutil.rmtree(self.folder(found["twinkle_path"]))
        return {"success": True, "message": f"{name} is deleted"}

    def weights_info(self, fields, asked):
        self.resolved(asked, fields["twinkle_path"])
        run = self.runs[fields["twinkle_path"].split("/")[2]]
        names = ("training_run_id", "base_model", "model_owner", "is_lora", "lora_rank")
        return {name: run[name] for name in names}

    # ---- the model

    def verb(self, fields, asked, model, verb):
        self.served(model)
        if verb == "create":
            return {"status": "ok"}
        if verb == "upload_to_hub":
            return self.once(asked, "", lambda: self.upload(fields, asked))
        adapter = fields.pop("adapter_name", None)
        if self.sessions.get(asked.session) != asked.key or not adapter:
            raise RefusalError(422, "adapter_name and X-Twinkle-Session-Id must name a run")
        run = f"{asked.session}-{adapter}"
        return self.once(asked, adapter, lambda: self.do(verb, model, run, adapter, fields, asked))

    def served(self, model):
        if model not in self.names:
            raise RefusalError(404, f"model {model!r} is not served, {', '.join(self.names)} is")

    def once(self, asked, scope, do):
        """The answer of do(); the last one again where the request has its number."""
        place = (asked.session, scope)
        last, answer = self.last.get(place, (0, None))
        if asked.number is None or asked.number > last:
            answer = caught(do)
            self.last[place] = (asked.number or last, answer)
        elif asked.number < last:
            raise RefusalError(409, f"X-Twinkle-Seq is {asked.number}, but {last} came already")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def do(self, verb, model, run, adapter, fields, asked):
        self.does.append((verb, run))
        if verb == "add_adapter_to_model":
            return self.add_adapter(model, run, adapter, fields, asked)
        if run not in self.runs:
            raise RefusalError(404, f"the session has no adapter {adapter!r}")
        self.runs[run]["last_request_time"] = now()
        files = {"save": self.save, "load": self.load, "resume_from_checkpoint": self.resume}
        if verb in files:
            return files[verb](run, fields, asked)
        if not hasattr(Verbs, verb):
            raise RefusalError(404, f"there is no verb {verb!r}")
        first = [fields.pop(FIELD[verb])] if verb in FIELD else []
        if verb == "set_template":
            fields.pop("model_id", None)
        limits = {k: float(v) for k, v in fields.items() if isinstance(v, str) and v == "inf"}
        fields |= limits
        got = getattr(self.model, verb)(*first, **self.of(run), **local(fields))
        if verb in VOID or verb in FIELD:
            return {"status": "ok"}
        return {"status": "ok", "result": str(got) if verb.startswith("clip") else plain(got)}

    def of(self, run):
        """The local model's name of a run."""
        return {"adapter_name": None if self.full else run}

    def add_adapter(self, model, run, adapter, fields, asked):
        config, _ = fields.pop("config", None), fields.pop("save_dir", None)
        if (config is None) is not self.full:
            what = "all weights are" if self.full else "an adapter is"
            raise RefusalError(422, f"config is {config!r}, but here {what} trained")
        seed = fields.pop("seed", stable_seed(current_run().seed, "adapter", adapter))
        if self.full:
            if self.runs:
                raise RefusalError(409, "all weights are being trained by another run")
            steps = fields.get("gradient_accumulation_steps")
            self.model._group().set_gradient_accumulation_steps(steps)
            config = {"r": None}
        else:
            config = json.loads(config)
            config.pop("_TWINKLE_TYPE_")
            self.model.seeds[run] = seed
            given = SimpleNamespace(to_dict=lambda: config, peft_type="LORA")
            self.model.add_adapter_to_model(run, given, **fields)
        self.runs[run] = {
            "training_run_id": run, "base_model": model, "model_owner": asked.key,
            "is_lora": not self.full, "lora_rank": config.get("r", 8), "last_request_time": now(),
            "user_metadata": {"adapter_name": adapter}, "checkpoints": [],
        }  # fmt: skip
        return {"status": "ok", "adapter_name": run}

    def save(self, run, fields, asked):
        is_sampler, name = fields.pop("is_sampler", False), fields.pop("name", None)
        name = re.sub(r"[^\w-]", "_", name or f"step-{next(self._numbers)}", flags=re.ASCII)
        kind = "sampler_weights" if is_sampler else "weights"
        name = f"{name}-{next(self._numbers)}" if is_sampler else name
        folder = self.model.save(
            name, output_dir=str(self.state / run / kind), **self.of(run), **fields
        )
        found = self.runs[run]["checkpoints"]
        path = f"twinkle://{run}/{kind}/{name}"
        gone = [e for e in found if e["twinkle_path"] == path
                or (is_sampler and e["checkpoint_type"] == "sampler")]  # fmt: skip
        for each in gone:
            found.remove(each)
            if each["twinkle_path"] != path:
                shutil.rmtree(self.folder(each["twinkle_path"]))
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        found.append({
            "checkpoint_id": f"{kind}/{name}", "time": now(), "size_bytes": size, "public": False,
            "checkpoint_type": "sampler" if is_sampler else "training", "twinkle_path": path,
            "base_model": self.runs[run]["base_model"], "is_lora": not self.full,
            "lora_rank": self.runs[run]["lora_rank"],
        })  # fmt: skip
        return {"twinkle_path": path, "checkpoint_dir": path}

    def load(self, run, fields, asked):
        folder = self.resolved(asked, fields.pop("name"))
        self.model.load(folder, **self.of(run), **fields)
        return {"status": "ok"}

    def resume(self, run, fields, asked):
        folder = self.resolved(asked, fields.pop("name"))
        return {"result": self.model.resume_from_checkpoint(folder, **self.of(run), **fields)}

    def upload(self, fields, asked):
        folder = self.resolved(asked, fields["checkpoint_dir"])
        future = self.model.upload_to_hub(folder, fields["hub_model_id"], fields.get("hub_token"))
        name = f"upload-{next(self._numbers)}"
        self.uploads[name] = (asked.key, future)
        return {"request_id": name}

    def upload_status(self, fields, asked, model, upload):
        owner, future = self.uploads.get(upload, (None, None))
        if owner != asked.key:
            raise RefusalError(404, f"there is no upload {upload!r}")
        error = future.exception() if future.done() else None
        status = "failed" if error else "completed" if future.done() else "running"
        return {"request_id": upload, "status": status, "error": str(error) if error else None}

    # ---- the sampler

    def sampler_verb(self, fields, asked, model, verb):
        self.served(model)
        if verb == "set_template":
            fields.pop("adapter_name", None)
            fields.pop("model_id", None)
            self.sampler.set_template(fields.pop("template_cls"), **fields)
        elif verb == "sample":
            return {"samples": self.sample(fields, asked)}
        elif verb != "create":
            raise RefusalError(422, f"{verb} is not there: sample by adapter_uri or adapter_name")
        return {"status": "ok"}

    def sample(self, fields, asked):
        params = fields.get("sampling_params") or {}
        rows, seeds = fields["inputs"], fields.get("seeds")
        rows = rows if isinstance(rows, list) else [rows]
        if seeds is not None and len(seeds) != len(rows):
            raise RefusalError(422, f"there are {len(rows)} inputs and {len(seeds)} seeds")
        how = {"use_base_model": True}
        if fields.get("adapter_uri"):
            how = {"adapter_path": self.resolved(asked, fields["adapter_uri"])}
        elif fields.get("adapter_name"):
            run = f"{asked.session}-{fields['adapter_name']}"
            self.own_run(asked, run)
            how = {"adapter_name": run}
        out = []
        for i, row in enumerate(rows):
            own = params if seeds is None else params | {"seed": seeds[i]}
            (response,) = self.sampler.sample(local([row]), own, return_encoded=True, **how)
            told = {k: plain(v) for k, v in vars(response).items()}
            out.append(told | {"sequences": [plain(vars(each)) for each in response.sequences]})
        return out


class Verbs:
    """The verbs that are the local class's own."""

    forward = forward_only = calculate_loss = backward = forward_backward = None
    clip_grad_norm = step = zero_grad = lr_step = clip_grad_and_step = None
    set_loss = set_optimizer = set_lr_scheduler = set_template = set_processor = None
    add_metric = apply_patch = calculate_metric = get_train_configs = get_state_dict = None


def now():
    return datetime.now().isoformat()


def caught(do):
    try:
        return do()
    except Exception as error:
        return error


def local(value):
    """Arrays as the tensors that local scripts give."""
    if isinstance(value, dict):
        return {key: local(each) for key, each in value.items()}
    if isinstance(value, list):
        return [local(each) for each in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def plain(value):
    """Tensors as arrays."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.detach().numpy() if isinstance(value, torch.Tensor) else value


def in_lists(value):
    """Arrays as JSON's lists."""
    if isinstance(value, dict):
        return {key: in_lists(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [in_lists(each) for each in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


RUN, NAME = r"/twinkle/training_runs/(?P<run>[^/]+)", r"(?P<name>\w+/[^/]+)"
ROUTES = [
    ("GET", "/twinkle/healthz", lambda self, *_: {"status": "ok"}),
    ("GET", "/twinkle/capacity_info", Reference.capacity),
    ("GET", "/twinkle/get_server_capabilities",
     lambda self, *_: {"supported_models": [{"model_name": name} for name in self.names]}),
    ("POST", "/twinkle/create_session", Reference.create_session),
    ("POST", "/twinkle/session_heartbeat", Reference.heartbeat),
    ("GET", "/twinkle/training_runs", Reference.list_runs),
    ("GET", RUN, Reference.get_run),
    ("GET", f"{RUN}/checkpoints", Reference.list_checkpoints),
    ("DELETE", f"{RUN}/checkpoints/{NAME}",
     lambda self, fields, asked, **names: self.once(
         asked, "", lambda: self.delete_checkpoint(fields, asked, **names))),
    ("GET", rf"/twinkle/checkpoint_path/(?P<run>[^/]+)/{NAME}", Reference.checkpoint_path),
    ("POST", "/twinkle/weights_info", Reference.weights_info),
    ("GET", r"/model/(?P<model>.+)/twinkle/upload_status/(?P<upload>[^/]+)",
     Reference.upload_status),
    ("POST", r"/model/(?P<model>.+)/twinkle/(?P<verb>\w+)", Reference.verb),
    ("POST", r"/sampler/(?P<model>.+)/twinkle/(?P<verb>\w+)", Reference.sampler_verb),
]  # fmt: skip


class Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        reference, place = self.server.reference, urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            asked = self.asked(reference)
            kind = self.headers.get_content_type()
            fields = {name: values[-1] for name, values in parse_qs(place.query).items()}
            fields |= body.decode(kind, data) if data else {}
            path = unquote(place.path).removeprefix("/api/v1")
            status, value = 200, reference.answer(self.command, path, fields, asked)
        except RefusalError as error:
            status, value = error.status, {"detail": str(error)}
        except (KeyError, TypeError) as error:
            status, value = 422, {"detail": f"a field is missing or wrong: {error}"}
        except errors.TwinkleError as error:
            found = [code for kind, code in STATUS.items() if isinstance(error, kind)]
            status, value = found[0] if found else 500, {"detail": str(error)}
        kind, data = body.JSON, json.dumps(in_lists(value)).encode()
        if body.TENSORS in self.headers.get("accept", ""):
            kind, data = body.encode(value)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_DELETE = do_GET  # noqa: N815

    def asked(self, reference):
        key = self.headers.get("twinkle-authorization") or self.headers.get("authorization") or ""
        key = key.removeprefix("Bearer ")
        if reference.keys is not None and key not in reference.keys:
            raise RefusalError(401, "the key is unknown")
        number = self.headers.get("x-twinkle-seq")
        if number is not None and not re.fullmatch("[1-9][0-9]{0,17}", number):
            raise RefusalError(422, f"X-Twinkle-Seq is {number!r}, it must be an integer from 1 on")
        session = self.headers.get("x-twinkle-session-id")
        return SimpleNamespace(key=key, session=session, number=number and int(number))

    def log_message(self, *_):
        pass
