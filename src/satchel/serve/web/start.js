// What happens when: keys, clicks, other tabs, and the beginning of it all.

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running.has(chat.id)) stop();
  else sendQuestion();
});

at("ask").addEventListener("input", sizeAsk);
at("ask").addEventListener("keydown", (event) => {
  if (isEnter(event)) {
    event.preventDefault();
    sendQuestion();
  } else if (event.key === "ArrowUp" && !at("ask").value) {
    event.preventDefault();
    edit(lastQuestion(chat));
  }
});

at("talk").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.classList.contains("copy-code")) {
    void copyText(button.closest("figure").querySelector("code").textContent, button);
  } else if (button.dataset.deed) {
    DEEDS[button.dataset.deed](Number(button.closest(".turn").dataset.index), button);
  }
});

at("scroll").addEventListener("scroll", () => {
  const box = at("scroll");
  isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  at("down").hidden = isAtEnd;
}, { passive: true });
at("down").addEventListener("click", () => { isAtEnd = true; follow(); });

at("new").addEventListener("click", newChat);
at("open-side").addEventListener("click", () => showSide(true));
at("close-side").addEventListener("click", () => { showSide(false); at("open-side").focus(); });
at("shade").addEventListener("click", () => showSide(false));
at("menu").addEventListener("keydown", moveInMenu);
at("theme").addEventListener("click", nextTheme);
at("clear").addEventListener("click", () => at("sure").showModal());
at("sure").addEventListener("close", () => { if (at("sure").returnValue === "yes") clearChats(); });

at("open-settings").addEventListener("click", showSettings);
at("settings").addEventListener("input", takeSettings);
at("s-reset").addEventListener("click", emptySettings);
// the policy of the page forbids forms to be sent, even to a dialog that only closes
for (const id of ["settings", "sure"]) {
  at(id).querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    at(id).close(event.submitter?.value ?? "");
  });
}
at("key").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  at("key").close("given");
});
at("key-cancel").addEventListener("click", () => at("key").close(""));
for (const id of ["settings", "sure"]) {
  at(id).addEventListener("click", (event) => { if (event.target === at(id)) at(id).close(""); });
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) newChat();
  } else if (event.key === "Escape" && !document.querySelector("dialog[open], :popover-open")) {
    if (at("side").hasAttribute("data-open")) showSide(false);
    else stop();
  }
});

// what another tab did to a chat is seen here, unless its answer is being made here
window.addEventListener("storage", (event) => {
  if (event.key === THEME) drawTheme();
  if (!event.key?.startsWith(CHAT)) return;
  const id = event.key.slice(CHAT.length);
  if (running.has(id)) return;
  const changed = chats.read(event.key);
  if (id === chat.id && changed) open(changed);
  else drawChats();
});
window.addEventListener("pagehide", keepRunning);
document.addEventListener("visibilitychange", () => { if (!document.hidden) void watchMemory(); });

if (/Mac|iPhone|iPad/.test(navigator.platform)) at("new-key").textContent = "⌘ K";
drawTheme();
open(chats.byId.get(keptHere.get("satchel.open")) ?? chat);
at("ask").focus();
void loadModels().then(watchMemory);
