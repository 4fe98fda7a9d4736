"""A lock between processes. Scripts know this module as `twinkle.utils.parallel`."""

from filelock import FileLock


class PosixFileLock(FileLock):
    """A file of the path that one process at a time holds: in a `with` block, or from acquire() to
    release(). It can be pickled; the copy holds nothing."""

    def close(self):
        """Lets go of the file."""
        self.release(force=True)

    def __reduce__(self):
        return type(self), (self.lock_file,)
