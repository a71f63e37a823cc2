"""The version of this software, where asking the installed package would take too long."""

VERSION = "0.1.0"  # as in pyproject.toml; a test compares them
