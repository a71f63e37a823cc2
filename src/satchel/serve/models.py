"""The models that are served: loaded when first asked for, unloaded when long idle.

Only names of the catalogue are known: the models named at the start, and those of the store. A path
is never taken from a request.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from satchel.api import LLM
from satchel.base.errors import CancelledError, CrowdedError, ModelNotFoundError, OptionError
from satchel.files.references import parse_reference
from satchel.files.store import list_models, resolve
from satchel.serve.failures import OverloadedError
from satchel.serve.journal import Journal
from satchel.serve.metrics import counts_of
from satchel.serve.sessions import Sessions
from satchel.serve.settings import Settings

FREE_S = 0.5  # after which nothing on the way refers to an unloaded model any more


@dataclass(eq=False)
class Loaded:
    """A model in memory."""

    name: str
    llm: LLM
    sessions: Sessions
    keep_alive_s: float | None
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
        self.past: Counter[str] = Counter()  # what those had counted that are unloaded
        self._load, self._settings, self._journal = load, settings, journal
        self._stored = stored or stored_models
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._admitted: set[str] = set()  # of these, those for which there is room
        self._awaited: Counter[str] = Counter()  # how many wait for a model, by its name
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def catalogue(self) -> dict[str, str]:
        """Names and references of all models that may be asked for; the first is the default."""
        return self.named | (await asyncio.to_thread(self._stored)) | self.named

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

    async def reference(self, name: str) -> str:
        """The reference of a model that `find` found. Raises ModelNotFoundError if gone."""
        reference = (await self.catalogue()).get(name)
        if reference is None:
            raise ModelNotFoundError(f"model: {name[:100]!r} has gone from the store")
        return reference

    def has(self, name: str) -> bool:
        """Whether a model is in memory, or about to be."""
        return name in self.loaded or name in self._loading

    async def take(self, name: str | None, keep_alive_s: float | None = -1) -> Loaded:
        """The model, loaded, and held until it is given back; -1 stands for the default keep-alive.

        Raises ModelNotFoundError, OverloadedError, and as `satchel.load` does.
        """
        name = await self.find(name)
        self._awaited[name] += 1
        try:
            while (loaded := self.loaded.get(name)) is None:
                await self._load_once(name)
        finally:
            self._awaited[name] -= 1
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
        if loaded.n_users == 0:
            self._wait_for_users(loaded)

    @asynccontextmanager
    async def held(
        self, name: str | None, keep_alive_s: float | None = -1
    ) -> AsyncGenerator[Loaded]:
        """The model, taken, and given back in the end. Raises as `take` does."""
        loaded = await self.take(name, keep_alive_s)
        try:
            yield loaded
        finally:
            self.give(loaded)

    def relieve(self) -> None:
        """Has all models give back what they keep for later, if memory is short."""
        for loaded in self.loaded.values():
            self._start(asyncio.to_thread(_relieve, loaded.llm))

    async def close(self) -> None:
        """Unloads all, those too that are being loaded."""
        self._closed = True
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        for loaded in list(self.loaded.values()):
            await self._drop(loaded)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load_once(self, name: str) -> None:
        """Has the model loaded, once for all who ask meanwhile; others load side by side."""
        loading = self._loading.get(name)
        if loading is None:
            loading = self._loading[name] = asyncio.ensure_future(self._bring(name))
            loading.add_done_callback(_noticed)
        await asyncio.shield(loading)

    async def _bring(self, name: str) -> None:
        try:
            if self._closed:
                raise OverloadedError("the server is ending")
            reference = await self.reference(name)
            await self._make_room()
            self._admitted.add(name)
            begun = time.monotonic()
            llm = await self._load_beside_others(reference)
        finally:
            self._admitted.discard(name)
            del self._loading[name]
        ms = round(1000 * (time.monotonic() - begun))
        self._journal.write("loaded", model=name, ms=ms)
        sessions = Sessions(llm, most=8)
        loaded = Loaded(name, llm, sessions, self._settings.keep_alive_s)
        self.loaded[name] = loaded
        if not self._awaited[name]:  # they have all gone
            self._wait_for_users(loaded)

    async def _make_room(self) -> None:
        """Unloads those that no one has used for longest, till one more may be loaded."""
        while (n := len(self.loaded) + len(self._admitted)) >= self._settings.max_loaded:
            if not await self._drop_longest_idle():
                raise OverloadedError(
                    f"{n} models are loaded and at work, and {self._settings.max_loaded} may be; "
                    "come back later"
                )

    async def _load_beside_others(self, reference: str) -> LLM:
        """Unloads the others that are idle, the longest idle ones first, as memory asks for it."""
        while True:
            try:
                return await asyncio.to_thread(self._load, reference)
            except CrowdedError:
                if not await self._drop_longest_idle():
                    raise

    async def _drop_longest_idle(self) -> bool:
        """Whether there was an idle one."""
        idle = [one for one in self.loaded.values() if self._is_idle(one)]
        if idle:
            await self._drop(min(idle, key=lambda loaded: loaded.used_s))
        return bool(idle)

    def _wait_for_users(self, loaded: Loaded) -> None:
        if loaded.keep_alive_s is not None:
            loop = asyncio.get_running_loop()
            loaded.timer = loop.call_later(loaded.keep_alive_s, self._expire, loaded)

    def _is_idle(self, loaded: Loaded) -> bool:
        return not loaded.n_users and not self._awaited[loaded.name]

    def _expire(self, loaded: Loaded) -> None:
        if self._is_idle(loaded) and self.loaded.get(loaded.name) is loaded:
            self._start(self._drop(loaded))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks but weakly
        task.add_done_callback(self._tasks.discard)

    async def _drop(self, loaded: Loaded) -> None:
        del self.loaded[loaded.name]
        counts = counts_of(loaded.llm.usage())
        self.past += counts
        if loaded.timer:
            loaded.timer.cancel()
        loaded.sessions.close()
        await asyncio.to_thread(loaded.llm.close)
        self.past += counts_of(loaded.llm.usage()) - counts
        self._journal.write("unloaded", model=loaded.name)
        # rings of objects, as tokenizers have, would keep the file mapped till Python looks
        loop = asyncio.get_running_loop()
        loop.call_later(FREE_S, loop.run_in_executor, None, gc.collect)


def _noticed(loading: asyncio.Task[None]) -> None:
    """Those who wait are told of an error; perhaps no one does any more."""
    if not loading.cancelled():
        loading.exception()


def _relieve(llm: LLM) -> None:
    with suppress(CancelledError):  # it is unloaded: all is given back
        llm.relieve()


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
