// The chat: one conversation with one model or several side by side.

import { Answer } from "./answer.js";
import { $, el, say } from "./dom.js";
import { events, getJson, post, Refused } from "./server.js";
import { asCurl, asPython } from "./snippets.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const TOP_LOGPROBS = 5;

export class Chat {
  constructor() {
    this.turns = []; // {question, images, said: {model: messages that followed}}
    this.asking = []; // answers that wait for what tools return
    this.running = null;
    $("form").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("form").requestSubmit(); }
    });
    $("stop").addEventListener("click", () => this.running?.abort());
    $("clear").addEventListener("click", () => this.clear());
    $("copy-curl").addEventListener("click", (event) => this.copy(event.target, asCurl));
    $("copy-python").addEventListener("click", (event) => this.copy(event.target, asPython));
    $("tools").addEventListener("input", () => $("tools").setCustomValidity(""));
    $("models").addEventListener("change", () => this.offerImages());
    this.empty = $("turns").firstElementChild;
  }

  async start() {
    const { data } = await getJson("v1/models");
    $("models").append(...data.map(({ id }, i) =>
      el("label", {}, el("input", { type: "checkbox", name: "model", value: id, checked: i === 0 }), ` ${id}`)));
    this.seeing = new Set(data.filter((model) => model.input_modalities?.includes("image")).map(({ id }) => id));
    this.offerImages();
    return data.map(({ id }) => id);
  }

  /** Offer images where all models that are chosen take them. */
  offerImages() {
    $("attach").hidden = !this.models.length || !this.models.every((model) => this.seeing.has(model));
  }

  /** Return the chosen images as data URLs. */
  async images() {
    const files = $("attach").hidden ? [] : [...$("images").files];
    return Promise.all(files.map((file) => new Promise((read, failed) => {
      const reader = new FileReader();
      reader.onload = () => read(reader.result);
      reader.onerror = () => failed(reader.error);
      reader.readAsDataURL(file);
    })));
  }

  /** Return the tools that are given, null for none; undefined, and say so, if they are no JSON array. */
  tools() {
    const text = $("tools").value.trim();
    if (!text) return null;
    let found;
    try {
      found = JSON.parse(text);
      if (Array.isArray(found)) return found;
      $("tools").setCustomValidity("expected a JSON array of tools");
    } catch (error) {
      $("tools").setCustomValidity(`no JSON: ${error.message}`);
    }
    $("parameters").open = true;
    $("tools").reportValidity();
    return undefined;
  }

  get models() {
    return [...document.querySelectorAll("input[name=model]:checked")].map((box) => box.value);
  }

  /** Return the request to a model: the conversation so far as that model has it, and the parameters that are set. */
  request(model, question, images = []) {
    const messages = [];
    if ($("system").value.trim()) messages.push({ role: "system", content: $("system").value });
    for (const turn of this.turns) {
      const said = settled(turn.said[model] ?? []);
      if (said.length) messages.push({ role: "user", content: contentOf(turn.question, turn.images) }, ...said);
    }
    if (question) messages.push({ role: "user", content: contentOf(question, images) });
    const body = { model, messages, stream: true, stream_options: { include_usage: true } };
    for (const name of NUMBERS) if ($(name).value !== "") body[name] = Number($(name).value);
    const tools = this.tools();
    if (tools) body.tools = tools;
    if ($("ignore_eos").checked) body.ignore_eos = true;
    if ($("logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
    return body;
  }

  async send() {
    const question = $("prompt").value.trim();
    const models = this.models;
    if (!question || this.running) return;
    if (!models.length) {
      $("models").querySelector("input")?.focus();
      return;
    }
    if (this.tools() === undefined) return;
    const images = await this.images();
    $("prompt").value = $("images").value = "";
    this.empty.remove();
    for (const answer of this.asking.splice(0)) answer.closeResults();
    const answers = models.map((model) => new Answer(model));
    $("turns").append(el("div", { class: "question" }, ...images.map((src, i) => el("img", { src, alt: `Image ${i + 1}` })), question), el("div", { class: "answers" }, ...answers.map((one) => el("div", { class: "column" }, one.box))));
    const requests = models.map((model) => this.request(model, question, images));
    const turn = { question, images, said: Object.fromEntries(models.map((model) => [model, []])) };
    await this.run((signal) => Promise.all(answers.map((answer, i) => this.stream(requests[i], answer, turn, signal))));
    this.turns.push(turn);
    $("prompt").focus();
  }

  /** Have a model go on with what the tools return that its answer called. */
  async sendResults(answer, turn, model, results) {
    this.asking = this.asking.filter((one) => one !== answer);
    turn.said[model].push(...results);
    const next = new Answer(model);
    answer.box.after(next.box);
    await this.run((signal) => this.stream(this.request(model), next, turn, signal));
  }

  /** Stream an answer, and keep it in its turn. */
  async stream(body, answer, turn, signal) {
    await stream(body, answer, signal);
    const message = answer.message();
    turn.said[body.model].push(message);
    if (!message.tool_calls || signal.aborted) return;
    this.asking.push(answer);
    answer.askResults((results) => this.sendResults(answer, turn, body.model, results));
  }

  async run(work) {
    this.busy(this.running = new AbortController());
    try {
      await work(this.running.signal);
    } finally {
      this.busy(this.running = null);
    }
  }

  busy(running) {
    $("stop").disabled = !running;
    for (const button of [$("send"), $("clear"), ...document.querySelectorAll(".results button")]) button.disabled = !!running;
  }

  clear() {
    this.turns = [];
    this.asking = [];
    $("turns").replaceChildren(this.empty);
    $("prompt").focus();
  }

  async copy(button, write) {
    const model = this.models[0] ?? "MODEL";
    const question = $("prompt").value.trim() || (this.turns.length ? "" : "Hello");
    const body = this.request(model, question);
    // The last question again, or the last results, without the answer.
    if (!question) while (body.messages.at(-1)?.role === "assistant") body.messages.pop();
    const label = button.textContent;
    try {
      await copyText(write(body, new URL(".", location.href).href));
      say(button, "Copied");
    } catch {
      say(button, "Not allowed");
    }
    setTimeout(() => say(button, label), 1500);
  }
}

/** Return what followed a question, without calls that nobody answered: templates expect a result after each. */
function settled(said) {
  const last = said.at(-1);
  if (!last || last.role !== "assistant" || (last.content && !last.tool_calls)) return said;
  const before = said.slice(0, -1);
  return last.content ? [...before, { role: "assistant", content: last.content }] : before;
}

/** Return a message's content: text, with images before it where there are any. */
function contentOf(text, images = []) {
  if (!images.length) return text;
  return [...images.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }];
}

/** Copy to the clipboard; where the page is not on a secure origin, by a selection. */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el("textarea", { class: "hidden" });
  area.value = text;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  if (!isDone) throw new Error("not allowed");
}

async function stream(body, answer, signal) {
  try {
    for await (const { data } of events(await post("v1/chat/completions", body, signal))) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(0, chunk.error.message);
      answer.take(chunk);
    }
    answer.end();
  } catch (error) {
    if (signal.aborted) answer.end("stopped");
    else answer.end(error.message, true);
  }
}
