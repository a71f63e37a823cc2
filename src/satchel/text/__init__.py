"""Text: tokenizers, the streaming detokenizer, chat templates."""

from satchel.text.detokenizer import Detokenizer
from satchel.text.template import ChatTemplate, encode_chat
from satchel.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Tokenizer", "encode_chat", "load_tokenizer"]
