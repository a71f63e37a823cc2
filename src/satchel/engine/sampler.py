"""The next token from a row of logits: what bends it, what filters it, and the draw.

In llama.cpp's order and with its defaults: logit bias, penalties, DRY, top-n-sigma, top-k,
typical-p, top-p, min-p, XTC, temperature. A request's own processors come after its bias, its
constraint before the filters. Mirostat takes the place of the filters.

Each request draws from a generator of its own, so its answer depends on its seed alone and never on
what is computed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from satchel.base.errors import FileFormatError, OptionError
from satchel.engine import filters
from satchel.engine.constraint import Constraint, allowed_ones
from satchel.engine.few import draw_few, is_plain
from satchel.engine.filters import Candidates
from satchel.engine.params import SamplingParams
from satchel.engine.penalties import Dry, last, penalize_repeats
from satchel.engine.rows import largest, strip_maxima, updated_maxima
from satchel.runtime.batch import RANKED, STRIP

if TYPE_CHECKING:
    from satchel.engine.filters import Floats
    from satchel.engine.params import Processor
    from satchel.engine.rows import Logits, Row

COLDEST = 1e-200  # a lower temperature would do the same, but overflow


class Sampler:
    """Chooses the tokens of one request.

    Its random numbers are the raw 64-bit outputs of numpy's PCG64(seed), one for each token drawn
    and one more where XTC is on, which numpy keeps the same in all its versions.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        constraint: Constraint | None = None,
        piece: Callable[[int], bytes] | None = None,
    ) -> None:
        """`piece`: a token's text, which DRY asks for. Raises OptionError when the bias names a
        token that does not exist.
        """
        for token in params.logit_bias:
            if not 0 <= token < vocab_size:
                raise OptionError(
                    f"logit_bias: there is no token {token}; ids are 0 to {vocab_size - 1}"
                )
        self.params = params
        self.constraint = constraint
        self.biased_ids = np.array(list(params.logit_bias), dtype=np.intp)
        self.biases = np.array(list(params.logit_bias.values()), dtype=np.float32)
        self.is_ranked = 0 < params.top_k < vocab_size
        self.penalizes = bool(params.repeat_last_n) and (
            params.repeat_penalty != 1
            or params.presence_penalty != 0
            or params.frequency_penalty != 0
        )
        self.dry: Dry | None = None
        if params.dry_multiplier and params.dry_penalty_last_n:
            assert piece is not None, "DRY needs the text of tokens"
            self.dry = Dry(params, piece)
        self.is_cold = params.temperature <= 0 and not params.dynatemp_range
        # of the filters, only these may leave out the likeliest token
        self.is_greedy = self.is_cold and params.typical_p == 1 and not params.xtc_probability
        self.random = None if self.is_greedy else np.random.PCG64(params.seed)
        self.bits: list[int] = []  # random numbers to come, the next one last
        bends = self.penalizes or self.dry or params.processors or params.logit_bias or constraint
        # whether the likeliest tokens of the model's own logits are all that is asked for
        self.takes_ranks = not bends and (
            self.is_greedy
            or (0 < params.top_k <= RANKED and params.top_n_sigma <= 0 and not params.mirostat)
        )
        self.takes_few = self.takes_ranks and is_plain(params)
        self.mu = 2 * params.mirostat_tau  # the most surprise that mirostat allows, in bits

    @property
    def is_done(self) -> bool:
        """Whether a constraint says that the answer is complete."""
        return self.constraint is not None and self.constraint.is_done

    def forced(self) -> Sequence[int]:
        """The tokens that follow the one picked last in any case, and need no picking."""
        return () if self.constraint is None else self.constraint.forced()

    def pick(self, logits: Logits, place: int, history: Sequence[int]) -> int:
        """The token that follows `history`, given one of the rows of a step's logits.

        Raises as `choose` does. A look at the whole row is spared where the few greatest are all
        that is asked for.
        """
        at = RANKED * place
        if not self.takes_ranks or (first := logits.ids[at]) < 0:
            return self.choose(logits.rows[place], history, logits.maxima[place])
        if self.random is None:
            return first
        few = logits.greatest[at : at + self.params.top_k]
        if self.takes_few:
            return logits.ids[at + draw_few(few, self.params, self._random())]
        ids = np.array(logits.ids[at : at + len(few)])
        c = Candidates(ids, np.array(few, np.float64), is_ranked=True)
        return self._draw_among(self._filtered(c))

    def choose(self, row: Row, history: Sequence[int], maxima: Row | None = None) -> int:
        """The token that follows `history`, given its row of logits [vocab], which is not changed.

        `maxima` are those of the row's strips; found here if not given. Of equal logits the lower
        id comes first. The constraint goes on by the token. Raises FileFormatError for logits that
        are not numbers, OptionError when every token is banned or a processor fails, and what the
        constraint raises.
        """
        if maxima is None:
            maxima = strip_maxima(row)
        row, maxima = self.bent(row, history, maxima)
        strip = int(maxima.argmax())  # of the first NaN, if there is one
        self._check(float(maxima[strip]))
        if self.random is None:
            first = strip * STRIP
            token = first + int(row[first : first + STRIP].argmax())
        else:
            token = self._draw(row, maxima)
        if self.constraint is not None:
            self.constraint.accept(token)
        return token

    def _check(self, highest: float) -> None:
        given = {
            "logit_bias": self.params.logit_bias,
            "processors": self.params.processors,
            "constraint": self.constraint is not None,
        }
        causes = " with ".join(name for name, value in given.items() if value)
        if highest == -math.inf and causes:
            raise OptionError(f"{causes}: it bans every token; leave one")
        if not math.isfinite(highest):
            raise FileFormatError(
                f"the model computed {highest} as a logit; its file is damaged: fetch it again"
            )

    def bent(self, logits: Row, history: Sequence[int], maxima: Row) -> tuple[Row, Row]:
        """Logits and maxima with bias, processors, penalties and constraint; the very same arrays
        when there are none.
        """
        p = self.params
        recent = last(history, p.repeat_last_n) if self.penalizes else ()
        allowed = self.constraint.allowed() if self.constraint is not None else None
        if not (len(self.biases) or recent or self.dry or p.processors or allowed is not None):
            return logits, maxima
        row, changed = logits.copy(), [self.biased_ids]
        row[self.biased_ids] += self.biases
        for processor in p.processors:
            row = processed(processor, history, row)
        if recent:
            changed.append(penalize_repeats(row, recent, p))
        if self.dry:
            changed.append(self.dry.penalize(row, history))
        if allowed is not None:
            row = np.where(allowed_ones(allowed, len(row)), row, np.float32(-math.inf))
        if p.processors or allowed is not None:
            return row, strip_maxima(row)
        return row, updated_maxima(maxima, row, np.concatenate(changed))

    def _draw(self, row: Row, maxima: Row) -> int:
        if self.params.mirostat:
            return self._mirostat(row)
        return self._draw_among(self.filtered(row, maxima))

    def _draw_among(self, c: Candidates) -> int:
        temperature = self.temperature(c)
        if temperature <= 0:
            return int(c.ids[c.logits.argmax()])
        return int(c.ids[draw(tempered(c, temperature), self._random())])

    def filtered(self, row: Row, maxima: Row) -> Candidates:
        """What all filters leave. They stand from the likeliest down, but in order of id where no
        filter asks for their ranks.

        What top-n-sigma, top-k, top-p and min-p leave are each the first so many by rank, so their
        order does not matter, as long as what each refers to is taken from before the others: the
        cheap ones are applied first.
        """
        p = self.params
        if self.is_ranked:
            ids, kept = largest(row, maxima, p.top_k)
        else:
            ids, kept = np.arange(len(row)), row
        c = Candidates(ids, kept.astype(np.float64), self.is_ranked)
        if p.top_n_sigma > 0:
            c = c.keep(c.logits >= filters.sigma_floor(row, p.top_n_sigma))
        return self._filtered(c)

    def _filtered(self, c: Candidates) -> Candidates:
        p = self.params
        if p.typical_p < 1:
            c = filters.typical(c, p.typical_p)
        enough = p.top_p * c.total if p.top_p < 1 else 0
        if p.min_p > 0:
            c = filters.min_p(c, p.min_p)
        if p.top_p < 1:
            c = filters.top_p(c, enough)
        if p.xtc_probability and self._random() < p.xtc_probability * 2.0**64:
            c = filters.xtc(c, p.xtc_threshold)
        return c

    def temperature(self, c: Candidates) -> float:
        """At which one of the candidates is drawn; 0 or less: the likeliest is taken."""
        p = self.params
        if not p.dynatemp_range:
            return p.temperature
        return filters.dynamic_temperature(c, p.temperature, p.dynatemp_range, p.dynatemp_exponent)

    def _mirostat(self, row: Row) -> int:
        """Mirostat 2.0: the surprise of each token drawn corrects how surprising the next may be.
        Basu and others, 2020, arXiv:2007.14966.
        """
        p = self.params
        logits = row.astype(np.float64) / max(p.temperature, COLDEST)
        c = Candidates(np.arange(len(row)), logits, is_ranked=False)
        c = filters.surprising(c, self.mu)
        at = draw(c.weights, self._random())
        self.mu -= p.mirostat_eta * (float(c.surprise[at]) / math.log(2) - p.mirostat_tau)
        return int(c.ids[at])

    def _random(self) -> int:
        bits = self.bits or self._more_bits()
        return bits.pop()

    def _more_bits(self) -> list[int]:
        """Many at a time: to ask numpy for each takes longer."""
        assert self.random is not None
        self.bits = self.random.random_raw(64).tolist()[::-1]
        return self.bits


def processed(processor: Processor, history: Sequence[int], logits: Row) -> Row:
    """What a caller's own function makes of a row that it may change. Raises OptionError, naming
    it, whatever it does wrong: it runs among other people's requests.
    """
    name = getattr(processor, "__name__", type(processor).__name__)
    try:
        given = processor(tuple(history), logits)
        row = logits if given is None else np.array(given, np.float32)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise OptionError(f"processors: {name} failed: {reason}") from error
    if row.shape != logits.shape:
        raise OptionError(f"processors: {name} gave logits {row.shape}, not {logits.shape}")
    if not row.max() < math.inf:  # NaN is not either
        raise OptionError(f"processors: {name} gave NaN or inf as a logit (-inf bans a token)")
    return row


def tempered(c: Candidates, temperature: float) -> Floats:
    """Their weights at a temperature."""
    return np.exp((c.logits - c.highest) / max(temperature, COLDEST))


def draw(weights: Floats, random: int) -> int:
    """The index that 64 random bits choose, each in proportion to its weight."""
    sums = weights.cumsum()
    total = float(sums[-1])
    point = (random >> 11) * 2.0**-53 * total  # from 0 up to, but without, the total
    most = int(sums.searchsorted(total))  # where rounding must not lead past
    return min(int(sums.searchsorted(point, side="right")), most)
