// The KV blocks of a pool as a picture: a square a block, or a square for several where there are many.

import { count, percent } from "./dom.js";

const SQUARE = 9; // pixels, with the gap
const ROWS = 12;

/** Draw a square a block, or a square for several; `colourOf(first, each)` names the colour of the blocks from `first` on. */
export function drawSquares(canvas, width, blocks, colourOf) {
  const { columns, each } = layout(width, blocks);
  const squares = Math.ceil(blocks / each);
  const ratio = devicePixelRatio || 1;
  const height = Math.max(1, Math.ceil(squares / columns)) * SQUARE;
  canvas.width = columns * SQUARE * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  canvas.style.width = `${columns * SQUARE}px`;
  const style = getComputedStyle(document.documentElement);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  for (let i = 0; i < squares; i++) {
    context.fillStyle = style.getPropertyValue(colourOf(i * each, Math.min(each, blocks - i * each)));
    context.fillRect((i % columns) * SQUARE, Math.floor(i / columns) * SQUARE, SQUARE - 2, SQUARE - 2);
  }
}

function layout(width, blocks) {
  const columns = Math.max(8, Math.floor(width / SQUARE));
  return { columns, each: Math.max(1, Math.ceil(blocks / (columns * ROWS))) };
}

export function drawPool(box, pool) {
  const [text, canvas] = box.children;
  const { num_blocks: blocks, blocks_held: held, blocks_cached: cached } = pool;
  const { each } = layout(box.clientWidth, blocks);
  const hits = pool.tokens_queried ? `, ${percent(pool.tokens_hit / pool.tokens_queried)} of prompt tokens found cached` : "";
  const scale = each > 1 ? `; a square is ${each} blocks` : "";
  const told = `${pool.name}: ${count(held)} held, ${count(cached)} cached, ${count(blocks - held - cached)} free of ${count(blocks)} blocks${hits}${scale}`;
  if (text.textContent !== told) text.textContent = told;
  canvas.setAttribute("aria-label", told);
  // Statistics count blocks and do not say where they lie: held ones come first. A square of several has its fullest state.
  const bounds = [held, held + cached];
  drawSquares(canvas, box.clientWidth, blocks, (first) => (first < bounds[0] ? "--accent" : first < bounds[1] ? "--cached" : "--free"));
}
