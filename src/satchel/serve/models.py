"""The models that are served: loaded when first asked for, unloaded when long idle.

Only names of the catalogue are known: the models named at the start, and those of the store. A path
is never taken from a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from satchel.api import LLM
from satchel.base.errors import ModelNotFoundError, OptionError
from satchel.files.references import parse_reference
from satchel.files.store import list_models, resolve
from satchel.serve.failures import OverloadedError
from satchel.serve.journal import Journal
from satchel.serve.sessions import Sessions
from satchel.serve.settings import Settings


@dataclass(eq=False)
class Loaded:
    """A model in memory."""

    name: str
    llm: LLM
    sessions: Sessions
    keep_alive_s: float | None
    load_s: float  # what loading took
    n_users: int = 0
    timer: asyncio.TimerHandle | None = None
    used_s: float = field(default_factory=time.monotonic)

    @property
    def expires_s(self) -> float | None:
        """The Unix time at which it will be unloaded if no one comes; None for never."""
        if self.keep_alive_s is None:
            return None
        since = time.monotonic() if self.n_users else self.used_s
        return time.time() - time.monotonic() + since + self.keep_alive_s


class Models:
    """Loads and unloads; used by the event loop's thread alone."""

    def __init__(
        self,
        references: Sequence[str],
        load: Callable[[str], LLM],
        settings: Settings,
        journal: Journal,
        stored: Callable[[], dict[str, str]] | None = None,
    ) -> None:
        """`references` are served, the first by default; `stored` gives name and reference of more.

        Raises OptionError for two of one name.
        """
        self.named: dict[str, str] = {}
        for reference in references:
            name = name_of(reference)
            if name in self.named:
                raise OptionError(f"{reference}: there are two models of the name {name!r}")
            self.named[name] = reference
        self.loaded: dict[str, Loaded] = {}
        self._load, self._settings, self._journal = load, settings, journal
        self._stored = stored or stored_models
        self._changing = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    async def catalogue(self) -> dict[str, str]:
        """Names and references of all models that may be asked for."""
        return (await asyncio.to_thread(self._stored)) | self.named

    async def find(self, name: str | None) -> str:
        """The name of the model that a request means. Raises ModelNotFoundError."""
        if name is None and self.named:
            return next(iter(self.named))
        names = await self.catalogue() if name not in self.loaded else self.loaded
        for one in (name, (name or "").removesuffix(":latest")):
            if one in names:
                return str(one)
        known = ", ".join(names) or "none; run: satchel pull smollm2"
        raise ModelNotFoundError(f"model: there is no {(name or '')[:100]!r}; there are {known}")

    async def take(self, name: str | None, keep_alive_s: float | None = -1) -> Loaded:
        """The model, loaded, and held until it is given back; -1 stands for the default keep-alive.

        Raises ModelNotFoundError, OverloadedError, and as `satchel.load` does.
        """
        name = await self.find(name)
        loaded = self.loaded.get(name)
        if loaded is None:
            async with self._changing:
                loaded = self.loaded.get(name) or await self._bring(name)
        # nothing is awaited between here and there, so no one can have unloaded it
        loaded.n_users += 1
        if loaded.timer:
            loaded.timer.cancel()
        if keep_alive_s != -1:
            loaded.keep_alive_s = keep_alive_s
        return loaded

    def give(self, loaded: Loaded) -> None:
        """Lets go of a model; when no one holds it, its time runs."""
        loaded.n_users -= 1
        loaded.used_s = time.monotonic()
        if loaded.n_users == 0 and loaded.keep_alive_s is not None:
            loop = asyncio.get_running_loop()
            loaded.timer = loop.call_later(loaded.keep_alive_s, self._expire, loaded)

    async def close(self) -> None:
        """Unloads all."""
        async with self._changing:
            for loaded in list(self.loaded.values()):
                await self._drop(loaded)

    async def _bring(self, name: str) -> Loaded:
        reference = (await self.catalogue())[name]
        while len(self.loaded) >= self._settings.max_loaded:
            idle = [loaded for loaded in self.loaded.values() if not loaded.n_users]
            if not idle:
                raise OverloadedError(
                    f"{len(self.loaded)} models are loaded and at work; come back later"
                )
            await self._drop(min(idle, key=lambda loaded: loaded.used_s))
        begun = time.monotonic()
        llm = await asyncio.to_thread(self._load, reference)
        seconds = time.monotonic() - begun
        self._journal.write("loaded", model=name, ms=round(1000 * seconds))
        sessions = Sessions(llm, most=8)
        self.loaded[name] = Loaded(name, llm, sessions, self._settings.keep_alive_s, seconds)
        return self.loaded[name]

    def _expire(self, loaded: Loaded) -> None:
        task = asyncio.get_running_loop().create_task(self._drop_if_idle(loaded))
        self._closing.add(task)  # the loop itself holds tasks but weakly
        task.add_done_callback(self._closing.discard)

    async def _drop_if_idle(self, loaded: Loaded) -> None:
        async with self._changing:
            if not loaded.n_users and self.loaded.get(loaded.name) is loaded:
                await self._drop(loaded)

    async def _drop(self, loaded: Loaded) -> None:
        del self.loaded[loaded.name]
        if loaded.timer:
            loaded.timer.cancel()
        loaded.sessions.close()
        await asyncio.to_thread(loaded.llm.close)
        self._journal.write("unloaded", model=loaded.name)


def name_of(reference: str) -> str:
    """What clients call a model: its file's stem for a path, else the reference itself."""
    found = parse_reference(reference)
    return found.stem if isinstance(found, Path) else reference


def stored_models() -> dict[str, str]:
    """Names and references of the models of the store."""
    return {model.reference: model.reference for model in list_models()}


def path_of(reference: str) -> Path:
    """Where a model of the catalogue lies. Raises ModelNotFoundError; fetches nothing."""
    return resolve(reference, fetch=False)
