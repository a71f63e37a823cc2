"""The pictures of the chat page in docs/: `python -m tests.serve.make_screenshots [MODEL]`.

What they show is what the model said: SmolLM2 by default, greedy, so that they can be made again.
Needs pillow.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser
from tests.serve.browser import PHONE, Chat, chromium, visiting
from tests.serve.served import Served, serving

import satchel

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DESK = {"width": 1080, "height": 720}
COLOURS = 128
LIMIT = 150_000  # bytes of a picture
QUESTIONS = (
    "Give me three ideas for a rainy afternoon, as a list with a bold title each.",
    "Why is the sky blue? Answer in two sentences.",
    "Write a Python function that says if a number is even.",
)


def converse(browser: Browser, served: Served, name: str, **options: object) -> None:
    """Asks in a new visitor's page, and keeps its picture."""
    with visiting(browser, served, device_scale_factor=1.5, **options) as chat:
        chat.settings(temperature="0", max_tokens="220")
        for question in QUESTIONS:
            chat.page.keyboard.press("Control+k")
            chat.ask(question)
        follow_up(chat)
        path = IMAGES / f"chat-{name}.png"
        chat.page.screenshot(path=path)
        with Image.open(path) as picture:
            few = picture.convert("RGB").quantize(COLOURS)
        few.save(path, optimize=True)
        size = path.stat().st_size
        print(f"{path.name}: {size} bytes", file=sys.stderr)
        assert size < LIMIT, f"{path.name} is too large for docs"


def follow_up(chat: Chat) -> None:
    """A second question, which the cache helps to answer; what is shown is at rest."""
    chat.ask("Now one that says if it is odd.")
    chat.page.mouse.move(0, 0)
    chat.page.wait_for_timeout(2500)  # the meters have come to rest


def main(model: str = "smollm2") -> None:
    """Makes all pictures."""
    IMAGES.mkdir(exist_ok=True)

    def load(reference: str) -> satchel.LLM:
        return satchel.load(reference, context=2048)

    with serving(load, [model]) as served, chromium() as browser:
        converse(browser, served, "light", viewport=DESK, color_scheme="light")
        converse(browser, served, "dark", viewport=DESK, color_scheme="dark")
        converse(browser, served, "phone", viewport=PHONE, is_mobile=True, has_touch=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
