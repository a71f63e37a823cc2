"""The chat page's markdown in a real browser: what it draws of texts, whole and in the making."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page
from tests.serve.browser import chromium

from satchel.serve.page import part

pytestmark = pytest.mark.slow

DRAWN = [
    ("", ""),
    ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    ("# A `b`\n### C #", "<h2>A <code>b</code></h2><h4>C</h4>"),
    ("#no heading", "<p>#no heading</p>"),
    ("***both*** **a *b* c** *d **e***", "<p><strong><em>both</em></strong> <strong>a <em>b</em> c"
     "</strong> <em>d <strong>e</strong></em></p>"),
    ("a_b_c 2 * 3 * 4 **open", "<p>a_b_c 2 * 3 * 4 **open</p>"),
    ("__a__ _b_ ~~c~~ ~d~", "<p><strong>a</strong> <em>b</em> <del>c</del> ~d~</p>"),
    ("`` a`b `` `*c*`", "<p><code>a`b</code> <code>*c*</code></p>"),
    ("\\*a\\* `open", "<p>*a* `open</p>"),
    ("**a `**` b**", "<p><strong>a <code>**</code> b</strong></p>"),
    ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"
     "<p>c</p>"),
    ("- a\n- b\n  - c\n\n  d\n- e", "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul>"
     "<p>d</p></li><li><p>e</p></li></ul>"),
    ("3. a\n   ```\n   x\n   ```\n4. b", '<ol start="3"><li><p>a</p>[text|x]</li><li><p>b</p></li>'
     "</ol>"),
    ("1. a\n\n2. b\n\nc", '<ol start="1"><li><p>a</p></li><li><p>b</p></li></ol><p>c</p>'),
    ("- a\n1. b", '<ul><li><p>a</p></li></ul><ol start="1"><li><p>b</p></li></ol>'),
    ("a\n- b\nlazy\n\nc", "<p>a</p><ul><li><p>b<br>lazy</p></li></ul><p>c</p>"),
    ("a\n\n---\n* * *", "<p>a</p><hr><hr>"),
    ("```py\n<b>\n\n  x\n```\na", "[py|<b>\n\n  x]<p>a</p>"),
    ("~~~~\n```\n~~~\n~~~~", "[text|```\n~~~]"),
    ("```js\nnever closed", "[js|never closed]"),
    ("|a|b|\n|:-:|--:|\n|*c*|d\\|e|f|", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody>"
     "<tr><td><em>c</em></td><td>d|e</td><td>f</td></tr></tbody></table>"),
    ("a | b\nc | d", "<p>a | b<br>c | d</p>"),
    ("[a *b*](https://x.org/(y) 't') ![c](http://z.org/)", '<p><a href="https://x.org/(y)">a '
     '<em>b</em></a> <a href="http://z.org/">c</a></p>'),
    ("[https://a.org](https://b.org) [1] [x](rel)", '<p><a href="https://b.org/">https://a.org</a> '
     "[1] [x](rel)</p>"),
    ("see https://x.org/a_b?c=d, (http://y.org). <https://z.org>", '<p>see '
     '<a href="https://x.org/a_b?c=d">https://x.org/a_b?c=d</a>, '
     '(<a href="http://y.org/">http://y.org</a>). ' '<a href="https://z.org/">https://z.org</a></p>'),
    ("a<br/>b <i>c</i>", "<p>a<br>b &lt;i&gt;c&lt;/i&gt;</p>"),
]  # fmt: skip

IN_THE_MAKING = [
    ("**bol", "<p><strong>bol</strong></p>"),
    ("a **", "<p>a </p>"),
    ("a `co", "<p>a <code>co</code></p>"),
    ("*a **b", "<p><em>a <strong>b</strong></em></p>"),
    ("**a**\n\n*b", "<p><strong>a</strong></p><p><em>b</em></p>"),
    ("**a\n\nb", "<p>**a</p><p>b</p>"),
    ("see [the page](https://ex", "<p>see the page</p>"),
    ("a [b", "<p>a [b</p>"),
    ("a\n-", "<p>a</p>"),
    ("a\n``", "<p>a</p>"),
    ("```py", "[py|]"),
    ("```\nx\n``", "[text|x\n]"),
    ("|a|b|\n|-", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody></tbody></table>"),
    ("- **a", "<ul><li><p><strong>a</strong></p></li></ul>"),
]

PIECES = [
    "a", "b c", " ", "\n", "\n\n", "*", "**", "_", "`", "```", "~~", "[", "]", "(", ")", "](", "!",
    "<", ">", "|", "|-|", "- ", "1. ", "> ", "# ", "\\", "  ", "https://x.org", "javascript:x", '"',
    "'", "<img src=x onerror=y>", "[a](javascript:b)", "[a](https://b.org)", "\t", "\r\n", "é",
]  # fmt: skip
HOSTILE = [
    "*a " * 20_000, "**a" * 20_000, "[" * 50_000, "[a](" * 10_000, "`" * 50_000, "a` ``b " * 9_000,
    "> " * 20_000, "- " * 20_000, "- a" + "\n" * 50_000, "|" * 50_000, "|a|\n" * 10_000,
    "http://a" + "." * 50_000 + "x", "https://" * 7_000, "\\" * 50_000, "_a" * 20_000, "<" * 50_000,
    "- a\n  " * 8_000, " " * 50_000 + "x", "#" * 50_000, "1. \n" * 10_000, "*" * 50_000 + "a",
    "a\n=\n" * 10_000,
]  # fmt: skip

SHOWN = """(text, live, before) => {
  const box = document.createElement("div");
  for (const length of before ?? []) drawMarkdown(box, text.slice(0, length), true);
  drawMarkdown(box, text, live);
  return box;
}"""
# code blocks are shown as [language|code]; attributes that are the same everywhere are left out
PLAIN = """box => {
  for (const code of box.querySelectorAll("figure")) {
    const [language, text] = ["span", "code"].map(name => code.querySelector(name).textContent);
    code.replaceWith(`[${language}|${text}]`);
  }
  for (const one of box.querySelectorAll("*")) {
    for (const name of one.getAttributeNames()) {
      if (!["href", "start"].includes(name)) one.removeAttribute(name);
    }
  }
  for (const table of box.querySelectorAll(":scope div")) table.replaceWith(...table.childNodes);
  return box.innerHTML.replaceAll("&lt;b&gt;", "<b>");
}"""
ALLOWED = {
    "a", "blockquote", "br", "button", "code", "del", "div", "em", "figcaption", "figure", "h2",
    "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "span", "strong", "table", "tbody", "td",
    "th", "thead", "tr", "ul",
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """An empty page that has shown(text, live, before) and plain(box)."""
    with chromium() as browser:
        page = browser.new_page()
        page.add_script_tag(
            content=f"{part('markdown.js')}\nvar shown = {SHOWN}; var plain = {PLAIN};"
        )
        yield page


@pytest.mark.parametrize(("text", "wanted"), DRAWN)
def test_what_is_drawn(page: Page, text: str, wanted: str) -> None:
    assert page.evaluate("text => plain(shown(text, false))", text) == wanted
    # as it streams, letter by letter, too
    lengths = list(range(len(text)))
    drawn = page.evaluate("([text, ns]) => plain(shown(text, false, ns))", [text, lengths])
    assert drawn == wanted


@pytest.mark.parametrize(("text", "wanted"), IN_THE_MAKING)
def test_what_is_not_finished_looks_sane(page: Page, text: str, wanted: str) -> None:
    assert page.evaluate("text => plain(shown(text, true))", text) == wanted


def test_finished_blocks_keep_their_nodes(page: Page) -> None:
    assert page.evaluate("""() => {
      const box = shown("# a\\n\\nb\\n\\nc", true);
      const before = [...box.children];
      const finished = drawMarkdown(box, "# a\\n\\nb\\n\\nc d", true);
      return [...before.map((node, index) => node === box.children[index]), finished];
    }""") == [True, True, False, 2]


@settings(max_examples=300, deadline=None, database=None)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=40),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
def test_any_text_is_harmless_however_it_streams(
    page: Page, pieces: list[str], cuts: list[int]
) -> None:
    text = "".join(pieces)
    found = page.evaluate("""([text, cuts]) => {
      const streamed = shown(text, false, cuts);
      const attributes = [...streamed.querySelectorAll("*")].flatMap(
        e => e.getAttributeNames().map(name => [name, e.getAttribute(name)]));
      const names = [...streamed.querySelectorAll("*")].map(e => e.localName);
      const nested = streamed.querySelectorAll("a a").length;
      return {same: streamed.innerHTML === shown(text, false).innerHTML, attributes, names, nested};
    }""", [text, sorted(cuts)])  # fmt: skip
    assert found["same"], "a stream ends in what the whole text gives"
    assert set(found["names"]) <= ALLOWED
    assert found["nested"] == 0
    for name, value in found["attributes"]:
        assert name in {"class", "href", "title", "target", "rel", "start", "type", "tabindex"}
        assert name != "href" or value.startswith(("http://", "https://"))


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:9]))
def test_no_text_takes_long(page: Page, text: str) -> None:
    begun = time.monotonic()
    page.evaluate(
        "text => shown(text, true).childNodes.length + shown(text, false).childNodes.length", text
    )
    assert time.monotonic() - begun < 20
