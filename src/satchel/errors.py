"""The errors that Satchel raises for bad input, for programs to catch: `satchel.errors`."""

from satchel.base.errors import (
    CacheError,
    CancelledError,
    ContextLengthError,
    CrowdedError,
    DownloadError,
    FileFormatError,
    KernelError,
    MemoryLimitError,
    ModelNotFoundError,
    OptionError,
    SatchelError,
    TemplateError,
    TextError,
    UnsupportedError,
)

__all__ = [
    "CacheError",
    "CancelledError",
    "ContextLengthError",
    "CrowdedError",
    "DownloadError",
    "FileFormatError",
    "KernelError",
    "MemoryLimitError",
    "ModelNotFoundError",
    "OptionError",
    "SatchelError",
    "TemplateError",
    "TextError",
    "UnsupportedError",
]
