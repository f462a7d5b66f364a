// What an operator may do from the cast, where the server lets them: kill an actor's process, drain a replica, swap a policy.

import { $, el, say } from "./dom.js";
import { placeOf } from "./figures.js";
import { ask } from "./server.js";

export class Plug {
  constructor() {
    this.killable = {};
    this.canDrain = false;
    this.schedulers = {};
    this.policies = [];
  }

  /** Find out what this server allows. A refusal means that the buttons stay away. */
  async look() {
    const allowed = async (path) => ask(path).then((answer) => answer.json(), () => null);
    const { routes = [] } = await ask("./", { headers: { accept: "application/json" } }).then((answer) => answer.json(), () => ({}));
    if (routes.includes("/actors/killable")) this.killable = (await allowed("actors/killable"))?.actors ?? {};
    if (routes.includes("/schedulers")) Object.assign(this, await allowed("schedulers"));
    const hasReplicas = Object.keys(this.killable).some((name) => placeOf(name)[0]);
    this.canDrain = hasReplicas && (await allowed("replicas")) !== null;
  }

  killButton(name) {
    const others = (this.killable[name] ?? []).filter((one) => one !== name);
    if (!(name in this.killable)) return null;
    const title = others.length ? `ends its process, with ${others.join(", ")}` : "ends its process";
    return el("button", { type: "button", class: "danger", title, "aria-label": `Kill ${name}`,
      onclick: () => order(`actors/kill?name=${encodeURIComponent(name)}`, `${name} was killed`) }, "Kill");
  }

  /** A choice of policies for a scheduler's box, where this server lets one swap them. */
  policyChoice(name) {
    if (!(name in this.schedulers)) return null;
    const choice = el("select", { "aria-label": `Policy of ${name}` },
      ...[...new Set([...this.policies, this.schedulers[name]])].map((policy) =>
        el("option", { value: policy, selected: policy === this.schedulers[name] }, policy)));
    choice.addEventListener("change", async () => {
      choice.disabled = true;
      const query = `name=${encodeURIComponent(name)}&policy=${encodeURIComponent(choice.value)}`;
      const done = await order(`schedulers/policy?${query}`, `${name} has the policy ${choice.value}`);
      if (done) this.schedulers[name] = choice.value;
      choice.value = this.schedulers[name];
      choice.disabled = false;
    });
    return choice;
  }

  drainButton(group) {
    if (!this.canDrain || !group) return null;
    const [name, ...models] = group.split("/").reverse();
    const model = models.length ? `&model=${encodeURIComponent(models.reverse().join("/"))}` : "";
    return el("button", { type: "button", "aria-label": `Drain ${name}`,
      onclick: () => order(`replicas/drain?name=${encodeURIComponent(name)}${model}`, `${name} is drained`) }, "Drain");
  }
}

async function order(path, done) {
  try {
    await ask(path, { method: "POST", headers: { "content-type": "application/json" } });
    say($("order"), done);
    return true;
  } catch (error) {
    say($("order"), error.message);
    return false;
  }
}
