// Markdown as models write it, drawn as DOM nodes. Text goes in as text alone: no string is ever read as HTML.
//
// A text in the making ("live") is drawn again as it grows. What is not finished yet is drawn as what it most
// likely becomes: an open ** is bold up to the end, an open fence is code, half a link is its label. Blocks
// that have not changed keep their nodes. Work grows with the text's length, whatever the text is.

const DEEPEST = 6; // levels of quotes, lists and emphasis; what is deeper stays plain
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*))?$/;
const LONE_MARK = /(^|\n)[ \t>]*(?:\||[-*+#_~`]{1,3}|\d{1,9}[.)]?)$/;

/** An element with these properties, and what is in it. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const drawnIn = new WeakMap(); // box -> its blocks

/** Draws a text into a box. Returns how many of its blocks are finished. */
function drawMarkdown(box, text, live = false) {
  const shown = live ? text.replace(LONE_MARK, "$1") : text;
  const before = drawnIn.get(box) ?? [];
  const blocks = blocksOf(shown.replaceAll("\r\n", "\n").split("\n"), live, 0);
  blocks.forEach((block, index) => {
    const old = before[index];
    if (old?.key === block.key) {
      block.node = old.node;
      return;
    }
    block.node = block.draw();
    if (old) old.node.replaceWith(block.node);
    else box.append(block.node);
  });
  for (const old of before.slice(blocks.length)) old.node.remove();
  drawnIn.set(box, blocks);
  return live ? Math.max(0, blocks.length - 1) : blocks.length;
}

/** The blocks of lines, each with a key that says all that its drawing depends on. */
function blocksOf(lines, live, depth) {
  const blocks = [];
  for (let start = 0; start < lines.length; ) {
    if (!lines[start].trim()) {
      start += 1;
      continue;
    }
    const kind = (depth < DEEPEST && KINDS.find((one) => one.starts(lines, start, live))) || PARAGRAPH;
    const end = kind.end(lines, start, live);
    const own = lines.slice(start, end);
    const open = live && end === lines.length;
    blocks.push({ key: `${open}:${own.join("\n")}`, draw: () => kind.draw(own, open, depth) });
    start = end;
  }
  return blocks;
}

function nodesOf(lines, live, depth) {
  return blocksOf(lines, live, depth).map((block) => block.draw());
}

/** The first line from `start` on that is not so. */
function whileLines(lines, start, holds) {
  let end = start;
  while (end < lines.length && holds(end)) end += 1;
  return end;
}

function isOther(lines, at) {
  return KINDS.some((kind) => kind.starts(lines, at, false));
}

const PARAGRAPH = {
  end: (lines, start) => whileLines(lines, start + 1, (at) => lines[at].trim() && !isOther(lines, at)),
  draw: (lines, open) => make("p", {}, ...spansOf(lines.map((line) => line.trim()).join("\n"), open)),
};

const CODE = {
  starts: (lines, at) => FENCE.test(lines[at]),
  end(lines, start) {
    const closed = whileLines(lines, start + 1, (at) => !closes(lines[at], lines[start]));
    return Math.min(closed + 1, lines.length);
  },
  draw(lines) {
    const [, , info] = FENCE.exec(lines[0]);
    const isClosed = lines.length > 1 && closes(lines.at(-1), lines[0]);
    const indent = lines[0].search(/\S/);
    const code = lines.slice(1, isClosed ? -1 : undefined).map((line) => dedent(line, indent));
    return codeBlock(code.join("\n"), info.trim().split(/\s/)[0]);
  },
};

function closes(line, fence) {
  const [, mark] = FENCE.exec(fence);
  const found = line.trim();
  return found.length >= mark.length && found === mark[0].repeat(found.length);
}

/** Code with its language and a button that copies it. */
function codeBlock(code, language) {
  const copy = make("button", { type: "button", className: "quiet copy-code", textContent: "Copy" });
  const name = make("span", { textContent: language || "text" });
  return make(
    "figure", {},
    make("figcaption", {}, name, copy),
    make("pre", { tabIndex: 0 }, make("code", { textContent: code })),
  );
}

const HEAD = {
  starts: (lines, at) => HEADING.test(lines[at]),
  end: (_, start) => start + 1,
  draw(lines, open) {
    const [, marks, text = ""] = HEADING.exec(lines[0]);
    // the page's own title is the only h1
    const tag = `h${Math.min(6, marks.length + 1)}`;
    const shown = text.replace(/\s#+\s*$/, "");
    return make(tag, { className: `heading level${marks.length}` }, ...spansOf(shown, open));
  },
};

const RULE = {
  starts(lines, at) {
    const marks = lines[at].replaceAll(" ", "");
    return marks.length > 2 && "-*_".includes(marks[0]) && marks === marks[0].repeat(marks.length);
  },
  end: (_, start) => start + 1,
  draw: () => make("hr"),
};

const QUOTED = {
  starts: (lines, at) => QUOTE.test(lines[at]),
  end: (lines, start) => whileLines(lines, start, (at) => QUOTE.test(lines[at])),
  draw(lines, open, depth) {
    const inner = lines.map((line) => line.replace(QUOTE, ""));
    return make("blockquote", {}, ...nodesOf(inner, open, depth + 1));
  },
};

const LIST = {
  starts: (lines, at) => ITEM.test(lines[at]) && !RULE.starts(lines, at),
  end(lines, start) {
    let end = start + 1;
    for (;;) {
      const next = whileLines(lines, end, (at) => !lines[at].trim());
      if (next === lines.length || !LIST.goesOn(lines, start, next, next > end)) return end;
      end = next + 1;
    }
  },
  /** Whether the list that began at `start` has the line at `at`, with or without blank lines before. */
  goesOn(lines, start, at, isApart) {
    if (indentOf(lines[at]) > indentOf(lines[start]) + 1) return true;
    if (LIST.starts(lines, at)) return orderOf(lines[at]) === orderOf(lines[start]);
    return !isApart && !isOther(lines, at);
  },
  draw(lines, open, depth) {
    const base = indentOf(lines[0]);
    const items = [];
    for (const line of lines) {
      const found = indentOf(line) <= base + 1 && ITEM.exec(line);
      if (found) items.push({ width: found[1].length + found[2].length + 1, lines: [found[3] ?? ""] });
      else items.at(-1).lines.push(dedent(line, items.at(-1).width));
    }
    const nodes = items.map((item, index) =>
      make("li", {}, ...nodesOf(item.lines, open && index === items.length - 1, depth + 1)));
    const number = Number.parseInt(ITEM.exec(lines[0])[2], 10);
    return Number.isNaN(number) ? make("ul", {}, ...nodes) : make("ol", { start: number }, ...nodes);
  },
};

function indentOf(line) {
  return line.replaceAll("\t", "    ").search(/\S|$/);
}

/** "ol", "ul", or nothing for a line that begins no item. */
function orderOf(line) {
  const found = ITEM.exec(line);
  return found && (/\d/.test(found[2]) ? "ol" : "ul");
}

/** A line without its first `most` blanks, or as many as it has. */
function dedent(line, most) {
  return line.slice(Math.min(most, line.search(/\S|$/)));
}

const TABLE = {
  starts(lines, at, live) {
    const below = lines[at + 1];
    if (below === undefined || !lines[at].includes("|") || !below.includes("-")) return false;
    if (live && at + 2 === lines.length && /^[\s|:-]+$/.test(below)) return true;
    return below.includes("|") && cellsOf(below).every((cell) => /^:?-+:?$/.test(cell));
  },
  end: (lines, start) => whileLines(lines, start, (at) => lines[at].includes("|") || at === start + 1),
  draw(lines, open) {
    const sides = cellsOf(lines[1]).map((cell) =>
      cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "");
    const row = (line, tag, last) => make("tr", {}, ...cellsOf(line).map((cell, column) =>
      make(tag, { className: sides[column] ?? "" }, ...spansOf(cell, last))));
    const body = lines.slice(2).map((line, index) => row(line, "td", open && index === lines.length - 3));
    const table = make("table", {}, make("thead", {}, row(lines[0], "th", false)), make("tbody", {}, ...body));
    return make("div", { className: "table", tabIndex: 0 }, table);
  },
};

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const KINDS = [CODE, HEAD, RULE, QUOTED, LIST, TABLE];

// Within a block

const SPECIAL = /[\\`*_~![<\n]|https?:\/\//g;
const BARE_LINK = /https?:\/\/[^\s<>"`]{1,2000}/y;
const ANGLE_LINK = /<(https?:\/\/[^\s<>]{1,2000})>/y;
const BREAK = /<br *\/?>/iy;
const TARGET = /\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const HALF_TARGET = /\([^)]*$/y;
const EMPHASIS = { "**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "del" };
const WORD = /[\p{L}\p{N}_]/u;

/** The nodes of a run of text. `open`: it may go on. */
function spansOf(text, open = false, depth = 0) {
  const nodes = [];
  const lacking = new Set(); // marks that nothing closes from here on
  let plain = 0; // where the plain text that is not in `nodes` yet begins
  SPECIAL.lastIndex = 0;
  for (let found = SPECIAL.exec(text); found; found = SPECIAL.exec(text)) {
    const at = found.index;
    const span = depth < DEEPEST ? spanAt(text, at, open, depth, lacking) : null;
    if (!span) {
      // a run of marks that means nothing is passed as a whole
      SPECIAL.lastIndex = at + Math.max(found[0].length, runAt(text, at));
      continue;
    }
    if (plain < at) nodes.push(text.slice(plain, at));
    nodes.push(...span.nodes);
    plain = span.end;
    SPECIAL.lastIndex = plain;
  }
  if (plain < text.length) nodes.push(text.slice(plain));
  return nodes;
}

/** What begins at a special character: {nodes, end}, or null where it is only itself. */
function spanAt(text, at, open, depth, lacking) {
  switch (text[at]) {
    case "\n": return { nodes: [make("br")], end: at + 1 };
    case "\\": return escapeAt(text, at);
    case "`": return codeAt(text, at, open, lacking);
    case "[": return linkAt(text, at, at, open, depth);
    case "!": return text[at + 1] === "[" ? linkAt(text, at, at + 1, open, depth) : null;
    case "<": return angleAt(text, at);
    case "h": return bareLinkAt(text, at);
    default: return emphasisAt(text, at, open, depth, lacking);
  }
}

function escapeAt(text, at) {
  if (text[at + 1] === "\n") return { nodes: [make("br")], end: at + 2 };
  return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? { nodes: [text[at + 1]], end: at + 2 } : null;
}

/** How often the character at a place is repeated there. */
function runAt(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function codeAt(text, at, open, lacking) {
  const length = runAt(text, at);
  const mark = "`".repeat(length);
  const end = lacking.has(mark) ? -1 : backticks(text, at + length, length);
  if (end < 0 && !open) {
    lacking.add(mark);
    return null;
  }
  const inner = text.slice(at + length, end < 0 ? undefined : end).replaceAll("\n", " ");
  const isPadded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim();
  const shown = isPadded ? inner.slice(1, -1) : inner;
  const nodes = shown ? [make("code", { textContent: shown })] : [];
  return { nodes, end: end < 0 ? text.length : end + length };
}

/** Where the next run of exactly `length` backticks is, or -1. */
function backticks(text, from, length) {
  for (let at = text.indexOf("`", from); at >= 0; ) {
    const run = runAt(text, at);
    if (run === length) return at;
    at = text.indexOf("`", at + run);
  }
  return -1;
}

function emphasisAt(text, at, open, depth, lacking) {
  const letter = text[at];
  const mark = letter.repeat(Math.min(2, runAt(text, at)));
  const from = at + mark.length;
  if (!(mark in EMPHASIS)) return null;
  if (letter === "_" && WORD.test(text[at - 1] ?? "")) return null;
  if (from === text.length) return open ? { nodes: [], end: from } : null;
  if (/\s/.test(text[from]) || lacking.has(mark)) return null;
  const end = closerOf(text, from, mark);
  if (end < 0 && !open) {
    lacking.add(mark);
    return null;
  }
  const inner = text.slice(from, end < 0 ? undefined : end);
  const nodes = [make(EMPHASIS[mark], {}, ...spansOf(inner, open && end < 0, depth + 1))];
  return { nodes, end: end < 0 ? text.length : end + mark.length };
}

/** Where an emphasis that began before `from` ends, or -1. */
function closerOf(text, from, mark) {
  for (let at = from; at < text.length; ) {
    if (text[at] === "\\") {
      at += 2;
    } else if (text[at] === "`") {
      const run = runAt(text, at);
      const end = backticks(text, at + run, run);
      at = end < 0 ? at + run : end + run;
    } else if (text[at] === mark[0]) {
      const run = runAt(text, at);
      const end = at + run;
      const fits = mark.length === 1 ? run !== 2 : run >= 2;
      const isInWord = mark[0] === "_" && WORD.test(text[end] ?? "");
      // of a longer run the inner marks close what is inside
      if (fits && at > from && !/\s/.test(text[at - 1]) && !isInWord) return end - mark.length;
      at = end;
    } else {
      at += 1;
    }
  }
  return -1;
}

/** [label](target); a picture is drawn as a link to it, so that nothing is fetched unasked. */
function linkAt(text, at, bracket, open, depth) {
  const close = bracketOf(text, bracket);
  if (close < 0) return null;
  const label = text.slice(bracket + 1, close);
  TARGET.lastIndex = HALF_TARGET.lastIndex = close + 1;
  const target = TARGET.exec(text);
  if (target) {
    const inner = label ? spansOf(label, false, depth + 1) : [target[1]];
    const link = linkTo(target[1], withoutLinks(inner));
    return link && { nodes: [link], end: TARGET.lastIndex };
  }
  if (!open || !HALF_TARGET.test(text)) return null;
  return { nodes: spansOf(label, false, depth + 1), end: text.length };
}

/** Nodes in which links are only their text: what a link shows must not lead elsewhere. */
function withoutLinks(nodes) {
  const all = make("span", {}, ...nodes);
  for (const link of all.querySelectorAll("a")) link.replaceWith(...link.childNodes);
  return [...all.childNodes];
}

/** The bracket that closes the one at a place, or -1; labels are short. */
function bracketOf(text, at) {
  const last = Math.min(text.length, at + 500);
  for (let end = at + 1, depth = 1; end < last; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "[") depth += 1;
    else if (text[end] === "]" && (depth -= 1) === 0) return end;
  }
  return -1;
}

function angleAt(text, at) {
  BREAK.lastIndex = ANGLE_LINK.lastIndex = at;
  if (BREAK.test(text)) return { nodes: [make("br")], end: BREAK.lastIndex };
  const found = ANGLE_LINK.exec(text);
  const link = found && linkTo(found[1], [found[1]]);
  return link && { nodes: [link], end: ANGLE_LINK.lastIndex };
}

function bareLinkAt(text, at) {
  BARE_LINK.lastIndex = at;
  if (at > 0 && WORD.test(text[at - 1])) return null;
  const [found] = BARE_LINK.exec(text) ?? [""];
  // what follows a link in a sentence is not of it, nor is a bracket that was opened before
  let shown = found.replace(/[.,;:!?'*_~]+$/, "");
  if (shown.endsWith(")") && !shown.includes("(")) shown = shown.slice(0, -1);
  const link = linkTo(shown, [shown]);
  return link && { nodes: [link], end: at + shown.length };
}

/** A link, or null where the target is none of the web: javascript:, data: and the like are only text. */
function linkTo(target, children) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  return make("a", { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}
