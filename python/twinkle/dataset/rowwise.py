"""Users' Python callables over the rows of a core Dataset, with the place of a row that fails."""

import re
from collections.abc import Mapping

from twinkle import checks
from twinkle.errors import InvalidError, require
from twinkle.preprocessor.base import map_col_to_row, map_row_to_col

_FOLDER = re.compile("^[a-z]+: ")  # that an error begins with, as this one's does


def map_rows(rows, function, batch_size=1000, batched=True, remove_columns=()):
    """`function` over batches of columns (or over single rows); its fields set on the rows.

    InvalidError: a batch_size below 1, batched that is neither True nor False, remove_columns that
    are no names; what `function` raises, with the row's place; what it returns is no dict of
    columns (or dict), has values without a JSON form, is of another number of rows while fields of
    theirs are kept, or has no row in the end.
    """
    batch_size = checks.integer("dataset: batch_size", batch_size, least=1)
    batched = checks.flag("dataset: batched", batched)
    remove_columns = [remove_columns] if isinstance(remove_columns, str) else remove_columns
    remove_columns = () if remove_columns is None else remove_columns
    if not isinstance(remove_columns, (list, tuple, set)) or not all(
        isinstance(name, str) for name in remove_columns
    ):
        checks.refuse("dataset: remove_columns", remove_columns, "a name or a list of names")
    removed = set(remove_columns)
    out, origins = [], []
    for begin in range(0, len(rows), batch_size):
        end = min(begin + batch_size, len(rows))
        batch = rows.rows(begin, end)
        made = _made(rows, function, batch, begin, batched)
        kept = [{k: v for k, v in row.items() if k not in removed} for row in batch]
        if len(made) == len(batch):
            out += [{**row, **new} for row, new in zip(kept, made, strict=True)]
            origins += range(begin, end)
            continue
        require(
            not any(kept),
            f"dataset: {_name(function)} returned {len(made)} rows for {len(batch)}; it may do so "
            f"only with remove_columns={sorted(map_row_to_col(batch))}",
        )
        out += made
        origins += [min(begin + i, end - 1) for i in range(len(made))]
    require_rows(len(out), rows, _name(function))
    return rows.replaced(out, origins)


def filter_rows(rows, function):
    """The rows for which `function(row)` is true."""
    return rows.slice(kept_indices(rows, function))


def kept_indices(rows, function):
    """Indices of the rows for which `function(row)` is true. InvalidError: of none."""
    indices = range(len(rows))
    kept = [i for i in indices if verdict(lambda i=i: rows.where(i), function, rows.row(i))]
    require_rows(len(kept), rows, _name(function))
    return kept


def require_rows(count, rows, what):
    """InvalidError: `what` has left none of the rows."""
    require(
        count > 0,
        f"dataset: {what} leaves none of the {len(rows)} rows; the first is {rows.where(0)}",
    )


def _made(rows, function, batch, begin, batched):
    """`function` applied to a batch, as rows."""
    if not batched:
        made = [_called(rows, function, row, begin + i) for i, row in enumerate(batch)]
    else:
        try:
            columns = map_row_to_col(batch)
            made = function(columns)
        except Exception:
            # The row that failed: one at a time until one fails.
            for i, row in enumerate(batch):
                _called(rows, function, map_row_to_col([row], columns), begin + i, _COLUMNS)
            raise
        if isinstance(made, Mapping):
            made = map_col_to_row(made)
    require(
        isinstance(made, list) and all(isinstance(row, Mapping) for row in made),
        f"dataset: {_name(function)} returned {type(made).__name__}, it must return "
        + ("a dict of columns; batched=False: a dict for each row" if batched else "a dict"),
    )
    return made


_COLUMNS = (
    "; it was given columns, {'messages': [of the first row, of the second, ...]}: batched=False "
    "gives it a row at a time"
)


def _called(rows, function, argument, index, hint=""):
    return called(lambda: rows.where(index), function, argument, hint)


def called(where, function, argument, hint=""):
    """function(argument); what it raises becomes an InvalidError that names `where()`. hint: ends
    the text of what is no error of Twinkle's."""
    try:
        return function(argument)
    except Exception as error:
        ours = isinstance(error, InvalidError)
        cause = _FOLDER.sub("", str(error)) if ours else repr(error) + hint
        raise InvalidError(f"dataset: {where()}: {_name(function)}: {cause}") from error


def verdict(where, function, row):
    """A filter's answer for a row. InvalidError: neither True nor False."""
    said = called(where, function, row)
    if not isinstance(said, bool):
        said = checks.flag(f"dataset: {where()}: what {_name(function)} returned", said)
    return said


def _name(function):
    return getattr(function, "__name__", type(function).__name__)
