// What the page asks of the server: answers as they come, and how the server is.

/** A request that was refused, or that broke off; `message` is for people. */
class Refused extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** A response of the server. Throws Refused, or AbortError when `signal` says so. */
async function call(path, body, signal) {
  const headers = {};
  const key = keptHere.get(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const method = body ? "POST" : "GET";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** What a response that is none means to people. */
async function refusal(response) {
  const said = await response.json().then((body) => body?.error?.message ?? body?.error, () => "");
  const text = typeof said === "string" && said ? said : `it answered with status ${response.status}`;
  if (response.status === 401) return new Refused("The server asks for an API key.", 401);
  if (response.status === 503) return new Refused(`The server is busy: ${text}`, 503);
  if (response.status >= 500) return new Refused(`The server failed: ${text}`, response.status);
  return new Refused(`The server did not accept this: ${text}`, response.status);
}

/** The objects of a stream of server-sent events. Throws Refused when it ends too early. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        throw new Refused("The connection broke off in the middle of the answer.");
      });
      if (done) throw new Refused("The answer broke off.");
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const text = line.slice(5).trim();
        if (text === "[DONE]") return;
        yield JSON.parse(text);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed: then there is nothing left to end
  }
}

/** A chat's next answer, as the chunks come. */
async function* answerTo(chat, signal) {
  const response = await call("/v1/chat/completions", askFor(chat), signal);
  for await (const chunk of eventsOf(response)) {
    if (chunk.error) throw new Refused(`The server broke off: ${chunk.error.message ?? "no reason given"}`);
    yield chunk;
  }
}

/** The request for a chat's next answer. What is not set is left to the server. */
function askFor(chat) {
  const { settings } = chat;
  const body = { messages: sentMessages(chat), stream: true, stream_options: { include_usage: true } };
  const model = modelOf(chat);
  if (model) body.model = model;
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (settings[name]) body[name] = Number(settings[name]);
  }
  if (settings.schema) {
    const schema = JSON.parse(settings.schema);
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  }
  return body;
}

/** The messages of a chat as the model sees them. */
function sentMessages(chat) {
  const messages = chat.settings.system ? [{ role: "system", content: chat.settings.system }] : [];
  for (const said of chat.messages) {
    if (said.role === "assistant" && !said.content && !said.took) continue; // it never came
    const last = messages.at(-1);
    // two questions in a row are one: many templates take turns only
    if (last?.role === said.role) last.content += `\n\n${said.content}`;
    else messages.push({ role: said.role, content: said.content });
  }
  return messages;
}

/** What is wrong with settings, in a line, or nothing. */
function wrongIn(settings) {
  if (!settings.schema) return "";
  try {
    const schema = JSON.parse(settings.schema);
    const isObject = typeof schema === "object" && schema !== null && !Array.isArray(schema);
    return isObject ? "" : "The JSON schema is not an object: {…}.";
  } catch (error) {
    return `The JSON schema is not JSON: ${error.message}.`;
  }
}

/** Names of the models that can be asked. */
async function modelNames() {
  const found = await (await call("/v1/models")).json();
  return found.data.map((model) => model.id);
}

/** The server's memory: {part (of the KV cache in use, 0 to 1), says, more, contexts (of each model)}. */
async function memoryOf() {
  const [text, sessions] = await Promise.all([
    call("/metrics").then((response) => response.text()),
    call("/sessions").then((response) => response.json()),
  ]);
  const metrics = metricsOf(text);
  const part = metrics.get("llamacpp:kv_cache_usage_ratio") ?? 0;
  const all = metrics.get("llamacpp:memory_process_bytes");
  const tokens = sessions.reduce((sum, session) => sum + session.n_tokens, 0);
  const full = `${Math.round(100 * part)} % of the KV cache`;
  const known = tokens ? `${counted(tokens, "token")} of ${counted(sessions.length, "conversation")} kept` : "";
  return {
    part,
    says: all ? mebibytes(all) : full,
    more: [all ? full : "", known].filter(Boolean).join(", "),
    contexts: new Map(sessions.map((session) => [session.model, session.n_ctx])),
  };
}

function mebibytes(bytes) {
  return `${Math.round(bytes / 2 ** 20).toLocaleString()} MiB`;
}

/** Prometheus' text as a map of the values that have no labels. */
function metricsOf(text) {
  const rows = text.split("\n").filter((line) => line && !line.startsWith("#"));
  return new Map(rows.map((row) => row.split(" ")).map(([name, value]) => [name, Number(value)]));
}
