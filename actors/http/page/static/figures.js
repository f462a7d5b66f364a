// Two observations as rates and shares of the time between them. A counter that went back is of a new life: it counts whole.

const LATENCIES = {
  "First token": "time_to_first_token_seconds",
  "Between tokens": "inter_token_latency_seconds",
  "In the queue": "request_queue_time_seconds",
};

const isIndex = (part) => /^\d+$/.test(part);

/** Return the prefix of the replica and the role of an actor: "replica-0/executor/1" is ["replica-0", "executor"]. */
export function placeOf(name) {
  const parts = name.split("/");
  if (parts.length > 1 && isIndex(parts.at(-1))) parts.pop();
  return [parts.slice(0, -1).join("/"), parts.at(-1)];
}

function actorsOf(seen) {
  return Object.assign({}, ...Object.values(seen.nodes).map((node) => node.actors));
}

export function figuresOf(before, after) {
  const elapsed = Math.max(after.at - before.at, 1e-9);
  const rate = (was, now) => (now >= was ? now - was : now) / elapsed;
  const [old, now] = [actorsOf(before), actorsOf(after)];
  const actors = after.actors.map((entry) => {
    const is = now[entry.name], was = old[entry.name] ?? is;
    const kinds = {};
    for (const [kind, [handled]] of Object.entries(is?.kinds ?? {})) {
      kinds[kind] = rate(was.kinds?.[kind]?.[0] ?? 0, handled);
    }
    return {
      name: entry.name, node: entry.node, up: entry.up, restarts: entry.restarts, kinds,
      depth: is?.mailbox_depth ?? 0, deepest: is?.mailbox_depth_max ?? 0,
      messages: is ? rate(was.handled, is.handled) : 0,
      handling: is ? Math.min(1, rate(was.seconds, is.seconds)) : 0,
    };
  });
  return {
    actors, models: after.models,
    engine: engineOf(before, after, rate),
    latencies: Object.fromEntries(Object.entries(LATENCIES).map(([label, name]) => [label, latency(before, after, name)])),
    pools: Object.entries(after.pools).map(([name, pool]) => ({ name, ...pool })),
    nodes: Object.entries(after.nodes).map(([name, node]) => ({
      name, pid: node.pid, memory: node.resident_bytes,
      cpu: rate(before.nodes[name]?.cpu_seconds ?? node.cpu_seconds, node.cpu_seconds),
      dead: Object.values(node.dead_letters).reduce((sum, one) => sum + one, 0),
    })),
    requests: Object.values(after.frontends).flatMap((one) => one.open).sort((a, b) => b.seconds - a.seconds),
    open: Object.values(after.frontends).reduce((sum, one) => sum + one.num_open, 0),
  };
}

function engineOf(before, after, rate) {
  const total = (seen, name) => Object.values(seen.frontends).reduce((sum, one) => sum + one[name], 0);
  const sum = (name) => Object.values(after.schedulers).reduce((all, one) => all + one[name], 0);
  return {
    output: rate(total(before, "output_tokens"), total(after, "output_tokens")),
    prompt: rate(total(before, "prompt_tokens"), total(after, "prompt_tokens")),
    running: sum("num_running"), waiting: sum("num_waiting"),
  };
}

function latency(before, after, metric) {
  let bounds = [], counts = [];
  for (const [name, frontend] of Object.entries(after.frontends)) {
    const is = frontend.histograms[metric];
    if (!is) continue;
    const was = before.frontends[name]?.histograms[metric];
    bounds = is.bounds;
    is.counts.forEach((value, i) => { counts[i] = (counts[i] ?? 0) + Math.max(0, value - (was?.counts[i] ?? 0)); });
  }
  return { p50: quantile(bounds, counts, 0.5), p99: quantile(bounds, counts, 0.99) };
}

/** Return a quantile, evenly within the bucket that it falls into; above the last bound, that bound; null of nothing. */
export function quantile(bounds, counts, share) {
  const total = counts.reduce((sum, one) => sum + one, 0);
  if (!total) return null;
  let below = 0;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] && below + counts[i] >= share * total) {
      const low = i ? bounds[i - 1] : 0;
      return i < bounds.length ? low + ((bounds[i] - low) * (share * total - below)) / counts[i] : low;
    }
    below += counts[i];
  }
  return bounds.at(-1);
}
