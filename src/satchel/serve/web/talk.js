// Asking and answering: which chat is open, which answers are in the making, and what can be done with them.

const chats = new Chats();
const running = new Map(); // a chat's id -> what stops its answer
let chat = chats.begin(lastSettings());
let contexts = new Map(); // a model's name -> tokens of its context
let isAtEnd = true; // the reader follows the answer
let liveTurn = null; // the turn of the answer in the making that is shown
let nSpoken = 0; // blocks of it that were read out
let isDrawing = false; // a drawing is due with the next frame

/** Shows a chat. */
function open(chosen) {
  chat = chosen;
  keptHere.set("satchel.open", chat.id);
  isAtEnd = true;
  redraw();
}

/** Draws all of the open chat. */
function redraw() {
  const live = running.has(chat.id);
  drawTalk(chat, live);
  liveTurn = live ? at("talk").lastElementChild : null;
  nSpoken = 0;
  at("spoken").replaceChildren();
  document.title = chat.messages.length ? `${titleOf(chat)} · Satchel` : "Satchel";
  at("title").textContent = titleOf(chat);
  drawChats();
  drawState();
  follow();
}

/** What the button does now, how fast it goes, how full the context is. */
function drawState() {
  const live = running.get(chat.id);
  const last = chat.messages.findLast((said) => said.role === "assistant" && said.model);
  at("send").setAttribute("aria-label", live ? "Stop" : "Send");
  at("send").firstElementChild.firstElementChild.setAttribute("href", live ? "#i-stop" : "#i-send");
  at("send").disabled = !live && !at("ask").value.trim();
  at("speed").textContent = live ? liveSpeed(live) : "";
  at("model-name").textContent = modelOf(chat);
  const took = chat.messages.findLast((said) => said.took)?.took;
  const most = contexts.get(last?.model);
  at("context").hidden = !took || !most;
  if (!took || !most) return;
  const used = took.prompt + took.tokens;
  at("context-says").textContent = `${used.toLocaleString()} of ${counted(most, "token")} of context`;
  drawGauge(at("context-bar"), used / most);
}

function liveSpeed(live) {
  if (!live.n) return "reading the question …";
  const seconds = (performance.now() - live.firstMs) / 1000;
  return live.n > 4 && seconds > 0.2 ? `about ${speedText((live.n - 1) / seconds)}` : "answering …";
}

/** Keeps the end in sight, unless the reader has scrolled away from it. */
function follow() {
  const box = at("scroll");
  if (isAtEnd) box.scrollTop = box.scrollHeight;
  at("down").hidden = isAtEnd || box.scrollHeight <= box.clientHeight;
}

/** Draws what has come since the last frame, if it is shown at all. */
function drawSoon(asked) {
  if (asked !== chat || isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    if (!liveTurn || !running.has(chat.id)) return;
    speak(drawAnswer(liveTurn, chat.messages.at(-1), chat, true));
    drawState();
    follow();
  });
}

/** Has screen readers say each block once, when it is finished. */
function speak(nFinished) {
  const blocks = [...at("talk").lastElementChild.querySelector(".prose").children];
  for (const block of blocks.slice(nSpoken, nFinished)) {
    at("spoken").append(make("p", { textContent: block.textContent }));
  }
  nSpoken = Math.max(nSpoken, nFinished);
}

/** Asks for the next answer of a chat, and shows it as it comes. */
async function answer(asked) {
  if (running.has(asked.id)) return;
  const said = { role: "assistant", content: "", model: "" };
  if (asked.settings.schema) said.isJson = true;
  const live = { control: new AbortController(), n: 0, firstMs: 0 };
  asked.messages.push(said);
  running.set(asked.id, live);
  keep(asked);
  if (asked === chat) redraw();
  void watchMemory();
  let hasNewKey = false;
  try {
    const wrong = wrongIn(asked.settings);
    if (wrong) throw new Refused(wrong);
    for await (const chunk of answerTo(asked, live.control.signal)) {
      take(said, chunk, live);
      drawSoon(asked);
    }
  } catch (error) {
    if (live.control.signal.aborted) said.reason = "stopped";
    else if (error instanceof Refused) said.failed = error.message;
    else throw error;
    hasNewKey = error.status === 401 && (await askKey());
  } finally {
    running.delete(asked.id);
    if (chats.byId.has(asked.id)) keep(asked); // else it was deleted meanwhile
    if (asked === chat) finish(said);
    else drawChats();
    void watchMemory();
  }
  if (hasNewKey) again(asked);
}

/** Notes a chunk of an answer. */
function take(said, chunk, live) {
  if (chunk.model) said.model = chunk.model;
  const [choice] = chunk.choices;
  const { content, reasoning_content: reasoning } = choice?.delta ?? {};
  if (content || reasoning) {
    live.firstMs ||= performance.now();
    live.n += 1;
  }
  if (content) said.content += content;
  if (reasoning) said.reasoning = (said.reasoning ?? "") + reasoning;
  if (choice?.finish_reason) said.reason = choice.finish_reason;
  if (chunk.usage) {
    said.took = {
      prompt: chunk.usage.prompt_tokens,
      tokens: chunk.usage.completion_tokens,
      cached: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
      perSecond: chunk.timings?.predicted_per_second ?? 0,
    };
  }
}

/** The open chat's answer has ended. */
function finish(said) {
  const turn = liveTurn;
  liveTurn = null;
  if (turn && chat.messages.at(-1) === said) {
    speak(drawAnswer(turn, said, chat, false));
    const question = turn.previousElementSibling;
    if (question) drawQuestion(question, chat.messages.at(-2), true);
  }
  drawChats();
  drawState();
  follow();
}

/** Drops the last answer, if there is one, and asks anew. */
function again(asked) {
  if (running.has(asked.id)) return;
  if (asked.messages.at(-1)?.role === "assistant") asked.messages.pop();
  isAtEnd = true;
  void answer(asked);
}

function stop(stopped = chat) {
  running.get(stopped.id)?.control.abort();
}

/** Asks what is written. */
function sendQuestion() {
  const text = at("ask").value.trim();
  if (!text || running.has(chat.id)) return;
  at("ask").value = "";
  sizeAsk();
  chat.messages.push({ role: "user", content: text });
  isAtEnd = true;
  void answer(chat);
}

/** Puts another question in the last one's place, and asks it. */
function askInstead(index, text) {
  if (!text.trim() || running.has(chat.id)) return;
  chat.messages.splice(index, Infinity, { role: "user", content: text.trim() });
  isAtEnd = true;
  void answer(chat);
  at("ask").focus();
}

function keep(changed) {
  changed.updated = Date.now();
  if (!chats.save(changed)) notify("The browser's storage is full: this conversation is not kept. Delete old ones.");
}

/** Answers that are cut off by leaving the page are kept as far as they came. */
function keepRunning() {
  for (const id of running.keys()) {
    const left = chats.byId.get(id);
    if (!left) continue;
    const messages = left.messages.map((said) => ({ ...said, reason: said.reason ?? endOf(said) }));
    kept.set(CHAT + id, JSON.stringify({ ...left, messages }));
    stop(left);
  }
}

function endOf(said) {
  return said.role === "assistant" && !said.took && !said.failed ? "stopped" : undefined;
}

const DEEDS = {
  copy: (index, button) => copyText(chat.messages[index].content, button),
  again: () => again(chat),
  edit: (index) => edit(index),
  unedit: () => { redraw(); at("ask").focus(); },
};

function edit(index) {
  if (index < 0 || running.has(chat.id)) return;
  const turn = at("talk").children[index];
  const text = drawEditing(turn, chat.messages[index]);
  turn.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    askInstead(index, text.value);
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") DEEDS.unedit();
    if (!isEnter(event)) return;
    event.preventDefault();
    askInstead(index, text.value);
  });
}

/** Enter alone; it is another key while a word is being composed, as in Chinese. */
function isEnter(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

function sizeAsk() {
  at("ask").style.height = "auto";
  at("ask").style.height = `${at("ask").scrollHeight}px`;
  at("send").disabled = !running.has(chat.id) && !at("ask").value.trim();
}
