// Requests to the server, and its streams of events.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Return the URL of a path relative to the page's, so that the page works below a proxy's prefix. A name and a
 *  password in the page's own URL are left out, with which a browser makes no requests. */
const urlOf = (path) => new URL(path, location.origin + location.pathname);

/** Ask the server. */
export async function ask(path, options = {}) {
  const answer = await fetch(urlOf(path), options);
  if (answer.ok) return answer;
  let message = answer.statusText;
  try {
    message = (await answer.json()).error.message;
  } catch { /* a proxy's error, which is no JSON */ }
  throw new Refused(answer.status, message);
}

export const getJson = async (path) => (await ask(path)).json();

export const post = (path, body, signal) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });

/** Give each message of a WebSocket to `take`, until the signal or the server ends it. */
export async function follow(path, signal, take) {
  if (signal.aborted) return;
  const place = urlOf(path);
  place.protocol = place.protocol.replace("http", "ws");
  const socket = new WebSocket(place);
  signal.addEventListener("abort", () => socket.close(), { once: true });
  socket.onmessage = ({ data }) => take(JSON.parse(data));
  await new Promise((resolve, reject) => {
    socket.onerror = () => reject(new Error("the connection was lost"));
    socket.onclose = resolve;
  });
}

/** Yield the server-sent events of a response: `{event, data}`. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (kept + value).split(/\r?\n\r?\n/);
      kept = parts.pop();
      for (const part of parts) {
        const found = { event: "message", data: [] };
        for (const line of part.split(/\r?\n/)) {
          if (line.startsWith("data:")) found.data.push(line.slice(5).replace(/^ /, ""));
          if (line.startsWith("event:")) found.event = line.slice(6).trim();
        }
        if (found.data.length) yield { event: found.event, data: found.data.join("\n") };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
