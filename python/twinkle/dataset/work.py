"""Work on rows: Map, Filter, Check and Encode. Each is called with one row and gives the rows that
it makes of it; over() does the same to all rows of the core, where an error names the row."""

import re
from collections.abc import Mapping

from twinkle import checks
from twinkle.errors import InvalidError, require
from twinkle.logger import get_logger
from twinkle.preprocessor.base import Preprocessor, map_col_to_row, map_row_to_col
from twinkle.preprocessor.builtin import is_builtin
from twinkle.template import Template

_COLUMNS = "it was given columns, {'messages': [of the first row, of the second, ...]}"
_FOLDER = re.compile("^[a-z]+: ")  # that an error begins with, as this one's does


class Work:
    """function: does it; its name, or `name`, stands in errors. none: says that a row gave none, or
    several, where it must give one. hint: ends the text of what the function raises. remedy: that
    of an error because no row is left."""

    none = hint = remedy = ""

    def __init__(self, function, name=None):
        self._function, self.__name__ = function, name or name_of(function)


class Map(Work):
    """A preprocessor over batches of rows. function: of a dict of columns, or, with batched=False,
    of a row. remove_columns: fields of the rows that are left out. InvalidError: these are no
    names, or batched is neither True nor False."""

    none = "it must return one row for one row"

    def __init__(self, function, batched=True, batch_size=1000, remove_columns=()):
        super().__init__(function)
        batched = checks.flag("dataset: batched", batched)
        self._batched, self._batch_size = batched or isinstance(function, Preprocessor), batch_size
        names = [remove_columns] if isinstance(remove_columns, str) else remove_columns
        names = () if names is None else names
        if not isinstance(names, (list, tuple, set)) or not all(isinstance(n, str) for n in names):
            checks.refuse("dataset: remove_columns", remove_columns, "a name or a list of names")
        self._removed = set(names)
        if self._batched:
            self.hint = f"; {_COLUMNS}: batched=False gives it a row at a time"

    def over(self, rows):
        """The core's rows after it. InvalidError: a batch_size below 1; what the function raises,
        with the row's place, or wrongly returns; values without a JSON form."""
        if is_builtin(self._function) and not self._removed:
            return rows.map(self._function.core_name, self._function.arguments)
        size = checks.integer("dataset: batch_size", self._batch_size, least=1)
        out, origins = [], []
        for begin in range(0, len(rows), size):
            batch = rows.rows(begin, min(begin + size, len(rows)))
            try:
                made = self._made(batch)
            except Exception:
                absent = dict.fromkeys(map_row_to_col(batch) if self._batched else ())
                for index, row in enumerate(batch, begin):  # which one is it?
                    called(rows.where(index), self, {**absent, **row})
                raise
            out += made
            origins += [begin + min(i, len(batch) - 1) for i in range(len(made))]
        return rows.replaced(out, origins)

    def __call__(self, row):
        """The rows that it makes of one, most often one."""
        return self._made([row])

    def _made(self, batch):
        """The rows of a batch with the fields that the function gives them. InvalidError: it
        returned no dict of columns (or dict), or another number of rows while fields of theirs are
        kept."""
        if self._batched:
            made = self._function(map_row_to_col(batch))
            made = map_col_to_row(made) if isinstance(made, Mapping) else made
        else:
            made = [self._function(row) for row in batch]
        must = (
            "a dict of columns; batched=False: a dict for each row" if self._batched else "a dict"
        )
        require(
            isinstance(made, list) and all(isinstance(row, Mapping) for row in made),
            f"dataset: {self.__name__} returned {type(made).__name__}, it must return {must}",
        )
        kept = [{k: v for k, v in row.items() if k not in self._removed} for row in batch]
        if len(made) == len(batch):
            return [{**row, **new} for row, new in zip(kept, made, strict=True)]
        require(
            not any(kept),
            f"dataset: {self.__name__} returned {len(made)} rows for {len(batch)}; it may do so "
            f"only with remove_columns={sorted(map_row_to_col(batch))}",
        )
        return made


class Filter(Work):
    """Keeps a row for which the function returns True. InvalidError: neither True nor False."""

    def __call__(self, row):
        """[row], or []."""
        return [row] if checks.flag("dataset: what it returned", self._function(row)) else []

    def over(self, rows):
        """The core's rows that are kept."""
        return rows.slice([i for i in range(len(rows)) if called(rows.where(i), self, rows.row(i))])


class Check(Filter):
    """Keeps a row that the template can encode."""

    none = "the template cannot encode the row"

    def __init__(self, template):
        self._core = _core_of(template, "check")
        super().__init__(lambda row: template.check(row) is not None, "check")

    def over(self, rows):
        """The core's rows that are kept."""
        return super().over(rows) if self._core is None else rows.check(self._core)


class Encode(Work):
    """The rows that a template makes of one, without those of no token. prompt: as Template.encode
    has add_generation_prompt."""

    none = "the row encodes to nothing"
    remedy = ", since none of them encodes to a token: check their messages"

    def __init__(self, template, prompt):
        self._core, self._prompt = _core_of(template, "encode"), prompt
        super().__init__(template.batch_encode, "encode")

    def __call__(self, row):
        """The encoded rows of one."""
        made = self._function([row], add_generation_prompt=self._prompt)
        return [new for new in made if new and ("input_ids" not in new or len(new["input_ids"]))]

    def over(self, rows):
        """The core's rows after it. The log says as what they are read, and what may be meant
        otherwise."""
        self._tell(rows.readings)
        if self._core is not None:
            encoded = rows.encode(self._core, self._prompt)
            self._tell(encoded.remarks, self._core)
            return encoded
        made = [called(rows.where(i), self, rows.row(i)) for i in range(len(rows))]
        origins = [i for i, of_one in enumerate(made) for _ in of_one]
        return rows.replaced([new for of_one in made for new in of_one], origins)

    def _tell(self, lines, *arguments):
        for line in [] if self._prompt else lines(*arguments):
            get_logger().info(line)


def called(where, work, row):
    """work(row); what it raises becomes an InvalidError that names the place `where`."""
    try:
        return work(row)
    except Exception as error:
        ours = isinstance(error, InvalidError)
        cause = _FOLDER.sub("", str(error)) if ours else repr(error) + work.hint
        raise InvalidError(f"dataset: {where}: {work.__name__}: {cause}") from error


def name_of(function):
    """The name of a function, or of an object that is called, in errors."""
    return getattr(function, "__name__", type(function).__name__)


def _core_of(template, what):
    """The core's template, which does the same; None: something that encoding calls is overridden
    in Python. InvalidError: there is no template."""
    require(template is not None, f"dataset: {what} needs a template: call set_template()")
    names = ("encode", "batch_encode", "check")
    plain = all(getattr(type(template), name) is getattr(Template, name) for name in names)
    return getattr(template, "_template", None) if plain else None
