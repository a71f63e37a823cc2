// Beside the conversation: the list of chats and their menu, settings, the key, the memory, light and dark.

/** Draws the list; the focus stays on the chat that had it. */
function drawChats() {
  const focused = document.activeElement?.closest("#chats li")?.dataset.id;
  const kind = document.activeElement?.className;
  const shown = chats.list().filter((one) => one.messages.length);
  at("chats").replaceChildren(...shown.map(chatItem));
  if (focused) [...at("chats").children].find((item) => item.dataset.id === focused)?.getElementsByClassName(kind)[0]?.focus();
  at("clear").disabled = !shown.length;
}

function chatItem(one) {
  const name = titleOf(one);
  const choose = make("button", { className: "open", title: name }, make("span", { textContent: name }));
  const more = make("button", { className: "quiet more", "aria-label": `More for: ${name}`, "aria-haspopup": "menu" }, icon("more"));
  const item = make("li", {}, choose, more);
  item.dataset.id = one.id;
  if (one.id === chat.id) {
    item.dataset.now = "";
    choose.setAttribute("aria-current", "true");
  }
  if (running.has(one.id)) {
    choose.dataset.busy = "";
    choose.append(make("span", { className: "unseen", textContent: "answering" }));
  }
  choose.addEventListener("click", () => {
    open(one);
    showSide(false);
    at("ask").focus();
  });
  more.addEventListener("click", () => showMenu(one, more));
  return item;
}

function newChat() {
  showSide(false);
  if (chat.messages.length) open(chats.begin(lastSettings()));
  at("ask").focus();
}

/** The list is beside the conversation, or on phones before it. */
function showSide(isOpen) {
  at("side").toggleAttribute("data-open", isOpen);
  at("open-side").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) at("close-side").focus();
}

function showMenu(one, button) {
  const deeds = [
    ["Rename", () => rename(one)],
    ["Export as JSON", () => download(`${titleOf(one)}.json`, "application/json", asJson(one))],
    ["Export as Markdown", () => download(`${titleOf(one)}.md`, "text/markdown", asMarkdown(one))],
    ["Delete", () => removeChat(one)],
  ];
  at("menu").replaceChildren(...deeds.map(([label, deed]) => {
    const item = make("button", { type: "button", role: "menuitem", textContent: label });
    item.addEventListener("click", () => { at("menu").hidePopover(); deed(); });
    return item;
  }));
  at("menu").showPopover();
  const place = button.getBoundingClientRect();
  const { width, height } = at("menu").getBoundingClientRect();
  at("menu").style.left = `${Math.max(8, Math.min(place.left, innerWidth - width - 8))}px`;
  at("menu").style.top = `${Math.max(8, Math.min(place.bottom + 4, innerHeight - height - 8))}px`;
  at("menu").firstElementChild.focus();
}

function moveInMenu(event) {
  const items = [...at("menu").children];
  const now = items.indexOf(document.activeElement);
  const steps = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: -1 };
  if (!(event.key in steps)) return;
  event.preventDefault();
  items.at(steps[event.key] % items.length).focus();
}

function rename(one) {
  const item = [...at("chats").children].find((found) => found.dataset.id === one.id);
  const field = make("input", { value: titleOf(one), "aria-label": "Name of the conversation", maxLength: 120 });
  let isOver = false;
  const end = (isMeant) => {
    if (isOver) return; // a field that is taken away loses the focus once more
    isOver = true;
    if (isMeant && field.value.trim()) {
      one.title = field.value.trim();
      chats.save(one);
    }
    if (one === chat) at("title").textContent = titleOf(chat);
    drawChats();
  };
  field.addEventListener("blur", () => end(true));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape" || isEnter(event)) {
      event.stopPropagation();
      end(event.key !== "Escape");
      [...at("chats").children].find((found) => found.dataset.id === one.id)?.firstElementChild.focus();
    }
  });
  item.replaceChildren(field);
  field.focus();
  field.select();
}

function removeChat(one) {
  stop(one);
  chats.remove(one.id);
  if (one === chat) open(chats.begin(lastSettings()));
  else drawChats();
  at("ask").focus();
  notify("Deleted.", "Undo", () => { chats.save(one); open(one); });
}

function clearChats() {
  for (const one of chats.list()) stop(one);
  chats.clear();
  open(chats.begin(lastSettings()));
  notify("All conversations are deleted from this browser.");
}

// Settings

let models = [];

/** The model that a chat asks; the first that the server names, where none is chosen. */
function modelOf(asked) {
  return asked.settings.model || models[0] || "";
}

async function loadModels() {
  try {
    models = await modelNames();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (error.status === 401 && (await askKey())) return loadModels();
    notify(error.message);
  }
  drawState();
  at("empty-says").textContent = models.length ? "Answers come from this server alone." : "";
}

function showSettings() {
  const chosen = chat.settings.model;
  const names = chosen && !models.includes(chosen) ? [chosen, ...models] : models;
  const options = names.map((name) => make("option", { value: name, textContent: name }));
  at("s-model").replaceChildren(make("option", { value: "", textContent: `The first: ${models[0] ?? "none"}` }), ...options);
  for (const name of SETTING_NAMES) at(`s-${name}`).value = chat.settings[name] ?? "";
  checkSettings();
  at("settings").showModal();
}

/** Takes what is filled in: for this chat, and for those to come. */
function takeSettings() {
  for (const name of SETTING_NAMES) chat.settings[name] = at(`s-${name}`).value.trim();
  kept.set(SETTINGS, JSON.stringify(chat.settings));
  if (chat.messages.length) chats.save(chat);
  checkSettings();
  drawState();
}

function checkSettings() {
  const wrong = wrongIn(chat.settings);
  at("settings-wrong").textContent = wrong;
  at("s-schema").setAttribute("aria-invalid", String(Boolean(wrong)));
}

function emptySettings() {
  for (const name of SETTING_NAMES) at(`s-${name}`).value = "";
  takeSettings();
}

// The server's key

let keyAsked = null; // a promise, while the dialog is open

/** Asks for the key of the server; whether one was given. */
function askKey() {
  keyAsked ??= new Promise((resolve) => {
    const isWrong = Boolean(keptHere.get(KEY));
    at("key-says").textContent = isWrong
      ? "The key was not accepted."
      : "It is kept in this tab until you close it.";
    at("key-text").value = "";
    at("key").returnValue = "";
    at("key").showModal();
    at("key").addEventListener("close", () => {
      keyAsked = null;
      const given = at("key").returnValue === "given";
      if (given) keptHere.set(KEY, at("key-text").value.trim());
      at("key-text").value = "";
      resolve(given);
    }, { once: true });
  });
  return keyAsked;
}

// The server's memory

const REFRESH_MS = 2000;
let memoryTimer = 0;

/** Shows how full it is; goes on only while answers are made, so that nothing runs while nothing is asked. */
async function watchMemory() {
  clearTimeout(memoryTimer);
  try {
    const memory = await memoryOf();
    contexts = memory.contexts;
    drawGauge(at("memory"), memory.part);
    at("memory-says").textContent = memory.says;
    at("memory-more").textContent = memory.more;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    at("memory-says").textContent = "unknown";
  }
  drawState();
  clearTimeout(memoryTimer);
  if (running.size && !document.hidden) memoryTimer = setTimeout(watchMemory, REFRESH_MS);
}

// Light and dark

const THEMES = { "": "System", light: "Light", dark: "Dark" };

function drawTheme() {
  const found = kept.get(THEME) ?? "";
  const theme = found in THEMES ? found : "";
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  at("theme-says").textContent = THEMES[theme];
  at("theme").setAttribute("aria-label", `Colours: ${THEMES[theme]}`);
}

function nextTheme() {
  const names = Object.keys(THEMES);
  kept.set(THEME, names[(names.indexOf(kept.get(THEME) ?? "") + 1) % names.length]);
  drawTheme();
}
