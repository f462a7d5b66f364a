// Arrows between actors: messages per second, as the receivers counted them.

import { count, svg } from "./dom.js";
import { placeOf } from "./figures.js";

// Sender, receiver, and the kinds of message that go this way (protocol/*.py).
const FLOWS = [
  ["http", "tokenizer", ["Tokenize", "TokenizeChat", "Detokenize"]],
  ["http", "scheduler", ["Submit", "Abort"]],
  ["scheduler", "blocks", ["Assign"]],
  ["blocks", "scheduler", ["Assigned"]],
  ["scheduler", "executor", ["StepPlan"]],
  ["executor", "scheduler", ["StepResult"]],
  ["scheduler", "detokenizer", ["TokenBatch"]],
  ["detokenizer", "http", ["OutputBatch"]],
  ["scheduler", "drafter", ["Propose", "Context"]],
  ["drafter", "scheduler", ["Drafts", "Proposed"]],
];
const APART = 7; // pixels between an arrow and the one that goes back
const ASIDE = 13; // pixels between an arrow and its number

export class Arrows {
  constructor() {
    const head = svg("marker", { id: `head-${Math.random().toString(36).slice(2)}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
      svg("path", { d: "M0 0 8 4 0 8z" }));
    this.head = `url(#${head.id})`;
    this.lines = svg("g");
    this.root = svg("svg", { class: "arrows", "aria-hidden": "true" }, svg("defs", {}, head), this.lines);
  }

  draw(box, actors, elementOf) {
    const home = box.getBoundingClientRect();
    const rects = new Map(actors.map((actor) => [actor.name, within(elementOf(actor.name), home)]));
    const shapes = [], labels = [];
    for (const receiver of actors) {
      const [group, role] = placeOf(receiver.name);
      for (const [from, to, kinds] of FLOWS) {
        if (to !== role) continue;
        const sender = senderOf(actors, from, group);
        if (!sender) continue;
        const rate = kinds.reduce((sum, kind) => sum + (receiver.kinds[kind] ?? 0), 0);
        const [a, b] = ends(rects.get(sender.name), rects.get(receiver.name));
        shapes.push(svg("path", { d: `M${a} L${b}`, class: rate ? "flows" : "", "marker-end": this.head }));
        if (rate) labels.push(label(a, b, rate));
      }
    }
    this.lines.replaceChildren(...shapes, ...labels);
  }
}

/** Return the actor of a role that a group's receiver hears from: the group's own, or else the one that all share. */
function senderOf(actors, role, group) {
  const found = actors.filter((actor) => placeOf(actor.name)[1] === role);
  return found.find((actor) => placeOf(actor.name)[0] === group) ?? found.find((actor) => !placeOf(actor.name)[0]);
}

function within(element, home) {
  const rect = element.getBoundingClientRect();
  return { x: rect.x - home.x + rect.width / 2, y: rect.y - home.y + rect.height / 2, w: rect.width / 2 + 4, h: rect.height / 2 + 4 };
}

/** Return where the line between two boxes leaves the one and reaches the other, moved to its own right. */
function ends(a, b) {
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const length = Math.hypot(dx, dy) || 1;
  const [sx, sy] = [(-dy / length) * APART, (dx / length) * APART];
  const cut = (box, sign) => {
    const scale = Math.min(box.w / Math.abs(dx || 1e-9), box.h / Math.abs(dy || 1e-9), 0.5);
    return [(box.x + sign * dx * scale + sx).toFixed(1), (box.y + sign * dy * scale + sy).toFixed(1)];
  };
  return [cut(a, 1), cut(b, -1)];
}

/** Return an arrow's number, beside it on the side away from the arrow that goes back. */
function label(a, b, rate) {
  const [x0, y0, x1, y1] = [...a, ...b].map(Number);
  const length = Math.hypot(x1 - x0, y1 - y0) || 1;
  const x = (x0 + x1) / 2 - ((y1 - y0) / length) * ASIDE, y = (y0 + y1) / 2 + ((x1 - x0) / length) * ASIDE;
  return svg("text", { x, y: y + 4 }, count(rate));
}
