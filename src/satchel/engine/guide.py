"""Answers that keep to a grammar: llguidance tells, token by token, what may come next.

It is told the bytes of every token once for each model. What may come next is found out on a thread
beside the model's step, from the moment that a token is chosen. Where the grammar leaves but one
text, its tokens are taken at once, and the model computes them in one step.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from satchel.base.errors import OptionError
from satchel.base.threads import room_for_a_thread
from satchel.engine.constraint import WORD
from satchel.text.grammar import Grammar, explain, matcher
from satchel.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    import numpy.typing as npt
    from llguidance import LLMatcher, LLTokenizer

    Mask = npt.NDArray[np.uint32]

KEPT = 32  # compiled grammars
N_THREADS = 2
MAX_STATES = 50_000  # of an answer's lexer, each of up to 2 kB


class Guides:
    """Makes the guides of one model's answers. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` is the length of a row of logits, the tokenizer's or more."""
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.lock = threading.Lock()
        self.compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()  # the coldest first
        self.pool: ThreadPoolExecutor | None = None

    def guide(self, grammar: Grammar, *, forces: bool = True) -> Guide:
        """What an answer follows from its first token on; with `forces` it takes forced tokens.

        Raises OptionError for a grammar that is broken, too large, or can't be kept to.
        """
        with self.lock:
            if grammar not in self.compiled:
                self.compiled[grammar] = self._compile(grammar)
            self.compiled.move_to_end(grammar)
            while len(self.compiled) > KEPT:
                self.compiled.popitem(last=False)
            pool = self.pool = self.pool or _threads()
            state = self.compiled[grammar].deep_copy()
        return Guide(grammar, state, self.vocabulary, pool, forces=forces)

    def close(self) -> None:
        """Ends the threads."""
        with self.lock:
            if self.pool is not None:
                self.pool.shutdown()
                self.pool = None

    @cached_property
    def vocabulary(self) -> Words:
        """Takes a second for a quarter of a million tokens."""
        return Words(self.tokenizer, self.vocab_size)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLParserLimits

        limits = LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
        table = self.vocabulary.table
        state = matcher()(table, grammar.text, log_level=0, limits=limits)
        problems = [state.get_error()] if state.is_error() else state.get_grammar_warnings()
        if problems:
            raise explain(grammar, problems[0])
        return state


def _threads() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # which an answer without a guide can spare

    return ThreadPoolExecutor(N_THREADS, "satchel-guide")


class Reader:
    """A model's tokenizer in the shape that llguidance asks for.

    It knows nothing of the table that holds it: a ring that is half in Rust would never be freed.
    """

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], stops: list[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = stops
        self.eos_token_id = stops[0]
        self.bos_token_id = tokenizer.bos
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of a text."""
        read = text.decode(errors="replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(read, parse_special=False)


class Words:
    """A model's tokens as llguidance reads them."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Raises OptionError for a model without a token that ends an answer."""
        from llguidance import LLTokenizer

        stops = sorted(tokenizer.stop_ids)
        if not stops:
            raise OptionError("grammar: this model has no token to end an answer with")
        self._tokenizer = tokenizer
        is_text = [not tokenizer.is_special(token) for token in range(tokenizer.vocab_size)]
        tokens = [
            tokenizer.piece(token) if is_text[token] or token in stops else b""
            for token in range(tokenizer.vocab_size)
        ] + [b""] * (vocab_size - tokenizer.vocab_size)
        usable = np.zeros(-(-vocab_size // WORD) * WORD, bool)
        usable[: len(is_text)] = is_text
        usable[stops] = True
        self.usable: Mask = np.packbits(usable, bitorder="little").view("<u4")
        self._reader = Reader(tokenizer, tokens, stops)
        self.table: LLTokenizer = LLTokenizer(self._reader, n_vocab=vocab_size, eos_token=stops)  # pyright: ignore[reportArgumentType]
        self._reader.tokens = []  # they are in the table now

    def certain(self, forced: bytes) -> list[int]:
        """Tokens that a text certain to come begins with: all but the last, which could be longer
        when more is known.
        """
        ids = self._reader(forced.decode(errors="ignore"))[:-1]
        same = forced.startswith(b"".join(map(self._tokenizer.piece, ids)))
        return ids if same else []  # where a text of its own gets a space before it


class Guide:
    """Follows one answer through a grammar. See engine.constraint.Constraint."""

    def __init__(
        self,
        grammar: Grammar,
        state: LLMatcher,
        words: Words,
        pool: ThreadPoolExecutor,
        *,
        forces: bool,
    ) -> None:
        self.grammar = grammar
        self.forces = forces
        self.n_masks = 0
        self.mask_s = 0.0  # that finding all of them took
        self.is_done = False
        self._state = state
        self._words = words
        self._pool = pool
        self._forced: list[int] = []
        self._next = self._submit()

    def allowed(self) -> Mask:
        """Raises OptionError where the grammar got too hard, or no token goes on as it says."""
        mask = self._next.result()
        if not mask.any():
            raise self._stuck()
        return mask

    def accept(self, token: int) -> None:
        self._next.result()  # one thread at a time
        if not self._state.consume_token(token):
            error = self._state.get_error()
            # where it wants a byte that no token begins with, its mask is wrong
            raise self._stuck() if "satisfy" in error else explain(self.grammar, error)
        self.is_done = self._state.is_stopped()
        if self.is_done:
            return
        if self.forces and len(forced := self._state.compute_ff_bytes()) > 1:
            ids = self._words.certain(forced)
            self._forced = ids[: self._state.try_consume_tokens(ids)]
        self._next = self._submit()

    @property
    def mask_ms(self) -> float:
        """What a mask took on average."""
        return 1000 * self.mask_s / max(1, self.n_masks)

    def forced(self) -> Sequence[int]:
        """The tokens that follow the one accepted last in any case, and are accepted too."""
        ids, self._forced = self._forced, []
        return ids

    def _stuck(self) -> OptionError:
        return OptionError(f"{self.grammar.field}: this model has no token to go on as it asks for")

    def _submit(self) -> Future[Mask]:
        with room_for_a_thread():  # which the pool starts when it has less than it may have
            return self._pool.submit(self._mask)

    def _mask(self) -> Mask:
        begin_s = time.perf_counter()
        words = np.frombuffer(self._state.compute_bitmask(), "<u4")
        if self._state.is_error():  # it would only ask for an end
            raise explain(self.grammar, self._state.get_error())
        mask = words[: len(self._words.usable)] & self._words.usable
        self.n_masks += 1
        self.mask_s += time.perf_counter() - begin_s
        return mask
