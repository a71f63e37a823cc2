"""The chat page in a real browser, with a model that says what tests tell it, and a real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from tests.serve.browser import PHONE, Chat, chatting, chromium, visiting
from tests.serve.served import Served, wait_for

pytestmark = pytest.mark.slow

ANSWER = "First comes **this**.\n\nThen `that`:\n\n```python\nprint('hi')\n```\n\n- one\n- two\n"
LONG = " ".join(f"word{i}" for i in range(300))
NASTY = """<img src=x onerror="document.title='hit'"> <script>document.title='hit'</script>

[a](javascript:alert(1)) [b](data:text/html,x) [c](JaVaScRiPt:alert(1)) [d](vbscript:x)
![pixel](https://evil.example/p.png) <https://ok.example/x> [e](//evil.example) [f](/v1/models)
**<svg onload=alert(1)>** `<b>code</b>` [<i>g</i>](https://ok.example/?a="onclick=1)

```html"onmouseover=alert(1)
</code><script>document.title='hit'</script>
```

| <b>h</b> | x |
|---|---|
| <iframe src=javascript:alert(1)> | [y](javascript:1) |
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def quick() -> Iterator[Served]:
    with chatting(ANSWER) as served:
        yield served


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    with chatting(LONG, paced=True) as served:
        yield served


@pytest.fixture
def chat(browser: Browser, quick: Served) -> Iterator[Chat]:
    with visiting(browser, quick) as visitor:
        yield visitor


@pytest.fixture
def patient(browser: Browser, slow: Served) -> Iterator[Chat]:
    """A chat whose answer takes half a minute."""
    with visiting(browser, slow) as visitor:
        yield visitor
    wait_for(lambda: slow.server.in_flight == 0)


def test_an_answer_is_drawn_as_markdown_with_what_it_took(chat: Chat) -> None:
    chat.ask("What comes first?")
    expect(chat.prose.locator("strong")).to_have_text("this")
    expect(chat.prose.locator("li")).to_have_text(["one", "two"])
    expect(chat.prose.locator("pre code")).to_have_text("print('hi')")
    expect(chat.prose.locator("figcaption span")).to_have_text("python")
    expect(chat.page.locator(".took")).to_contain_text(f"{len(ANSWER) + 1} tokens, ")
    expect(chat.page.locator("#context-says")).to_contain_text("of 4,096 tokens of context")
    expect(chat.page.locator(".gauge")).to_contain_text("% of the KV cache")
    assert chat.page.title() == "What comes first? · Satchel"
    said = chat.page.locator("#spoken p").all_inner_texts()
    assert said[0] == "First comes this."  # each block is read out once
    assert len(said) == 4


def test_an_answer_streams_and_escape_stops_it(patient: Chat, slow: Served) -> None:
    patient.ask("Go on", wait=False)
    expect(patient.prose).to_contain_text("word2")
    expect(patient.page.locator("#send")).to_have_attribute("aria-label", "Stop")
    expect(patient.page.locator("#speed")).to_contain_text("tokens/s")
    assert slow.server.in_flight == 1
    patient.page.keyboard.press("Escape")
    patient.wait()
    wait_for(lambda: slow.server.in_flight == 0)  # the server has stopped too
    assert "word299" not in patient.prose.inner_text()
    expect(patient.page.locator(".took")).to_have_text("stopped")
    patient.ask("And on?", wait=False)  # a stopped answer is part of the conversation
    expect(patient.prose).to_contain_text("word0")
    patient.page.click("#send")
    patient.wait()
    roles = [message["role"] for message in patient.asked[1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_conversations_answer_side_by_side(patient: Chat, slow: Served) -> None:
    patient.ask("One", wait=False)
    expect(patient.prose).to_contain_text("word0")
    patient.page.keyboard.press("Control+k")
    expect(patient.turns).to_have_count(0)
    patient.ask("Two", wait=False)
    expect(patient.prose).to_contain_text("word0")
    assert slow.server.in_flight == 2
    expect(patient.page.locator("#chats [data-busy]")).to_have_count(2)
    patient.page.keyboard.press("Escape")
    expect(patient.page.locator("#chats [data-busy]")).to_have_count(1)
    patient.page.locator("#chats .open", has_text="One").click()
    before = len(patient.prose.inner_text())
    expect(patient.page.locator("#send")).to_have_attribute("aria-label", "Stop")
    patient.page.wait_for_function(
        "n => document.querySelector('.prose').textContent.length > n", arg=before
    )
    patient.menu("One", "Delete")  # an answer in the making ends with it
    wait_for(lambda: slow.server.in_flight == 0)
    assert patient.titles == ["Two"]


def test_an_answer_is_made_again(chat: Chat) -> None:
    chat.ask("Hm?")
    chat.page.get_by_role("button", name="Answer again").click()
    expect(chat.turns).to_have_count(2)
    chat.wait()
    assert chat.asked[0] == chat.asked[1]


def test_the_last_question_can_be_changed(chat: Chat) -> None:
    chat.ask("First")
    chat.ask("Secnod")
    chat.page.press("#ask", "ArrowUp")
    field = chat.page.get_by_label("Your question").first
    expect(field).to_have_value("Secnod")
    field.press("Escape")
    expect(chat.turns).to_have_count(4)
    chat.page.locator(".turn.user").last.hover()
    chat.page.get_by_role("button", name="Edit and ask again").click()
    field.fill("Second")
    field.press("Enter")
    chat.wait()
    expect(chat.turns).to_have_count(4)
    texts = [message["content"] for message in chat.asked[-1]["messages"]]
    assert texts == ["First", ANSWER, "Second"]


def test_conversations_survive_a_reload(chat: Chat) -> None:
    chat.ask("Remember me")
    chat.page.click("#new")
    chat.ask("Me too")
    chat.page.reload()
    expect(chat.page.locator("#title")).to_have_text("Me too")
    assert chat.titles == ["Me too", "Remember me"]
    chat.page.locator("#chats .open", has_text="Remember me").click()
    expect(chat.turns).to_have_count(2)
    expect(chat.prose.locator("strong")).to_have_text("this")
    chat.ask("Go on")  # with what the server has kept
    assert [m["content"] for m in chat.asked[-1]["messages"]] == ["Remember me", ANSWER, "Go on"]
    expect(chat.page.locator(".took").last).to_contain_text("prompt tokens cached")


def test_an_answer_that_a_reload_cuts_off_is_kept(patient: Chat, slow: Served) -> None:
    patient.ask("Go on", wait=False)
    expect(patient.prose).to_contain_text("word2")
    patient.page.reload()
    wait_for(lambda: slow.server.in_flight == 0)
    expect(patient.prose).to_contain_text("word0 word1 word2")
    expect(patient.page.locator(".took")).to_have_text("stopped")


def test_conversations_are_named_and_deleted(chat: Chat) -> None:
    chat.ask("Old name")
    chat.menu("Old name", "Rename")
    field = chat.page.get_by_label("Name of the conversation")
    field.fill("Dropped")
    field.press("Escape")
    assert chat.titles == ["Old name"]
    chat.menu("Old name", "Rename")
    field.fill("New <b>name</b>")
    field.press("Enter")
    expect(chat.page.locator("#title")).to_have_text("New <b>name</b>")
    chat.menu("New", "Delete")
    expect(chat.turns).to_have_count(0)
    assert chat.titles == []
    chat.page.get_by_role("button", name="Undo").click()
    expect(chat.turns).to_have_count(2)
    chat.page.click("#clear")
    chat.page.get_by_role("button", name="Keep them").click()
    assert len(chat.titles) == 1
    chat.page.click("#clear")
    chat.page.get_by_role("button", name="Delete all").click()
    expect(chat.page.locator("#chats .open")).to_have_count(0)
    assert not chat.page.evaluate("Object.keys(localStorage).filter(k => k.includes('chat.'))")


def test_conversations_are_exported(chat: Chat) -> None:
    chat.settings(system="Be kind")
    chat.ask("Export: a/b?")
    saved: dict[str, Any] = {}
    for kind in ("JSON", "Markdown"):
        with chat.page.expect_download() as download:
            chat.menu("Export", f"Export as {kind}")
        saved[kind] = Path(download.value.path()).read_text(encoding="utf-8")
    found = json.loads(saved["JSON"])
    assert found["title"] == "Export: a/b?"
    assert [m["role"] for m in found["messages"]] == ["system", "user", "assistant"]
    assert found["messages"][2]["content"] == ANSWER
    assert saved["Markdown"].startswith("# Export: a/b?\n\n## System\n\nBe kind\n\n## You\n\n")
    assert ANSWER in saved["Markdown"]


def test_settings_reach_the_request_and_stay(chat: Chat) -> None:
    chat.ask("Plain")
    assert set(chat.asked[0]) == {"messages", "model", "stream", "stream_options"}
    chosen = {"temperature": "0.3", "top_p": "0.9", "max_tokens": "20", "seed": "7"}
    chat.settings(system="Be brief", **chosen)
    chat.page.reload()
    chat.page.click("#open-settings")
    expect(chat.page.locator("#s-temperature")).to_have_value("0.3")
    chat.page.select_option("#s-model", "fake")
    chat.page.keyboard.press("Escape")
    chat.ask("Chosen")
    asked = chat.asked[1]
    assert {name: asked[name] for name in chosen} == {
        "temperature": 0.3, "top_p": 0.9, "max_tokens": 20, "seed": 7,
    }  # fmt: skip
    assert asked["model"] == "fake"
    assert asked["messages"][0] == {"role": "system", "content": "Be brief"}
    expect(chat.page.locator(".took").last).to_contain_text("cut off at the limit of tokens")
    chat.page.click("#new")  # new conversations go on with them
    chat.page.click("#open-settings")
    expect(chat.page.locator("#s-seed")).to_have_value("7")
    chat.page.get_by_role("button", name="Empty all").click()
    expect(chat.page.locator("#s-seed")).to_have_value("")


def test_a_schema_reaches_the_request(chat: Chat) -> None:
    chat.settings(schema='{"type": oops}')
    chat.page.click("#open-settings")
    expect(chat.page.locator("#settings-wrong")).to_contain_text("The JSON schema is not JSON")
    chat.page.keyboard.press("Escape")
    chat.ask("Hm?")
    expect(chat.page.locator(".failed")).to_contain_text("The JSON schema is not JSON")
    assert chat.asked == []
    chat.settings(schema='{"type": "object"}')
    chat.page.get_by_role("button", name="Try again").click()
    chat.wait()
    assert chat.asked[0]["response_format"]["type"] == "json_schema"
    assert chat.asked[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_a_refusal_is_told_and_can_be_tried_again(chat: Chat, quick: Served) -> None:
    chat.settings(top_p="1.5")
    chat.ask("Hm?")
    expect(chat.page.locator(".failed p")).to_contain_text("top_p: 1.5 is not from 0 to 1")
    chat.settings(top_p="")
    chat.page.get_by_role("button", name="Try again").click()
    expect(chat.prose).to_contain_text("First comes this.")
    chat.wait()
    quick.llm._speaker.model.error = ValueError("a fault")  # type: ignore[attr-defined]
    chat.ask("Again?")
    expect(chat.page.locator(".failed p")).to_contain_text("something went wrong in the server")
    chat.page.reload()
    chat.page.get_by_role("button", name="Try again").click()
    chat.wait()
    expect(chat.turns).to_have_count(4)
    expect(chat.page.locator(".failed")).to_have_count(0)


def test_a_server_that_is_gone_is_told(browser: Browser) -> None:
    with chatting(ANSWER) as served, visiting(browser, served) as chat:
        chat.ask("Hm?")
        chat.page.route("**/v1/chat/completions", lambda route: route.abort())
        chat.ask("Still there?")
        expect(chat.page.locator(".failed p")).to_contain_text("cannot be reached")
        chat.page.route(
            "**/v1/chat/completions",
            lambda route: route.fulfill(content_type="text/event-stream", body=HALF_A_STREAM),
        )
        chat.page.get_by_role("button", name="Try again").click()
        expect(chat.page.locator(".failed p")).to_have_text("The answer broke off.")
        expect(chat.prose).to_have_text("Hal")


HALF_A_STREAM = 'data: {"model": "m", "choices": [{"index": 0, "delta": {"content": "Hal"}}]}\n\n'


@pytest.mark.parametrize("show", [lambda chat: chat, lambda chat: chat.page.reload()])
def test_what_a_model_says_is_never_run(browser: Browser, show: Callable[[Chat], Any]) -> None:
    with chatting(NASTY) as served, visiting(browser, served) as chat:
        chat.ask("<img src=x onerror=alert(1)> ")
        show(chat)
        expect(chat.prose).to_contain_text("<img src=x onerror=")
        found = chat.page.evaluate("""() => [...document.querySelectorAll('#talk *, #chats *')]
            .map(e => [e.localName, ...e.getAttributeNames()].join(' '))""")
        assert not {name.split()[0] for name in found} & {"img", "script", "iframe", "b", "i"}
        assert not [name for name in found if " on" in name or " src" in name]
        links = chat.prose.locator("a")
        hrefs = [link.get_attribute("href") for link in links.all()]
        assert set(hrefs) == {
            "https://evil.example/p.png", "https://ok.example/x", "https://ok.example/?a=%22onclick=1",
        }  # fmt: skip
        assert all("noopener" in str(link.get_attribute("rel")) for link in links.all())
        assert "hit" not in chat.page.title()


def test_the_policy_runs_nothing_else(chat: Chat) -> None:
    refused = chat.page.evaluate("""() => {
        try { document.body.innerHTML = '<img>'; } catch (error) { return error.name; }
    }""")
    assert refused == "TypeError"
    assert len(chat.problems) == 1  # the browser tells of it
    assert "TrustedHTML" in chat.problems.pop()
    assert "blocked" in chat.page.evaluate("""() => fetch('https://example.org/x')
        .then(() => 'sent', () => 'blocked')""")
    assert all("Content Security Policy" in problem for problem in chat.problems)
    chat.problems.clear()


def test_colours_follow_the_system_and_the_toggle(chat: Chat) -> None:
    light, dark = "rgb(250, 248, 244)", "rgb(26, 24, 22)"
    chat.page.emulate_media(color_scheme="dark")
    assert chat.colour() == dark
    chat.page.emulate_media(color_scheme="light")
    assert chat.colour() == light
    toggle = chat.page.locator("#theme")
    toggle.click()
    expect(toggle).to_have_text("Light")
    toggle.click()
    expect(toggle).to_have_text("Dark")
    assert chat.colour() == dark
    chat.page.reload()
    assert chat.colour() == dark


def test_a_phone_scrolls_down_only(browser: Browser) -> None:
    wide = "```\n" + "x" * 300 + "\n```\n\n" + "y" * 300 + "\n\n|" + "wide cell|" * 20
    with (
        chatting(f"{wide}\n|" + "-|" * 20) as served,
        visiting(browser, served, viewport=PHONE, has_touch=True, is_mobile=True) as chat,
    ):
        chat.ask("z" * 200)
        expect(chat.prose.locator("table")).to_be_visible()
        assert chat.page.evaluate("document.documentElement.scrollWidth") == 390
        assert chat.page.evaluate("document.querySelector('#scroll').scrollWidth") == 390
        expect(chat.page.locator("#side")).not_to_be_visible()
        chat.page.get_by_role("button", name="Conversations").tap()
        expect(chat.page.locator("#side")).to_be_visible()
        chat.page.get_by_role("button", name="Close the list").tap()
        expect(chat.page.locator("#side")).not_to_be_visible()
        chat.page.tap("#open-settings")
        assert chat.page.evaluate("document.documentElement.scrollWidth") == 390
        chat.page.get_by_role("button", name="Done").tap()


def test_all_can_be_done_by_keys(chat: Chat) -> None:
    page = chat.page
    expect(page.locator("#ask")).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    expect(chat.prose).to_contain_text("First comes this.")
    chat.wait()
    assert chat.asked[0]["messages"][0]["content"] == "one\ntwo"
    page.keyboard.press("Control+k")
    expect(page.locator("#title")).to_have_text("New chat")
    page.keyboard.type("three")
    page.keyboard.press("Enter")
    chat.wait()
    seen: list[str] = []
    page.evaluate("document.activeElement.blur()")
    while "ask" not in seen:  # round all that can be reached
        page.keyboard.press("Tab")
        seen.append(page.evaluate("e => e.id || e.title || e.textContent", focused(chat)))
        outline = page.evaluate("e => getComputedStyle(e).outlineStyle", focused(chat))
        # the question's border shows it; before all there is the document itself
        assert outline != "none" or seen[-1] == "ask" or len(seen) == 1, seen[-1]
        assert len(seen) < 40
    wanted = ["new", "three", "one two", "theme", "clear", "open-settings", "Copy", "Copy", "ask"]
    assert [name for name in seen if name in wanted] == wanted
    page.locator("#chats .more").first.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator("#chats li")).to_have_count(1)


def focused(chat: Chat) -> Any:
    return chat.page.evaluate_handle("document.activeElement")


def test_a_word_that_is_being_composed_is_not_sent(chat: Chat) -> None:
    chat.page.fill("#ask", "にほん")
    chat.page.evaluate("""() => document.querySelector('#ask').dispatchEvent(
        new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))""")
    expect(chat.page.locator("#ask")).to_have_value("にほん")
    expect(chat.turns).to_have_count(0)


def test_code_is_copied(chat: Chat) -> None:
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.ask("Code?")
    chat.prose.get_by_role("button", name="Copy").click()
    expect(chat.prose.get_by_role("button", name="Copied")).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "print('hi')"
    chat.page.get_by_role("button", name="Copy the answer").click()
    expect(chat.page.locator("#notice")).to_contain_text("Copied.")
    assert chat.page.evaluate("navigator.clipboard.readText()") == ANSWER


def test_the_key_is_asked_for_and_stays_in_the_tab(browser: Browser) -> None:
    with chatting(ANSWER, api_key="s3cret") as served, visiting(browser, served) as chat:
        dialog = chat.page.locator("#key")
        expect(dialog).to_be_visible()
        chat.page.fill("#key-text", "wrong")
        chat.page.keyboard.press("Enter")
        expect(chat.page.locator("#key-says")).to_have_text("The key was not accepted.")
        chat.page.get_by_role("button", name="Not now").click()
        chat.ask("Hm?", wait=False)
        expect(dialog).to_be_visible()
        chat.page.fill("#key-text", "s3cret")
        chat.page.keyboard.press("Enter")
        expect(chat.prose).to_contain_text("First comes this.")
        chat.page.reload()
        chat.ask("And now?")
        expect(chat.page.locator(".failed")).to_have_count(0)
        assert "s3cret" not in chat.page.evaluate("JSON.stringify(localStorage)")
        assert "s3cret" in chat.page.evaluate("JSON.stringify(sessionStorage)")


def test_what_is_damaged_in_the_storage_is_passed_over(chat: Chat) -> None:
    chat.ask("Sound")
    for text in ("{", "null", "[]", '{"id": "x"}', '{"id": "x", "title": "t", "updated": 1, '
                 '"settings": {}, "messages": [null]}'):  # fmt: skip
        chat.page.evaluate("text => localStorage.setItem('satchel.chat.x', text)", text)
        chat.page.evaluate("localStorage.setItem('satchel.settings', '7')")
        chat.page.reload()
        assert chat.titles == ["Sound"]


def test_two_tabs_see_each_other(chat: Chat, quick: Served) -> None:
    other = Chat(chat.page.context.new_page(), quick.url)
    other.ask("From there")
    expect(chat.page.locator("#chats .open")).to_have_text(["From there"])
    other.menu("From there", "Delete")
    expect(chat.page.locator("#chats .open")).to_have_count(0)
    assert other.problems == []


def test_a_real_model_answers_and_remembers(browser: Browser, real: Served) -> None:
    with visiting(browser, real) as chat:
        chat.settings(temperature="0", max_tokens="24")
        chat.ask("What is the capital of France? Answer in one word.")
        expect(chat.prose).to_contain_text("Paris")
        chat.ask("Why is the sky blue?")
        expect(chat.page.locator(".took").last).to_contain_text("tokens/s")
        expect(chat.page.locator(".took").last).to_contain_text("prompt tokens cached")
        expect(chat.page.locator("#memory-more")).to_contain_text("of 1 conversation kept")
        expect(chat.page.locator("#memory-says")).to_contain_text("MiB")
        schema = {"type": "object", "properties": {"grown": {"type": "boolean"}},
                  "required": ["grown"], "additionalProperties": False}  # fmt: skip
        chat.settings(schema=json.dumps(schema))
        chat.ask("Is an oak of a hundred years grown up?")
        assert list(json.loads(chat.prose.locator("pre code").inner_text())) == ["grown"]
        chat.settings(schema='{"type": "nothing"}')
        chat.ask("Hm?")
        expect(chat.page.locator(".failed p")).to_contain_text("The server did not accept this")
        expect(chat.page.locator("#model-name")).to_have_text(next(iter(real.server.models.named)))
