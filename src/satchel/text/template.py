"""Chat templates: programs in model files that write a conversation as the model learned it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from satchel.base.errors import TemplateError
from satchel.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from satchel.text.sandbox import Program


class ChatTemplate:
    """A chat template with the texts of the BOS and EOS tokens that it may print.

    Rendering is bounded in time and space: a template comes from a file of unknown origin.
    """

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """Raises TemplateError when there is no source."""
        if not source.strip():
            raise TemplateError("the model has no chat template; complete a plain prompt instead")
        self.source = source
        self.bos = bos
        self.eos = eos

    @cached_property
    def _program(self) -> Program:
        # Brings in jinja2, which not every start needs.
        return importlib.import_module("satchel.text.sandbox").Program(self.source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The conversation as one text, with the beginning of an answer unless told otherwise.

        `extra` are further names that the template may read. Raises TemplateError when the template
        is broken, refuses the messages, or takes too much time or space.
        """
        names = {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos,
            "eos_token": self.eos,
            **extra,
        }
        return self._program.run(names)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **extra: Any,
) -> list[int]:
    """A conversation's tokens. BOS, where the model has it, comes once: from the template or here;
    so does EOS, for the few whose files ask for one after each prompt.

    Raises TemplateError and TextError.
    """
    text = template.render(messages, add_generation_prompt, tools, **extra)
    return tokenizer.encode_whole(text)
