// The page: a chat, and the live cast. Draws while somebody looks, and follows nothing while the page is hidden.

import { Chat } from "./chat.js";
import { Cast } from "./cast.js";
import { $, say } from "./dom.js";
import { follow, getJson } from "./server.js";

const RETRY_MILLISECONDS = 2000;

function show(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll(".views button")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === view));
  }
  follower.look();
}

/** Follows the server's statistics while the cast is in view. */
class Follower {
  constructor(cast) {
    this.cast = cast;
    this.following = null;
    this.isPaused = false;
  }

  get isWanted() {
    return !document.hidden && !this.isPaused && $("cast").offsetParent !== null;
  }

  look() {
    if (!this.isWanted) this.following?.abort();
    else if (!this.following || this.following.signal.aborted) this.run(this.following = new AbortController());
  }

  async run(following) {
    const { signal } = following;
    while (!signal.aborted) {
      try {
        this.cast.draw(await getJson("statistics?steps=240"));
        await follow("statistics/stream", signal, (seen) => {
          if (seen === null) this.tell("away", "The observer does not answer; waiting for its next life");
          else {
            this.cast.draw(seen);
            this.tell("live", "Live");
          }
        });
      } catch (error) {
        if (!signal.aborted) this.tell("away", `No statistics: ${error.message}`);
      }
      if (!signal.aborted) await new Promise((after) => setTimeout(after, RETRY_MILLISECONDS));
    }
  }

  tell(state, text) {
    $("status").className = `status ${state}`;
    say($("status"), text);
  }
}

const chat = new Chat();
const cast = new Cast();
const follower = new Follower(cast);

for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => show(button.dataset.view));
}
$("pause").addEventListener("click", () => {
  follower.isPaused = !follower.isPaused;
  $("pause").setAttribute("aria-pressed", String(follower.isPaused));
  if (follower.isPaused) follower.tell("", "Paused");
  follower.look();
});
document.addEventListener("visibilitychange", () => follower.look());
matchMedia("(min-width: 68rem)").addEventListener("change", () => follower.look());
follower.look();
chat.start().then((models) => {
  if (!$("status").classList.contains("live")) follower.tell("live", models.join(", "));
}, (error) => follower.tell("away", error.message));
