"""Every error that Satchel raises for bad input. One line each: what is wrong, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager


class SatchelError(Exception):
    """The base of them all; `code` is a stable word for programs."""

    code = "error"


class FileFormatError(SatchelError):
    """A model file is damaged, or is not what it says it is."""

    code = "bad_file"


class UnsupportedError(SatchelError):
    """The input is sound, but asks for something that Satchel does not have."""

    code = "unsupported"


class ModelNotFoundError(SatchelError):
    """No model answers to this name or path."""

    code = "model_not_found"


class DownloadError(SatchelError):
    """A model could not be fetched, or what came is not what was promised."""

    code = "download_failed"


class ContextLengthError(SatchelError):
    """The prompt, or the prompt and its answer, is longer than the context."""

    code = "context_length_exceeded"


class TemplateError(SatchelError):
    """The chat template is missing, broken, or took too much time or space."""

    code = "bad_template"


class OptionError(SatchelError):
    """A flag, field or argument has a value that makes no sense."""

    code = "bad_option"


class TextError(SatchelError):
    """A text can't be tokenized, or a token id does not exist."""

    code = "bad_text"


class CacheError(SatchelError):
    """A cache can't be written or read."""

    code = "cache_failed"


class MemoryLimitError(SatchelError):
    """There is not enough memory for what was asked."""

    code = "out_of_memory"


class CrowdedError(MemoryLimitError):
    """There would be enough if other models of this process were not loaded."""


class KernelError(SatchelError):
    """A kernel is ill-formed: mixed types, a wrong shape, an op without a rule."""

    code = "bad_kernel"


class CancelledError(SatchelError):
    """The request was cancelled before its end."""

    code = "cancelled"


def in_one_line(error: Exception) -> Exception:
    """The same error, but that a lack of memory is a MemoryLimitError, wherever it was noticed."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return MemoryLimitError(
            "the system has no more memory to give; unload something, or use a smaller model, "
            "context or request"
        )
    return error


@contextmanager
def lack_in_one_line() -> Generator[None]:
    """Makes a lack of memory, wherever it is noticed inside, a MemoryLimitError."""
    try:
        yield
    except (MemoryError, OSError) as error:
        told = in_one_line(error)
        if told is error:
            raise
        raise told from None
