// How a conversation looks: turns of questions and answers, what an answer took, what went wrong.

const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A button of a turn; `deed` is what it does, see DEEDS. */
function deedButton(deed, label, name) {
  const button = make("button", { type: "button", className: "quiet", title: label, "aria-label": label }, icon(name));
  button.dataset.deed = deed;
  return button;
}

/** Draws a whole chat; `live` when its last answer is in the making. */
function drawTalk(chat, live) {
  const turns = chat.messages.map((said, index) => {
    const turn = make("div", { className: `turn ${said.role}` });
    turn.dataset.index = index;
    if (said.role === "user") drawQuestion(turn, said, index === lastQuestion(chat) && !live);
    else drawAnswer(turn, said, chat, live && index === chat.messages.length - 1);
    return turn;
  });
  at("talk").replaceChildren(...turns);
  at("empty").hidden = turns.length > 0;
}

function lastQuestion(chat) {
  return chat.messages.findLastIndex((said) => said.role === "user");
}

function drawQuestion(turn, said, mayChange) {
  const deeds = make("div", { className: "deeds" }, deedButton("copy", "Copy", "copy"));
  if (mayChange) deeds.append(deedButton("edit", "Edit and ask again", "edit"));
  turn.replaceChildren(
    make("span", { className: "unseen", textContent: "You:" }),
    make("div", { className: "said", textContent: said.content }),
    deeds,
  );
}

/** The form in which a question is changed. */
function drawEditing(turn, said) {
  const text = make("textarea", { value: said.content, rows: 3, "aria-label": "Your question" });
  const drop = make("button", { type: "button", className: "quiet text", textContent: "Cancel" });
  drop.dataset.deed = "unedit";
  const done = make("button", { className: "main", textContent: "Ask again" });
  turn.classList.add("editing");
  turn.replaceChildren(make("form", {}, text, make("div", { className: "line" }, drop, done)));
  text.focus();
  text.style.height = `${Math.min(text.scrollHeight + 2, 320)}px`;
  return text;
}

/** Draws an answer anew; what has not changed in it keeps its nodes. Returns how many blocks are finished. */
function drawAnswer(turn, said, chat, live) {
  if (!turn.firstChild) {
    turn.append(
      make("span", { className: "unseen", textContent: "Answer:" }),
      make("details", { className: "thought" }, make("summary", { textContent: "Thoughts" }), make("div")),
      make("div", { className: "prose" }),
      make("div", { className: "end" }),
    );
  }
  const [, thought, prose, end] = turn.children;
  thought.hidden = !said.reasoning;
  if (said.reasoning) thought.lastChild.textContent = said.reasoning;
  prose.setAttribute("aria-busy", String(live));
  const finished = drawContent(prose, said, live);
  const isLast = said === chat.messages.at(-1);
  if (live) end.replaceChildren(...(said.content ? [] : [waiting()]));
  else end.replaceChildren(...(said.failed ? [failure(said.failed, isLast)] : []), deedsOf(said, isLast));
  return finished;
}

function drawContent(prose, said, live) {
  if (!said.isJson) return drawMarkdown(prose, said.content, live);
  prose.replaceChildren(...(said.content ? [codeBlock(said.content, "json")] : []));
  return live ? 0 : 1;
}

function waiting() {
  return make("span", { className: "waiting", role: "img", "aria-label": "Working" }, make("i"), make("i"), make("i"));
}

function failure(message, mayRetry) {
  const box = make("div", { className: "failed", role: "alert" }, make("p", { textContent: message }));
  if (mayRetry) {
    const retry = make("button", { type: "button", textContent: "Try again" });
    retry.dataset.deed = "again";
    box.append(retry);
  }
  return box;
}

function deedsOf(said, isLast) {
  const deeds = make("div", { className: "deeds" });
  if (said.content) deeds.append(deedButton("copy", "Copy the answer", "copy"));
  if (isLast && !said.failed) deeds.append(deedButton("again", "Answer again", "again"));
  const took = tookText(said);
  if (took) deeds.append(make("span", { className: "took", textContent: took }));
  return deeds;
}

/** What an answer took, and why it ended where that is not plain. */
function tookText(said) {
  const parts = [];
  if (said.took) {
    const { tokens, perSecond, prompt, cached } = said.took;
    parts.push(`${counted(tokens, "token")}${perSecond ? `, ${speedText(perSecond)}` : ""}`);
    if (cached) parts.push(`${cached.toLocaleString()} of ${prompt.toLocaleString()} prompt tokens cached`);
  }
  if (said.reason === "stopped") parts.push("stopped");
  if (said.reason === "length") parts.push("cut off at the limit of tokens");
  return parts.join(" · ");
}

function counted(n, one) {
  return `${n.toLocaleString()} ${one}${n === 1 ? "" : "s"}`;
}

function speedText(perSecond) {
  return `${perSecond.toFixed(perSecond < 10 ? 1 : 0)} tokens/s`;
}

/** Sets a meter: from 0 to 1. */
function drawGauge(track, part) {
  const percent = Math.round(100 * Math.min(1, Math.max(0, part)));
  track.setAttribute("aria-valuenow", percent);
  track.firstElementChild.style.width = `${percent}%`;
}

let noticeTimer = 0;

/** A line that goes away by itself, with a deed that it may offer. */
function notify(text, label = "", deed = null) {
  const [said, button] = at("notice").children;
  const hide = () => { at("notice").hidden = true; };
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(hide, 6000);
  said.textContent = text;
  button.textContent = label;
  button.hidden = !deed;
  button.onclick = () => { hide(); deed?.(); };
  at("notice").hidden = false;
}

/** Puts a text where it can be pasted from. */
async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyByHand(text); // the clipboard is for pages of https and of this machine only
  }
  if (button.textContent) {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } else {
    notify("Copied.");
  }
}

function copyByHand(text) {
  const field = make("textarea", { value: text, className: "unseen" });
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  before?.focus();
}
