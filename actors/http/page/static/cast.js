// The live cast: actors in their groups, arrows between them, KV blocks, requests and processes.

import { Arrows } from "./arrows.js";
import { drawPool } from "./blocks.js";
import { $, bytes, count, el, percent, say, seconds, svg, table } from "./dom.js";
import { figuresOf, placeOf } from "./figures.js";
import { Plug } from "./plug.js";
import { Timeline } from "./timeline.js";

const TIERS = [
  ["http", "frontend", "router"],
  ["tokenizer", "scheduler", "grammar"],
  ["blocks", "executor", "detokenizer", "drafter", "encoder"],
];
const MAILBOX_SHOWN = 12;
const SPARK_LENGTH = 60;
const REQUESTS_SHOWN = 12;
const FIGURES_SECONDS = 5; // latencies are of so many observations: a second alone has few requests

const tierOf = (role) => {
  const found = TIERS.findIndex((roles) => roles.includes(role));
  return found < 0 ? TIERS.length : found;
};

export class Cast {
  constructor() {
    this.seen = [];
    this.spark = [];
    this.shape = "";
    this.cards = new Map();
    this.arrows = new Arrows();
    this.plug = new Plug();
    this.timeline = new Timeline();
    new ResizeObserver(() => this.last && this.arrange()).observe($("groups"));
  }

  draw(observation) {
    if (this.seen.length && observation.at < this.seen.at(-1).at) this.seen = []; // the observer's next life
    this.seen.push(observation);
    this.seen = this.seen.slice(-FIGURES_SECONDS - 1);
    const figures = figuresOf(this.seen.at(-2) ?? observation, observation);
    figures.latencies = figuresOf(this.seen[0], observation).latencies;
    this.last = figures;
    this.spark = [...this.spark, figures.engine.output].slice(-SPARK_LENGTH);
    this.drawFigures(figures);
    this.drawActors(figures.actors);
    this.timeline.draw(observation);
    drawPools(figures.pools);
    $("requests").replaceChildren(requestTable(figures));
    $("nodes").replaceChildren(table(["process", "pid", "CPU", "memory", "dead letters"],
      figures.nodes.map((node) => [node.name, node.pid, percent(node.cpu), bytes(node.memory), node.dead])));
  }

  drawFigures({ engine, latencies }) {
    const most = Math.max(1, ...this.spark);
    const points = this.spark.map((value, i) => `${i},${(20 - (19 * value) / most).toFixed(1)}`).join(" ");
    const line = svg("svg", { viewBox: `0 0 ${SPARK_LENGTH - 1} 21`, preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("polyline", { points, class: "spark" }));
    const rows = [
      ["Output tokens/s", count(engine.output), line],
      ["Prompt tokens/s", count(engine.prompt)],
      ["Requests", count(engine.running), ` running, ${engine.waiting} waiting`],
      ...Object.entries(latencies).map(([label, { p50, p99 }]) => [label, seconds(p50), p50 == null ? "" : ` p99 ${seconds(p99)}`]),
    ];
    $("figures").replaceChildren(...rows.map(([label, value, more]) =>
      el("div", {}, el("dt", {}, label),
        el("dd", {}, value, typeof more === "string" ? el("small", {}, more) : more))));
  }

  drawActors(actors) {
    const shape = actors.map((actor) => actor.name).join();
    if (shape !== this.shape) {
      this.build(actors);
      this.shape = shape;
      this.plug.look().then(() => this.build(this.last.actors)).then(() => this.drawBoxes()); // with their buttons
    }
    const down = actors.filter((actor) => !actor.up).map((actor) => actor.name);
    say($("told"), down.length ? `down: ${down.join(", ")}` : "all actors are up");
    this.drawBoxes();
  }

  drawBoxes() {
    for (const actor of this.last.actors) this.cards.get(actor.name).draw(actor);
    this.arrange();
  }

  build(actors) {
    this.cards = new Map();
    const groups = Map.groupBy ? Map.groupBy(actors, groupOf) : grouped(actors);
    $("groups").replaceChildren(this.arrows.root, ...[...groups.entries()].map(([name, members]) => {
      const tiers = new Map();
      for (const actor of members) {
        const tier = tierOf(placeOf(actor.name)[1]);
        tiers.set(tier, [...(tiers.get(tier) ?? []), actor]);
      }
      return el("div", { class: "group", role: "group", "aria-label": name || "engine" },
        el("h4", {}, name || "engine", this.plug.drainButton(name)),
        ...[...tiers.entries()].sort(([a], [b]) => a - b).map(([tier, ones]) =>
          el("div", { class: "tier" }, ...ones.sort((a, b) => orderOf(a, tier) - orderOf(b, tier)).map((actor) => {
            const card = new Card(actor.name, this.plug);
            this.cards.set(actor.name, card);
            return card.box;
          }))));
    }));
  }

  arrange() {
    this.arrows.draw($("groups"), this.last.actors, (name) => this.cards.get(name).box);
  }
}

const groupOf = (actor) => placeOf(actor.name)[0];
const orderOf = (actor, tier) => (TIERS[tier] ?? []).indexOf(placeOf(actor.name)[1]);

function grouped(actors) {
  const found = new Map();
  for (const actor of actors) found.set(groupOf(actor), [...(found.get(groupOf(actor)) ?? []), actor]);
  return found;
}

/** One actor's box. */
class Card {
  constructor(name, plug) {
    this.title = el("span", {}, name.split("/").slice(placeOf(name)[0] ? placeOf(name)[0].split("/").length : 0).join("/"));
    this.restarts = el("span", { class: "restarts" });
    this.place = el("span");
    this.rate = el("span");
    this.mailbox = el("div", { class: "mailbox", "aria-hidden": "true" },
      ...Array.from({ length: MAILBOX_SHOWN }, () => el("i")));
    this.busy = el("i");
    this.spoken = el("span", { class: "hidden" });
    this.button = plug.killButton(name);
    this.box = el("article", { class: "actor", "data-actor": name, "aria-label": name },
      el("div", { class: "name" }, this.title, this.restarts),
      this.spoken, this.mailbox,
      el("div", { class: "meter", "aria-hidden": "true" }, this.busy),
      el("div", { class: "node" }, this.place, this.rate), ...[this.button, plug.policyChoice(name)].filter(Boolean));
  }

  draw(actor) {
    this.box.classList.toggle("down", !actor.up);
    say(this.restarts, actor.restarts ? `↻ ${actor.restarts}` : "");
    this.restarts.title = actor.restarts ? `${actor.restarts} restarts` : "";
    say(this.place, actor.up ? actor.node : "down");
    say(this.rate, `${count(actor.messages)}/s`);
    say(this.spoken, `${actor.up ? "up" : "down"}, mailbox ${actor.depth}, deepest ${actor.deepest}, `
      + `${percent(actor.handling)} of the time in handlers, ${actor.restarts} restarts`);
    this.box.title = `mailbox ${actor.depth} (deepest ${actor.deepest}), ${percent(actor.handling)} in handlers`;
    [...this.mailbox.children].forEach((slot, i) => slot.classList.toggle("full", i < actor.depth));
    this.busy.style.width = percent(actor.handling);
  }
}

function drawPools(pools) {
  const root = $("pools");
  if (root.childElementCount !== pools.length) {
    root.replaceChildren(...pools.map(() => el("div", { class: "pool" }, el("p"), el("canvas", { role: "img" }))));
  }
  pools.forEach((pool, i) => drawPool(root.children[i], pool));
}

function requestTable({ requests, open }) {
  if (!open) return el("p", { class: "note" }, "No request is open.");
  return table([`${open} open`, "age", "sequences", "prompt", "output"], requests.slice(0, REQUESTS_SHOWN).map((one) =>
    [one.request_id, seconds(one.seconds), one.num_sequences, one.num_prompt_tokens || "–", one.num_output_tokens]));
}
