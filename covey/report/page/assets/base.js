/* Elements, numbers and colours: what every part of the page uses. */

const SVG = "http://www.w3.org/2000/svg"; // a name, not an address that is asked

/** The parts of the page by their places, with gaps for new ones; every file adds its own. */
const PARTS = [];

/** Set attributes and listeners of an element, then append its children as text or elements. */
function put(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(typeof child === "string" ? child.replace(/ %/g, "\u00a0%") : child);
  }
  return element;
}

/** An HTML element. */
function h(tag, attributes, ...children) {
  return put(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function s(tag, attributes, ...children) {
  return put(document.createElementNS(SVG, tag), attributes, children);
}

/** What rooms add beside parts: a tile of a run, figures of devices, a column of runs. */
const ROOMS = [];

const EMPTY = "–";

function isKnown(value) {
  return value !== null && value !== undefined && !Number.isNaN(value);
}

/** A share in per cent, without the sign. */
function percent(share, digits = 1) {
  return isKnown(share) ? (100 * share).toFixed(digits) : EMPTY;
}

/** A number in per cent or points with its sign; the minus is a real one. */
function signed(share, digits = 1) {
  const text = (100 * share).toFixed(digits);
  if (Number(text) > 0) return `+${text}`;
  if (Number(text) < 0) return `−${text.slice(1)}`;
  return (0).toFixed(digits);
}

/** A number with its sign, and three digits that count. */
function signedShort(value) {
  const size = String(Number(Math.abs(value).toPrecision(3)));
  if (Math.abs(value) < 1e-9) return "0";
  return value > 0 ? `+${size}` : `−${size}`;
}

/** A number with four digits that count. */
function short(value) {
  if (!isKnown(value)) return EMPTY;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function whole(count) {
  return Math.round(count).toLocaleString("en");
}

function plural(count, word) {
  return `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
}

function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : text;
}

/** A name of at most so many characters. */
function clipped(text, length) {
  return text.length > length ? `${text.slice(0, Math.max(1, length - 1))}…` : text;
}

const BYTES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
const HERTZ = [[1e9, "GHz"], [1e6, "MHz"], [1e3, "kHz"], [1, "Hz"]];
const SECONDS = [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
const JOULES = [[1e6, "MJ"], [1e3, "kJ"], [1, "J"], [1e-3, "mJ"], [1e-6, "µJ"]];

/** The unit that suits an amount, as [size, name]. */
function unitOf(amount, units) {
  return units.find(([size]) => amount >= size) || units.at(-1);
}

/** An amount and its unit as two texts. */
function amountParts(amount, units) {
  if (!isKnown(amount)) return [EMPTY, ""];
  if (!amount) return ["0", units === BYTES ? "" : units.find(([size]) => size === 1)[1]];
  const [size, name] = unitOf(amount, units);
  const value = amount / size;
  const text = value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  return [text, name];
}

function amount(value, units) {
  return amountParts(value, units).filter(Boolean).join("\u00a0");
}

function bytes(count) {
  return amount(count, BYTES);
}

/** Seconds up to two minutes as seconds, then as minutes and hours. */
function duration(seconds) {
  if (seconds >= 1 && seconds < 120) return `${short(Number(seconds.toPrecision(3)))}\u00a0s`;
  return amount(seconds, SECONDS);
}

function sum(values) {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

function mean(values) {
  return values.length ? sum(values) / values.length : null;
}

/** The standard deviation of a sample; null of fewer than two values. */
function deviation(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(sum(values.map((value) => (value - middle) ** 2)) / (values.length - 1));
}

/** Student's 95 % interval of a mean; null of fewer than two values. */
function studentInterval(values) {
  const df = values.length - 1;
  if (df < 1) return null;
  const series = [1.959964, 2.37228, 2.8226, 2.55586, 1.58895]; // of t in 1/df
  const t = [12.7062, 4.3027][df - 1] ?? sum(series.map((factor, k) => factor / df ** k));
  const half = (t * deviation(values)) / Math.sqrt(values.length);
  return [mean(values) - half, mean(values) + half];
}

/** The min and max of the known values; [0, 1] of none. */
function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!isKnown(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : [low, high];
}

function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

function range(count) {
  return Array.from({ length: count }, (_, i) => i);
}

function running(values) {
  let total = 0;
  return values.map((value) => (total += value));
}

/** Wilson's 95 % interval of a share: how much so few test examples can tell. */
function wilson(right, count) {
  if (!count) return [0, 1];
  const z = 1.96;
  const share = right / count;
  const scale = 1 + (z * z) / count;
  const center = share + (z * z) / (2 * count);
  const half = z * Math.sqrt((share * (1 - share)) / count + (z * z) / (4 * count * count));
  return [Math.max(0, (center - half) / scale), Math.min(1, (center + half) / scale)];
}

/** Round numbers between two values, about so many. */
function ticks(low, high, count, integers = false) {
  const raw = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const steps = integers ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  let step = steps.map((m) => m * power).find((m) => m >= raw * 0.999);
  if (integers) step = Math.max(1, step);
  const out = [];
  const first = Math.ceil(low / step - 1e-9) * step;
  for (let value = first; value <= high + step * 1e-6; value += step) {
    out.push(Number(value.toPrecision(12)));
  }
  return out;
}

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

/** The colour between two, at a share from 0 to 1. */
function mix(from, to, share) {
  const start = rgb(from);
  const end = rgb(to);
  const parts = start.map((value, i) => Math.round(value + (end[i] - value) * share));
  return `rgb(${parts.join(",")})`;
}

function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

/** The key that was pressed as a step to the left or right; 0 for other keys. */
function stepOf(event) {
  return { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key] || 0;
}

/** Buttons of which one is chosen; `choices` are [value, text, reason why it is disabled]. */
function segmented(name, label, choices, chosen, pick) {
  const options = choices.map(([value, text, reason]) =>
    h("label", { title: reason || null },
      h("input", {
        type: "radio",
        name,
        value,
        checked: value === chosen,
        disabled: Boolean(reason),
        onchange: () => pick(value),
      }),
      h("span", {}, text)));
  return h("fieldset", { class: "seg", "aria-label": label }, options);
}

function checkbox(name, text, checked, pick) {
  const input = h("input", {
    type: "checkbox", name, checked, onchange: (event) => pick(event.target.checked),
  });
  return h("label", { class: "check" }, input, text);
}

/** A part of the page: its head with a note and tools, then its panels. */
function section(id, name, note, tools, ...body) {
  const head = h("div", {},
    h("h2", { id: `${id}-h` }, name),
    note ? h("p", { class: "note" }, note) : null);
  return h("section", { id, "aria-labelledby": `${id}-h` },
    h("div", { class: "head" }, head, tools ? h("div", { class: "tools" }, tools) : null),
    ...body);
}

/** A table of texts and elements; it scrolls in its own box. */
function table(label, head, rows) {
  const cells = head.map((text) => h("th", { scope: "col" }, text));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, h("tr", {}, cells)), h("tbody", {}, rows)));
}

/** Offer a text as a file to save. */
function save(name, text) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Rows as CSV; a cell with a comma or quotes is quoted, and no cell starts a formula. */
function csv(rows) {
  const cell = (value) => {
    let text = isKnown(value) ? String(value) : "";
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${rows.map((row) => row.map(cell).join(",")).join("\n")}\n`;
}
