"""A real browser for tests of the chat page, and a server to chat with."""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.engine.fake import FakeModel
from tests.serve.served import Served, serving
from tests.test_api import make, says

expect.set_options(timeout=60_000)
PHONE = {"width": 390, "height": 844}
# What a browser says of every status above 399, whether the page deals with it or not.
EXPECTED = "Failed to load resource"


class Paced(FakeModel):
    """Takes its time for each step, so that an answer can be watched."""

    def run(self, batch: Any) -> Any:
        time.sleep(0.01)
        return super().run(batch)


@contextmanager
def chatting(text: str, *, paced: bool = False, **settings: Any) -> Generator[Served]:
    """A server whose model gives this answer to everything."""
    kind = Paced if paced else FakeModel
    sizes = {"context_length": 4096, "n_pages": 256, "max_batch": 256}
    with serving(lambda _: make(says(text), kind=kind, **sizes), **settings) as served:
        yield served


@contextmanager
def chromium() -> Generator[Browser]:
    """Debian's Chromium, or the Chrome that is here; a failure that says what to install."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for found in map(shutil.which, names) if found), None)
    if path is None:
        pytest.fail("the chat page's tests need Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # it shows our own pages only; in containers its sandbox can't be had
        browser = playwright.chromium.launch(executable_path=str(Path(path)), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Chat:
    """The page in a browser's tab, and what a user does there."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.asked: list[dict[str, Any]] = []  # bodies of requests for answers
        page.set_default_timeout(60_000)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._requested)
        page.goto(url)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning") and EXPECTED not in message.text:
            self.problems.append(message.text)

    def _requested(self, request: Any) -> None:
        assert request.url.startswith((self.url, "data:", "blob:")), request.url
        if request.url.endswith("/v1/chat/completions"):
            self.asked.append(request.post_data_json)

    def ask(self, text: str, wait: bool = True) -> None:
        self.page.fill("#ask", text)
        self.page.press("#ask", "Enter")
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until the answer has ended."""
        expect(self.page.locator("#send")).to_have_attribute("aria-label", "Send")

    @property
    def prose(self) -> Any:
        return self.page.locator(".turn.assistant .prose").last

    @property
    def turns(self) -> Any:
        return self.page.locator(".turn")

    @property
    def titles(self) -> list[str]:
        return self.page.locator("#chats .open").all_inner_texts()

    def colour(self) -> str:
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def menu(self, title: str, deed: str) -> None:
        """Chooses from the menu of a conversation."""
        item = self.page.locator("#chats li", has_text=title)
        item.hover()
        item.locator(".more").click()
        self.page.get_by_role("menuitem", name=deed).click()

    def settings(self, **chosen: str) -> None:
        """Fills in settings, and closes them."""
        self.page.click("#open-settings")
        for name, value in chosen.items():
            self.page.fill(f"#s-{name}", value)
        self.page.get_by_role("button", name="Done").click()


@contextmanager
def visiting(browser: Browser, served: Served, **options: Any) -> Generator[Chat]:
    """A new visitor, with nothing kept; fails when the console tells of an error."""
    context = browser.new_context(**{"locale": "en-US", **options})
    try:
        chat = Chat(context.new_page(), served.url)
        yield chat
        assert chat.problems == []
    finally:
        context.close()
