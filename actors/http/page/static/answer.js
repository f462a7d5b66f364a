// An answer as it comes, a span a token where log-probabilities are asked for.

import { $, el, percent, say, seconds } from "./dom.js";

const LOW = 0.6, LOWER = 0.2;
const NEAR_END = 60; // pixels

export class Answer {
  constructor(model) {
    this.text = "";
    this.tokens = [];
    this.calls = new Map(); // {id, name, arguments, box} by index
    this.began = performance.now();
    this.decoder = new TextDecoder();
    this.body = el("div", { class: "text" });
    this.foot = el("p", { class: "foot" }, "waiting");
    this.box = el("article", { class: "answer", "aria-label": `Answer of ${model}`, "aria-busy": "true" }, el("h4", {}, model), this.body, this.foot);
    this.body.addEventListener("mouseover", (event) => this.point(event.target));
    this.body.addEventListener("mouseleave", () => this.point(null));
    this.body.addEventListener("blur", () => this.point(null));
    this.body.addEventListener("keydown", (event) => this.move(event));
  }

  take(chunk) {
    const [choice] = chunk.choices ?? [];
    if (chunk.usage) this.usage = chunk.usage;
    if (!choice) return;
    const { reasoning, reasoning_content, tool_calls = [] } = choice.delta;
    const content = choice.delta.content ?? "";
    for (const call of tool_calls) this.call(call);
    const thought = reasoning ?? reasoning_content;
    if (thought) this.think(thought);
    if (content && this.first === undefined) this.first = performance.now();
    if (content || choice.logprobs?.content?.length) this.append(content, choice.logprobs?.content ?? []);
    if (choice.finish_reason) this.reason = choice.finish_reason;
    say(this.foot, this.tokens.length ? `${this.tokens.length} tokens` : "…");
  }

  think(text) {
    if (!this.thought) {
      this.thought = el("div", { class: "thought" });
      this.body.before(el("details", { open: true }, el("summary", {}, "Reasoning"), this.thought));
    }
    this.thought.append(text);
  }

  /** Show a part of a call of a tool. */
  call({ index, id, function: { name, arguments: text } = {} }) {
    let call = this.calls.get(index);
    if (!call) {
      call = { id, name: "", arguments: "", box: el("div", { class: "call" }) };
      this.calls.set(index, call);
      this.foot.before(call.box);
    }
    call.name += name ?? "";
    call.arguments += text ?? "";
    say(call.box, `${call.name}(${call.arguments})`);
  }

  /** Return the message that this answer is in the history. */
  message() {
    const calls = [...this.calls.values()].map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
    return { role: "assistant", content: this.text, ...(calls.length && { tool_calls: calls }) };
  }

  /** Ask for what the tools return that were called; `send` takes it as messages. */
  askResults(send) {
    const fields = [...this.calls.values()].map(({ id, name, box }) => {
      const field = el("textarea", { rows: 1, required: true, spellcheck: "false" });
      box.after(el("label", { class: "result" }, `Result of ${name}`, field));
      return { id, field };
    });
    const button = el("button", { type: "submit" }, "Send results");
    this.results = el("form", { class: "results" }, ...this.box.querySelectorAll(".call, .result"), button);
    this.results.addEventListener("submit", (event) => {
      event.preventDefault();
      if (button.disabled) return;
      this.closeResults();
      send(fields.map(({ id, field }) => ({ role: "tool", tool_call_id: id, content: field.value })));
    });
    this.foot.before(this.results);
  }

  /** Take no results any more. Those that were typed are shown. */
  closeResults() {
    if (!this.results) return;
    this.results.querySelector("button").remove();
    for (const label of this.results.querySelectorAll(".result")) {
      const { value } = label.querySelector("textarea");
      label.replaceWith(value ? el("p", { class: "result" }, label.firstChild, el("output", {}, value)) : "");
    }
    this.results = null;
  }

  append(content, tokens) {
    follow($("turns"));
    this.text += content;
    const texts = tokens.map((token) => this.decoder.decode(Uint8Array.from(token.bytes ?? []), { stream: true }));
    // Where the text is not that of the tokens (a stop string was cut off, a parser took some), they share a span.
    const parts = texts.join("") === content ? texts.map((text, i) => [text, [tokens[i]]]) : [[content, tokens]];
    for (const [text, own] of parts) if (text) this.body.append(this.span(text, own));
    this.tokens.push(...tokens);
    if (this.tokens.length) this.body.tabIndex = 0;
  }

  span(text, tokens) {
    if (!tokens.length) return text;
    const least = Math.exp(Math.min(...tokens.map((token) => token.logprob)));
    const made = el("span", { class: `token${least < LOWER ? " lower" : least < LOW ? " low" : ""}` }, text);
    made.tokens = tokens;
    return made;
  }

  point(span) {
    this.here?.classList.remove("here");
    const tip = $("tip");
    tip.hidden = !span?.tokens;
    this.here = span?.tokens ? span : null;
    if (!this.here) return;
    span.classList.add("here");
    tip.replaceChildren(...span.tokens.map(alternatives));
    const at = span.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(at.left, innerWidth - tip.offsetWidth - 4))}px`;
    const below = at.bottom + 6;
    tip.style.top = `${below + tip.offsetHeight < innerHeight ? below : at.top - tip.offsetHeight - 6}px`;
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") this.point(null);
    if (!step) return;
    event.preventDefault();
    const spans = [...this.body.querySelectorAll(".token")];
    const at = this.here ? spans.indexOf(this.here) + step : step > 0 ? 0 : spans.length - 1;
    const span = spans[Math.max(0, Math.min(at, spans.length - 1))];
    span?.scrollIntoView({ block: "nearest" });
    this.point(span);
    this.body.setAttribute("aria-description", span?.tokens.map(spoken).join("; ") ?? "");
  }

  end(reason = "", isFailure = false) {
    const elapsed = (performance.now() - this.began) / 1e3;
    const tokens = this.usage?.completion_tokens ?? this.tokens.length;
    const parts = [
      reason || this.reason || "ended",
      tokens ? `${tokens} tokens` : "",
      this.first === undefined ? "" : `first after ${seconds((this.first - this.began) / 1e3)}`,
      tokens > 1 ? `${(tokens / elapsed).toFixed(0)} tokens/s` : "",
      this.usage?.prompt_tokens_details?.cached_tokens ? `${this.usage.prompt_tokens_details.cached_tokens} of ${this.usage.prompt_tokens} prompt tokens cached` : "",
    ];
    say(this.foot, parts.filter(Boolean).join(" · "));
    this.foot.classList.toggle("failed", isFailure);
    this.box.setAttribute("aria-busy", "false");
  }
}

const spoken = ({ token, logprob }) => `${token.trim() || "space"} ${percent(Math.exp(logprob))}`;

const shown = (token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "␣");

function alternatives({ token, logprob, top_logprobs = [] }) {
  const rows = top_logprobs.some((one) => one.token === token) ? top_logprobs : [...top_logprobs, { token, logprob }];
  return el("table", {}, el("tbody", {}, ...rows.map((one) =>
    el("tr", { class: one.token === token ? "drawn" : "" }, el("td", {}, shown(one.token)), el("td", {}, percent(Math.exp(one.logprob)))))));
}

const followed = new Set();

/** Keep a box at its end if it is there now. It is measured once a frame: each measurement lays the page out. */
function follow(box) {
  if (followed.has(box)) return;
  followed.add(box);
  const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
  requestAnimationFrame(() => {
    followed.delete(box);
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  });
}
