// The last steps of each executor: what each computed and what it waited for, as a picture and as a table.

import { $, count, el, percent, say, seconds } from "./dom.js";

const KEPT = 240; // steps
const FIELDS = ["number", "steps", "rows", "fresh", "prefill", "decode", "drafted", "accepted", "sampled",
  "came", "began", "ended", "drafting", "masks"]; // protocol/statistics.py: StepRecord
const HEIGHT = 84, BASE = 1; // pixels
const HEADS = ["step", "steps", "rows", "prefill tokens", "decode tokens", "drafts", "accepted", "waited for plan",
  "waited to begin", "on device", "masks", "drafting"];

/** Return a record as an object, with what it waited for since the plan before it had ended. */
export function stepOf(record, before) {
  const step = Object.fromEntries(FIELDS.map((name, i) => [name, record[i]]));
  const free = before ? before.ended : step.came;
  // Where all rows are new, the device waited for requests, not for a plan.
  const isIdle = step.fresh === step.rows;
  step.idle = isIdle ? Math.max(0, step.came - free) : 0;
  step.forPlan = isIdle ? 0 : Math.max(0, Math.min(step.came, step.began) - free);
  step.toBegin = Math.max(0, step.began - Math.max(free, step.came));
  step.device = Math.max(0, step.ended - Math.max(step.began, free)); // steps may overlap on a device
  step.tokens = step.prefill + step.decode;
  return step;
}

export function sumOf(steps) {
  const total = (name) => steps.reduce((sum, step) => sum + step[name], 0);
  return Object.fromEntries(["steps", "prefill", "decode", "drafted", "accepted", "sampled", "forPlan", "toBegin", "device",
    "masks", "drafting"].map((name) => [name, total(name)]));
}

export class Timeline {
  constructor() {
    this.kept = new Map(); // by executor: {life, steps, box}
  }

  draw(observation) {
    for (const [name, { last_steps: records }] of Object.entries(observation.executors)) {
      const kept = this.of(name, lifeOf(observation, name));
      const known = kept.steps.at(-1)?.number ?? 0;
      const fresh = records.filter(([number]) => number > known);
      for (const record of fresh) kept.steps.push(stepOf(record, kept.steps.at(-1)));
      kept.steps = kept.steps.slice(-KEPT);
      if (fresh.length || !kept.isDrawn) paint(name, kept);
    }
    for (const [name, { box }] of this.kept) {
      if (!(name in observation.executors)) {
        box.remove();
        this.kept.delete(name);
      }
    }
  }

  of(name, life) {
    let kept = this.kept.get(name);
    if (!kept) {
      const body = el("tbody");
      const details = el("details", {}, el("summary", {}, `Steps of ${name} as a table`),
        el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Steps of ${name}` },
          el("table", {}, el("thead", {}, el("tr", {}, ...HEADS.map((head) => el("th", { scope: "col" }, head)))), body)));
      const box = el("div", { class: "steps", "data-executor": name }, el("p"), el("canvas", { role: "img" }), details);
      kept = { life, steps: [], box, body, details };
      details.addEventListener("toggle", () => paint(name, kept));
      this.kept.set(name, kept);
      $("timeline").append(box);
    }
    if (kept.life !== life) Object.assign(kept, { life, steps: [] }); // a new life counts from 1
    return kept;
  }
}

function lifeOf(observation, name) {
  return observation.actors.find((actor) => actor.name === name)?.incarnation;
}

function paint(name, kept) {
  const [text, canvas] = kept.box.children;
  const { steps } = kept;
  kept.isDrawn = true;
  const told = textOf(name, steps);
  say(text, told);
  canvas.setAttribute("aria-label", told);
  drawBars(canvas, kept.box.clientWidth, steps);
  if (kept.details.open) kept.body.replaceChildren(...steps.map(rowOf).reverse());
}

function textOf(name, steps) {
  if (!steps.length) return `${name}: no step yet`;
  const sum = sumOf(steps);
  const all = sum.device + sum.forPlan + sum.toBegin || 1;
  const drafts = sum.drafted ? `; ${count(sum.accepted)} of ${count(sum.drafted)} drafts right` : "";
  return `${name}: ${count(sum.steps)} steps, ${count(sum.prefill)} prefill and ${count(sum.decode)} decode tokens${drafts}; `
    + `${percent(sum.device / all)} of the time on the device, ${percent(sum.forPlan / all)} waiting for plans, `
    + `${percent(sum.toBegin / all)} waiting to begin`;
}

const rowOf = (step) => el("tr", {}, ...[step.number, step.steps, step.rows, step.prefill, step.decode, step.drafted,
  step.accepted, seconds(step.forPlan), seconds(step.toBegin), seconds(step.device), seconds(step.masks),
  seconds(step.drafting)].map((cell) => el("td", {}, String(cell))));

/** Draw steps one after another, as wide as they took: waits low, tokens as high as their number (logarithmic). */
function drawBars(canvas, width, steps) {
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = HEIGHT * ratio;
  Object.assign(canvas.style, { width: `${width}px`, height: `${HEIGHT}px` });
  const style = getComputedStyle(document.documentElement);
  const [prefill, decode, plan, begin, masks] = ["--accent", "--cached", "--warm", "--free", "--bad"]
    .map((name) => style.getPropertyValue(name));
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const time = steps.reduce((sum, step) => sum + step.forPlan + step.toBegin + step.device, 0);
  const each = width / (time || 1);
  const most = Math.log2(1 + Math.max(1, ...steps.map((step) => step.tokens)));
  let x = 0;
  const bar = (seconds, height, colour, from = BASE) => {
    context.fillStyle = colour;
    context.fillRect(x, HEIGHT - from - height, Math.max(seconds * each - 0.5, 0.5), height);
  };
  for (const step of steps) {
    bar(step.forPlan, step.forPlan ? 8 : 0, plan);
    x += step.forPlan * each;
    bar(step.toBegin, step.toBegin ? 8 : 0, begin);
    x += step.toBegin * each;
    const height = (HEIGHT - 8) * (Math.log2(1 + step.tokens) / most);
    const share = step.tokens ? step.prefill / step.tokens : 0;
    bar(step.device, height * (1 - share), decode);
    bar(step.device, height * share, prefill, BASE + height * (1 - share));
    if (step.masks) bar(Math.min(step.masks, step.device), 4, masks);
    x += step.device * each;
  }
}
