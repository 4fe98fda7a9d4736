"""The version, and when it was released."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("twinkle-llm")
except PackageNotFoundError:
    __version__ = "0.0.0"
# Set by the commit that makes a release; far ahead while the next one is being written, so that no
# hub takes an unreleased version for an old one.
__release_datetime__ = "2099-10-13 08:56:12"
