// Conversations, kept in this browser's storage: one entry each, so that two tabs disturb each other little.
//
// A chat: {id, title, created, updated (ms), settings, messages}. A message: {role, content} and, of answers,
// reasoning, model, took ({tokens, perSecond, cached, prompt}), reason (why it ended), failed ({message}).

const CHAT = "satchel.chat.";
const SETTINGS = "satchel.settings";
const THEME = "satchel.theme";
const KEY = "satchel.key"; // of the server; in this tab's storage alone

const SETTING_NAMES = ["model", "system", "temperature", "top_p", "max_tokens", "seed", "schema"];

/** Reads and writes texts; where a browser forbids it, for this page's life alone. */
class Kept {
  constructor(find) {
    this.memory = new Map();
    try {
      this.storage = find();
      this.storage.getItem("satchel");
    } catch {
      this.storage = null; // forbidden by the browser's settings
    }
  }

  names() {
    return this.storage ? Object.keys(this.storage) : [...this.memory.keys()];
  }

  get(name) {
    return this.storage ? this.storage.getItem(name) : (this.memory.get(name) ?? null);
  }

  /** Whether it could be kept: storage may be full. */
  set(name, text) {
    if (!this.storage) {
      this.memory.set(name, text);
      return true;
    }
    try {
      this.storage.setItem(name, text);
      return true;
    } catch {
      return false;
    }
  }

  remove(name) {
    this.memory.delete(name);
    this.storage?.removeItem(name);
  }
}

const kept = new Kept(() => localStorage);
const keptHere = new Kept(() => sessionStorage);

/** Stored JSON, or null for none and for what is damaged. */
function readKept(name) {
  try {
    return JSON.parse(kept.get(name));
  } catch {
    return null;
  }
}

class Chats {
  constructor() {
    this.byId = new Map();
    for (const name of kept.names()) {
      if (name.startsWith(CHAT)) this.read(name);
    }
  }

  /** Takes a chat from the storage: at the start, and when another tab has changed it. */
  read(name) {
    const chat = readKept(name);
    if (isChat(chat)) this.byId.set(chat.id, chat);
    else this.byId.delete(name.slice(CHAT.length));
    return chat;
  }

  /** The last used first. */
  list() {
    return [...this.byId.values()].sort((one, other) => other.updated - one.updated);
  }

  /** A new one; it is kept once something is said. */
  begin(settings) {
    const now = Date.now();
    const id = `${now.toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
    return { id, title: "", created: now, updated: now, settings: { ...settings }, messages: [] };
  }

  /** Whether there was room for it. */
  save(chat) {
    this.byId.set(chat.id, chat);
    return kept.set(CHAT + chat.id, JSON.stringify(chat));
  }

  remove(id) {
    this.byId.delete(id);
    kept.remove(CHAT + id);
  }

  clear() {
    for (const name of kept.names()) {
      if (name.startsWith(CHAT)) kept.remove(name);
    }
    this.byId.clear();
  }
}

/** Whether something read back is a chat that can be shown. */
function isChat(chat) {
  const isText = (value) => typeof value === "string";
  return Boolean(chat) && isText(chat.id) && isText(chat.title) && Number.isFinite(chat.updated) &&
    typeof chat.settings === "object" && chat.settings !== null && Array.isArray(chat.messages) &&
    chat.messages.every((said) => said && isText(said.content) && ["user", "assistant"].includes(said.role));
}

/** The settings that were last chosen, for new chats. */
function lastSettings() {
  const found = readKept(SETTINGS);
  const known = found && typeof found === "object" ? found : {};
  return Object.fromEntries(SETTING_NAMES.map((name) => [name, String(known[name] ?? "")]));
}

/** What a chat is called: by its first question, unless it was given a name. */
function titleOf(chat) {
  const first = chat.messages.find((said) => said.role === "user")?.content ?? "";
  const line = first.trim().replace(/\s+/g, " ");
  return chat.title || (line.length > 60 ? `${line.slice(0, 60).trim()}…` : line) || "New chat";
}

function asJson(chat) {
  const messages = chat.messages.map(({ role, content }) => ({ role, content }));
  if (chat.settings.system) messages.unshift({ role: "system", content: chat.settings.system });
  const { created, updated, settings } = chat;
  const dates = { created: new Date(created).toISOString(), updated: new Date(updated).toISOString() };
  return `${JSON.stringify({ title: titleOf(chat), ...dates, settings, messages }, null, 2)}\n`;
}

function asMarkdown(chat) {
  const parts = [`# ${titleOf(chat)}`];
  if (chat.settings.system) parts.push("## System", chat.settings.system);
  for (const said of chat.messages) parts.push(said.role === "user" ? "## You" : "## Answer", said.content);
  return `${parts.join("\n\n")}\n`;
}

/** Has the browser save a text as a file. */
function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name.replace(/[^\p{L}\p{N} ._-]+/gu, "_").trim() }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
