// Elements and numbers as text.

export const $ = (id) => document.getElementById(id);

/** Make an element: `el("p", {class: "x", onclick: f}, "text", child)`. Text is text, never HTML. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Set text only where it differs, so that a screen reader's place and a selection stay. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const count = (number) =>
  number >= 1e6 ? `${(number / 1e6).toFixed(1)}M` : number >= 1e4 ? `${(number / 1e3).toFixed(0)}k`
    : number >= 100 || Number.isInteger(number) ? number.toFixed(0) : number.toFixed(1);

export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;

export const seconds = (value) =>
  value == null ? "–" : value < 1 ? `${(1e3 * value).toPrecision(3).replace(/\.?0+$/, (zeros) => (zeros.includes(".") ? "" : zeros))} ms`
    : `${value.toFixed(2)} s`;

export function bytes(size) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1024) return `${size.toFixed(size < 10 && unit !== "B" ? 1 : 0)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

export function table(heads, rows) {
  return el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, String(cell)))))));
}
