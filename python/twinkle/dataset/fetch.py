"""Data sets for the C++ program: `python -m twinkle.dataset.fetch get ID` prints a file of rows."""

import sys
from urllib.parse import quote

from twinkle import hub
from twinkle.core import core
from twinkle.dataset import source
from twinkle.dataset.meta import DatasetMeta
from twinkle.hub.models import cache_directory


def get(dataset_id, **_):
    """The path of a file that the C++ readers take: what the id names, or its rows as JSON lines,
    written anew under ~/.cache/twinkle/data. Errors: as of source.load and local_path."""
    meta = DatasetMeta(dataset_id)
    path = source.local_path(meta)
    if path is not None and path.is_file() and core().kind_of_data(path) in ("lines", "whole"):
        return path
    file = cache_directory().parent / "data" / f"{quote(dataset_id, safe='')}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    source.load(meta).save(file)
    return file


if __name__ == "__main__":
    sys.exit(hub.main(find=get))
