"""A model with its words: texts and messages in, streams of text out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast
from weakref import proxy

from satchel.base.errors import (
    ContextLengthError,
    MemoryLimitError,
    OptionError,
    TemplateError,
    TextError,
)
from satchel.engine.ask import Ask, Message, read_options
from satchel.engine.chat import ChatPrompt, Chats
from satchel.engine.driver import Driver
from satchel.engine.embedding import (
    Embedding,
    Embeddings,
    Pooling,
    begin_embedding,
    read_pooling,
)
from satchel.engine.engine import Engine
from satchel.engine.guide import Guide, Guides
from satchel.engine.params import is_whole
from satchel.engine.request import Delta, Generation, Request, Scoring
from satchel.engine.sampler import Sampler
from satchel.engine.stream import Stream
from satchel.text import ChatTemplate, Detokenizer, Tokenizer
from satchel.text.tool_template import ToolTemplate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from satchel.engine.eviction import Eviction
    from satchel.files.page_files import PageFolder
    from satchel.runtime.batch import Model


ENDLESS = 2**62
USUAL_CHARACTERS = 8  # of a token, at most: a longer text is looked at more closely


class Speaker:
    """Turns what is asked into requests, and sees to it that they are answered."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        template: str | None,
        name: str,
        folder: PageFolder | None = None,
        *,
        prefix_cache: bool = True,
        eviction: Eviction | None = None,
    ) -> None:
        """`template` is the text of the chat template, None when the model has none. For the others
        see Engine.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.template = template
        self.name = name
        self.engine = Engine(model, folder, prefix_cache=prefix_cache, eviction=eviction)
        self.driver = Driver(self.engine)
        self.guides = Guides(tokenizer, model.vocab_size)

    def close(self) -> None:
        """Ends all requests and closes the model."""
        self.driver.close()
        self.guides.close()
        self.model.close()

    @property
    def most_tokens(self) -> int:
        """The most tokens of a prompt and its answer together."""
        return ENDLESS if self.engine.eviction else self.model.context_length

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Raises TemplateError when there is none, or it is broken."""
        if self.template is None:
            raise TemplateError(
                f"{self.name} has no chat template; complete a plain prompt instead"
            )
        bos, eos = map(self.tokenizer.text_of, (self.tokenizer.bos, self.tokenizer.eos))
        return ChatTemplate(self.template, bos, eos)

    @cached_property
    def chats(self) -> Chats:
        """What makes prompts of conversations. Raises TemplateError."""
        tokenizer = self.tokenizer
        me = proxy(self)  # no cycle: memory is free once the last user goes
        template = ToolTemplate(
            self.chat_template, lambda text: tokenizer.special(text) is not None
        )
        return Chats(template, tokenizer, lambda text: me.tokens(text))

    def chat_prompt(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> tuple[ChatPrompt, dict[str, Any]]:
        """The prompt that asks for an answer to a conversation, and the options that are left.

        Raises TemplateError, and as Chats.prompt does.
        """
        return self.chats.prompt(messages, options)

    def prompt(self, prompt: str | Iterable[int] | ChatPrompt) -> list[int] | ChatPrompt:
        """A prompt that is ready for `answer`. Raises TextError and ContextLengthError."""
        return prompt if isinstance(prompt, ChatPrompt) else self.tokens(prompt)

    def tokens(self, prompt: str | Iterable[int]) -> list[int]:
        """The tokens of a prompt. A text has BOS exactly once, though it may spell it out itself;
        so it has EOS, where the model's file asks for it.

        Raises TextError, and ContextLengthError at once for a text that can't fit, however few
        tokens it makes: to count them could take minutes.
        """
        if not isinstance(prompt, str):
            return self.ids(prompt)
        context = self.most_tokens
        if len(prompt) > USUAL_CHARACTERS * context:
            least = len(prompt) // self._longest_piece
            if least > context:
                raise ContextLengthError(
                    f"the prompt's {len(prompt)} characters are at least {least} tokens, more than "
                    f"the context of {context}; shorten it, or load the model with a larger context"
                )
        return self.tokenizer.encode_whole(prompt)

    @cached_property
    def _longest_piece(self) -> int:
        return max(len(self.tokenizer.piece(token)) for token in range(self.tokenizer.vocab_size))

    def ids(self, ids: Any) -> list[int]:
        """Token ids, all of them ones that exist. Raises TextError."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise TextError(f"a {type(ids).__name__} is not a list of token ids")
        tokens: list[int] = []
        for token in cast("Iterable[Any]", ids):
            if not is_whole(token) or not 0 <= token < self.model.vocab_size:
                raise TextError(
                    f"there is no token {token!r}; ids are whole numbers from 0 to "
                    f"{self.model.vocab_size - 1}"
                )
            tokens.append(int(token))
        return tokens

    def answer(
        self,
        prompt: list[int] | ChatPrompt,
        options: Mapping[str, Any],
        on_end: Callable[[Stream], None] | None = None,
    ) -> Stream:
        """Starts an answer. Raises ContextLengthError, OptionError, TextError or CancelledError."""
        chat = prompt if isinstance(prompt, ChatPrompt) else ChatPrompt(prompt)
        prompt = chat.tokens
        context = self.most_tokens
        room = context - len(prompt)
        if not prompt:
            raise TextError("prompt: it is empty, and this model needs a token to begin with")
        if room <= 0:
            raise ContextLengthError(
                f"the prompt's {len(prompt)} tokens leave no room for an answer in a context of "
                f"{context}; shorten it, or load the model with a larger context"
            )
        ask = read_options(options)
        deltas = SimpleQueue[Delta]()
        request = Generation(
            prompt,
            self.engine.sequence(),
            deltas.put,
            sampler=Sampler(
                ask.sampling, self.model.vocab_size, self._guide(chat, ask), self.tokenizer.piece
            ),
            detokenizer=Detokenizer(self.tokenizer, shown=chat.shown),
            max_tokens=room if ask.max_tokens is None else min(ask.max_tokens, room),
            stop_ids=frozenset() if ask.ignore_eos else self.tokenizer.stop_ids,
            stops=ask.stops,
            terms=ask.terms,
        )
        self._submit(request)
        return Stream(request, deltas, on_end, chat.parser())

    def _guide(self, chat: ChatPrompt, ask: Ask) -> Guide | None:
        """A grammar's guide, which takes no token unseen whose probability is asked for."""
        is_plain = chat.thoughts is None and chat.convention is None
        grammar = ask.grammar if is_plain else self.chats.constraint(chat, ask.grammar)
        if grammar is None:
            return None
        if ask.ignore_eos:
            raise OptionError(f"ignore_eos: it can't be kept to with {grammar.field}; leave it out")
        return self.guides.guide(grammar, forces=ask.sampling.logprobs is None)

    def _submit(self, request: Request) -> None:
        """Raises MemoryLimitError while there is no memory for more, and CancelledError."""
        relief, now_s = self.engine.relief, time.perf_counter()
        if relief.is_short(now_s):
            self.driver.do(lambda: relief.tend(now_s))
            relief.admit()
        self.driver.submit(request)

    def relieve(self) -> None:
        """Acts, if memory is short, though no one asks for anything."""
        relief, now_s = self.engine.relief, time.perf_counter()
        if relief.is_short(now_s):
            self.driver.do(lambda: relief.tend(now_s))

    def score(self, ids: Iterable[int]) -> npt.NDArray[np.float32]:
        """The logits [n, vocab_size] behind each token; raises what `LLM.logits` says."""
        tokens = self.ids(ids)
        context, width = self.most_tokens, self.model.vocab_size
        if not tokens:
            raise TextError("ids: there are no tokens to compute logits for")
        if len(tokens) > context:
            raise ContextLengthError(f"{len(tokens)} tokens are more than the context of {context}")
        deltas = SimpleQueue[Delta]()
        try:
            scoring = Scoring(tokens, self.engine.sequence(), deltas.put, width)
        except MemoryError:
            n_bytes = 4 * len(tokens) * width
            raise MemoryLimitError(
                f"the logits of {len(tokens)} tokens take {n_bytes} bytes; ask for fewer at a time"
            ) from None
        self._submit(scoring)
        with Stream(scoring, deltas) as stream:
            stream.result()
        return scoring.logits

    def embeddings(self, texts: Iterable[str | Iterable[int]], pooling: Pooling) -> Embeddings:
        """Vectors for texts, begun when their result is asked for; raises what `LLM.embed` says."""
        pooled, context = read_pooling(pooling), self.model.context_length
        if not isinstance(texts, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TextError(f"a {type(texts).__name__} is not a list of texts")
        prompts = [self.tokens(text) for text in texts]
        if not prompts:
            raise TextError("texts: there are none to embed")
        for number, prompt in enumerate(prompts, 1):
            if not prompt:
                raise TextError(f"text {number}: there are no tokens to embed")
            if len(prompt) > context:
                raise ContextLengthError(
                    f"text {number}: its {len(prompt)} tokens are more than the context of "
                    f"{context}; shorten it, or load the model with a larger context"
                )

        def begin(prompt: Sequence[int]) -> tuple[Embedding, Stream]:
            return begin_embedding(prompt, self.engine.sequence(), pooled, self._submit)

        return Embeddings(prompts, begin)
