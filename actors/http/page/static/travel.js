// A recording, step by step: who is computed, who waits, and whose the blocks are.

import { $, count, el, say, seconds, table } from "./dom.js";
import { getJson } from "./server.js";
import { drawSquares } from "./blocks.js";

class Travel {
  constructor(recording) {
    this.recording = recording;
    this.wanted = 1;
    this.isAsking = false;
    for (const input of [$("slider"), $("number")]) {
      input.max = recording.steps;
      input.addEventListener("input", () => input.value && this.go(Number(input.value)));
    }
    new ResizeObserver(() => this.state && this.drawBlocks(this.state)).observe($("blocks"));
  }

  /** Show a step. While one is asked for, only the last that was wanted comes next: a slider wants many. */
  async go(step) {
    this.wanted = Math.max(1, Math.min(this.recording.steps, step));
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      for (let shown = 0; shown !== this.wanted;) {
        shown = this.wanted;
        this.draw(await getJson(`recording/${shown}`));
      }
      this.tell("live", `${this.recording.name}: ${count(this.recording.requests)} requests, ${count(this.recording.steps)} steps`);
    } catch (error) {
      this.tell("away", error.message);
    } finally {
      this.isAsking = false;
    }
  }

  tell(state, text) {
    $("status").className = `status ${state}`;
    say($("status"), text);
  }

  draw(state) {
    this.state = state;
    const { decision, queue } = state;
    if (decision.step === this.wanted) {
      $("slider").value = decision.step;
      if (document.activeElement !== $("number")) $("number").value = decision.step;
    }
    const changes = [["takes in", decision.admitted], ["preempts", decision.preempted], ["has ended", decision.ended]]
      .filter(([, requests]) => requests.length).map(([what, requests]) => `${what} ${requests.map(named).join(", ")}`);
    say($("told"), [`Step ${decision.step}, ${seconds(state.seconds)} after the first request`,
      ...(decision.num_steps > 1 ? [`up to ${decision.num_steps} steps in one plan`] : []), ...changes].join("; "));
    $("plan").replaceChildren(table([`${decision.rows.length} rows`, "from", "to", "drafts", "blocks"],
      decision.rows.map((row) => [named(row.request), row.start, row.start + row.tokens, row.drafts, state.blocks_of[named(row.request)] ?? 0])));
    $("queue").replaceChildren(queue.length
      ? table([`${queue.length} requests`, "waits for", "prompt tokens", "priority"],
        queue.map((one) => [one.request, seconds(one.seconds), one.prompt_tokens, one.priority]))
      : el("p", { class: "note" }, "Nobody waits."));
    document.body.dataset.step = decision.step;
    this.drawBlocks(state);
  }

  drawBlocks({ blocks, tables }) {
    const [text, canvas] = $("blocks").children;
    const uses = new Map();
    for (const table of Object.values(tables)) for (const block of new Set(table)) uses.set(block, (uses.get(block) ?? 0) + 1);
    const total = blocks.num_blocks ?? Math.max(0, ...uses.keys()) + 1;
    const free = blocks.free == null ? "" : ` of ${total}, ${blocks.free} in no table`;
    const told = `${blocks.held} blocks held${free}; ${blocks.shared} in more than one table`;
    say(text, told);
    canvas.setAttribute("aria-label", told);
    drawSquares(canvas, $("blocks").clientWidth, total, (first, each) => {
      let most = 0;
      for (let block = first; block < first + each; block++) most = Math.max(most, uses.get(block) ?? 0);
      return ["--free", "--accent", "--warm"][Math.min(most, 2)];
    });
  }
}

const named = (request) => (request == null ? "of before" : String(request));

getJson("recording").then((recording) => new Travel(recording).go(1), (error) => {
  $("status").className = "status away";
  say($("status"), error.message);
});
