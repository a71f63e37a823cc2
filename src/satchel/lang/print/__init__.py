"""Printers: lowered functions as LLVM's text, and as Python over numpy."""
