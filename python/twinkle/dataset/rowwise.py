"""Users' Python callables over rows, with the place of a row that fails."""

import re
from collections.abc import Mapping

from twinkle import checks
from twinkle.errors import InvalidError, require
from twinkle.preprocessor.base import map_col_to_row, map_row_to_col

_FOLDER = re.compile("^[a-z]+: ")  # that an error begins with, as this one's does
_COLUMNS = (
    "; it was given columns, {'messages': [of the first row, of the second, ...]}: batched=False "
    "gives it a row at a time"
)


class Work:
    """A preprocessor over batches of rows. function: of a dict of columns, or, with batched=False,
    of a row. remove_columns: fields of the rows that are left out. InvalidError: these are no
    names."""

    def __init__(self, function, batched=True, remove_columns=()):
        self._function, self._batched = function, batched
        names = [remove_columns] if isinstance(remove_columns, str) else remove_columns
        names = () if names is None else names
        if not isinstance(names, (list, tuple, set)) or not all(isinstance(n, str) for n in names):
            checks.refuse("dataset: remove_columns", remove_columns, "a name or a list of names")
        self._removed = set(names)
        self.__name__ = name_of(function)

    def __call__(self, batch):
        """The rows of a batch with the fields that the function gives them. InvalidError: it
        returned no dict of columns (or dict), or another number of rows while fields of theirs are
        kept."""
        made = self._made(batch)
        require(
            isinstance(made, list) and all(isinstance(row, Mapping) for row in made),
            f"dataset: {self.__name__} returned {type(made).__name__}, it must return "
            + ("a dict of columns; batched=False: a dict for each row" if self._batched else "a d"
               "ict"),
        )  # fmt: skip
        kept = [{k: v for k, v in row.items() if k not in self._removed} for row in batch]
        if len(made) == len(batch):
            return [{**row, **new} for row, new in zip(kept, made, strict=True)]
        require(
            not any(kept),
            f"dataset: {self.__name__} returned {len(made)} rows for {len(batch)}; it may do so "
            f"only with remove_columns={sorted(map_row_to_col(batch))}",
        )
        return made

    def _made(self, batch):
        if not self._batched:
            return [self._function(row) for row in batch]
        made = self._function(map_row_to_col(batch))
        return map_col_to_row(made) if isinstance(made, Mapping) else made

    def find(self, batch, where):
        """Raises what the function raises of one of the rows alone, with its where(index)."""
        hint = _COLUMNS if self._batched else ""
        names = map_row_to_col(batch)
        for index, row in enumerate(batch):
            given = map_row_to_col([row], names) if self._batched else row
            called(where(index), self._function, given, hint)


def map_rows(rows, work, batch_size=1000):
    """`work` over batches of the core's rows. InvalidError: a batch_size below 1; what it raises,
    with the row's place; values without a JSON form, or no row in the end."""
    batch_size = checks.integer("dataset: batch_size", batch_size, least=1)
    out, origins = [], []
    for begin in range(0, len(rows), batch_size):
        end = min(begin + batch_size, len(rows))
        batch = rows.rows(begin, end)
        try:
            made = work(batch)
        except Exception:
            work.find(batch, lambda index, begin=begin: rows.where(begin + index))
            raise
        out += made
        origins += [min(begin + i, end - 1) for i in range(len(made))]
    require_rows(len(out), rows, name_of(work))
    return rows.replaced(out, origins)


def encode_rows(rows, chosen, prompt):
    """The core's rows as a template of Python encodes them. InvalidError: what it raises, with the
    row's place."""
    encode, out, origins = encoder(chosen, prompt), [], []
    for index in range(len(rows)):
        made = called(rows.where(index), encode, rows.row(index))
        out += made
        origins += [index] * len(made)
    return rows.replaced(out, origins)


def encoder(chosen, prompt):
    """A function of a row: the rows that a template makes of it, without those of no token."""

    def encode(row):
        made = chosen.batch_encode([row], add_generation_prompt=prompt)
        return [new for new in made if new and ("input_ids" not in new or len(new["input_ids"]))]

    return encode


def checker(chosen):
    """A filter of the rows that a template can encode."""

    def check(row):
        return chosen.check(row) is not None

    return check


def kept_indices(rows, function):
    """Indices of the rows for which `function(row)` is true. InvalidError: of none."""
    kept = [i for i in range(len(rows)) if verdict(rows.where(i), function, rows.row(i))]
    require_rows(len(kept), rows, name_of(function))
    return kept


def require_rows(count, rows, what):
    """InvalidError: `what` has left none of the rows."""
    require(
        count > 0,
        f"dataset: {what} leaves none of the {len(rows)} rows; the first is {rows.where(0)}",
    )


def called(where, function, argument, hint=""):
    """function(argument); what it raises becomes an InvalidError that names the place `where`.
    hint: ends the text of what is no error of Twinkle's."""
    try:
        return function(argument)
    except Exception as error:
        ours = isinstance(error, InvalidError)
        cause = _FOLDER.sub("", str(error)) if ours else repr(error) + hint
        raise InvalidError(f"dataset: {where}: {name_of(function)}: {cause}") from error


def verdict(where, function, row):
    """A filter's answer for a row. InvalidError: neither True nor False."""
    said = called(where, function, row)
    return checks.flag(f"dataset: {where}: what {name_of(function)} returned", said)


def name_of(function):
    """The name of a function, or of an object that is called, in errors."""
    return getattr(function, "__name__", type(function).__name__)
