/* Figures are drawn at their real width, so that text keeps its size. */

const figures = new Map(); // the host of every figure, and the function that draws it again

/** Draw the figures inside an element again. */
function redraw(inside = document.body) {
  for (const [host, again] of [...figures]) {
    if (inside.contains(host) || !host.isConnected) again();
  }
}

/** Draw into a host now and whenever its width changes. */
function figure(host, draw) {
  let width = 0;
  const again = () => {
    if (width && !host.isConnected) {
      figures.delete(host);
      observer.disconnect();
      return;
    }
    if (!host.clientWidth) return;
    width = host.clientWidth;
    draw(width);
  };
  const observer = new ResizeObserver(() => {
    if (Math.abs(host.clientWidth - width) > 1) again();
  });
  observer.observe(host);
  figures.set(host, again);
  return host;
}

/** The plot area of a figure and its two scales. */
class Plot {
  constructor({ width, height, margin, x, y }) {
    this.left = margin.left;
    this.top = margin.top;
    this.width = Math.max(10, width - margin.left - margin.right);
    this.height = height - margin.top - margin.bottom;
    this.right = this.left + this.width;
    this.bottom = this.top + this.height;
    [this.x0, this.x1] = x[0] === x[1] ? [x[0] - 0.5, x[1] + 0.5] : x;
    [this.y0, this.y1] = y[0] === y[1] ? [y[0] - 0.5, y[1] + 0.5] : y;
  }

  x(value) {
    return this.left + ((value - this.x0) / (this.x1 - this.x0)) * this.width;
  }

  y(value) {
    return this.bottom - ((value - this.y0) / (this.y1 - this.y0)) * this.height;
  }

  valueAt(pixel) {
    return this.x0 + ((pixel - this.left) / this.width) * (this.x1 - this.x0);
  }

  /** Horizontal grid lines with their values. */
  grid(svg, text, cap = Infinity) {
    const count = clamp(Math.floor(this.height / 42), 2, 6);
    for (const value of ticks(this.y0, Math.min(this.y1, cap), count)) {
      const y = this.y(value);
      svg.append(
        s("line", { x1: this.left, x2: this.right, y1: y, y2: y, stroke: "var(--grid)" }),
        s("text", { x: this.left - 9, y: y + 4, "text-anchor": "end" }, text(value)));
    }
  }

  /** Values below the plot; the last one carries the unit. */
  axis(svg, text, unit, integers) {
    const values = ticks(this.x0, this.x1, Math.min(8, this.width / 60), integers);
    values.forEach((value, i) => {
      const isLast = i === values.length - 1;
      const word = unit === "rounds" && value === 1 ? "round" : unit;
      const label = isLast && unit ? `${text(value)} ${word}` : text(value);
      const x = this.x(value);
      const near = isLast && x + 4 * label.length > this.right + 20;
      const anchor = near ? "end" : "middle";
      const place = near ? Math.min(x + 20, this.right + 20) : x;
      svg.append(s("text", { x: place, y: this.bottom + 22, "text-anchor": anchor }, label));
    });
  }

  /** A path through points; it has a gap where a value is unknown. */
  path(xs, ys) {
    let out = "";
    let pen = "M";
    for (let i = 0; i < xs.length; i++) {
      if (!isKnown(ys[i])) {
        pen = "M";
        continue;
      }
      out += `${pen}${this.x(xs[i]).toFixed(1)} ${this.y(ys[i]).toFixed(1)}`;
      pen = "L";
    }
    return out;
  }

  /** The area between two curves. */
  area(xs, upper, lower) {
    const keep = range(xs.length).filter((i) => isKnown(upper[i]) && isKnown(lower[i]));
    if (!keep.length) return "";
    const there = this.path(keep.map((i) => xs[i]), keep.map((i) => upper[i]));
    keep.reverse();
    const back = this.path(keep.map((i) => xs[i]), keep.map((i) => lower[i]));
    return `${there}${back.replace("M", "L")}Z`;
  }
}

/** Put a tip beside a position, inside its figure. */
function placeTip(tip, x, y, width) {
  const fits = x + 16 + tip.offsetWidth <= width;
  const left = fits ? x + 14 : x - tip.offsetWidth - 14;
  tip.style.left = `${clamp(left, 0, Math.max(0, width - tip.offsetWidth))}px`;
  tip.style.top = `${y}px`;
}

/** A line of a tip: a mark, a name and a value. */
function tipLine(mark, name, value) {
  return h("div", {}, mark, h("span", {}, name), h("span", {}, value));
}

function swatch(kind, colour) {
  return h("span", { class: `swatch ${kind || ""}`, style: `border-color:var(${colour})` });
}

/** Watch the pointer and the arrow keys over a figure; `show` gets an index or -1. */
function crosshair(svg, { count, indexAt, show, pick }) {
  let current = -1;
  const go = (index) => {
    current = index;
    show(index);
  };
  const pixel = (event) => event.clientX - svg.getBoundingClientRect().left;
  svg.addEventListener("pointermove", (event) => go(indexAt(pixel(event))));
  svg.addEventListener("pointerleave", () => go(-1));
  svg.addEventListener("blur", () => go(-1));
  if (pick) svg.addEventListener("click", (event) => pick(indexAt(pixel(event))));
  svg.addEventListener("keydown", (event) => {
    if (pick && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      pick(current);
      return;
    }
    const step = stepOf(event);
    if (!step) return;
    event.preventDefault();
    const start = pick ? -1 : count;
    go(clamp((current < 0 ? start : current) + step, 0, count - 1));
  });
}

/* ---------- lines ---------- */

/**
 * A chart of lines with their names at their ends.
 *
 * `spec` returns {label, height, x, y, cap, series, grid, yText, xText, xUnit, integers, tipTitle,
 * tipText, keepOrder}. A series is {name, tail, xs, ys, colour, dash, kind, width, mark, band,
 * from, area, strong, tipValue}; `band` are deviations, `mark` the index of a ring.
 */
function lines(spec) {
  const host = h("div", { class: "chart" });
  return figure(host, (width) => new LineChart(host, width, spec()).draw());
}

class LineChart {
  constructor(host, width, spec) {
    this.host = host;
    this.width = width;
    this.spec = spec;
    this.height = spec.height || 300;
    this.narrow = width < 520;
    const margin = { left: this.leftMargin(), right: this.rightMargin(), top: 12, bottom: 34 };
    this.plot = new Plot({ width, height: this.height, margin, x: spec.x, y: spec.y });
  }

  leftMargin() {
    const [low, high] = this.spec.y;
    const texts = ticks(low, high, 5).map((value) => this.spec.yText(value).length);
    return clamp(7 * Math.max(...texts, 3) + 16, 46, 84);
  }

  /** Room for the longest name at a line's end. */
  rightMargin() {
    const lengths = this.named().map((series) => this.endText(series).join(" ").length);
    const room = this.narrow ? this.width * 0.3 : 210;
    return clamp(7 * Math.max(...lengths, 3) + 26, 40, room);
  }

  named() {
    return this.spec.series.filter((series) => series.name && !series.quiet && series.xs.length);
  }

  endText(series) {
    const tail = this.narrow ? "" : series.tail || "";
    return [clipped(series.name, this.narrow ? 13 : 22), tail];
  }

  draw() {
    const { spec, plot } = this;
    this.svg = s("svg", {
      height: this.height,
      viewBox: `0 0 ${this.width} ${this.height}`,
      role: "img",
      tabindex: 0,
      "aria-label": `${spec.label}. Arrow keys move the cross-hair.`,
    });
    plot.grid(this.svg, spec.yText, spec.cap);
    plot.axis(this.svg, spec.xText, spec.xUnit, spec.integers);
    this.drawSeries();
    this.drawNames();
    this.tip = h("div", { class: "tip", hidden: true, "aria-live": "polite" });
    this.hair = s("line", {
      y1: plot.top, y2: plot.bottom, class: "hair", visibility: "hidden",
    });
    this.svg.append(this.hair);
    this.host.replaceChildren(this.svg, this.tip);
    this.positions = spec.grid || spec.series[0]?.xs || [];
    crosshair(this.svg, {
      count: this.positions.length,
      indexAt: (pixel) => this.nearest(pixel),
      show: (index) => this.show(index),
    });
  }

  /** The lines, cut off at the edges of the plot by an inner picture. */
  drawSeries() {
    const { plot } = this;
    const [x, y, width, height] = [plot.left - 6, plot.top - 6, plot.width + 12, plot.height + 8];
    const body = s("svg", {
      x, y, width, height, viewBox: `${x} ${y} ${width} ${height}`, class: "inner",
    });
    for (const series of this.spec.series) this.drawOne(body, series);
    this.svg.append(body);
  }

  drawOne(body, series) {
    const { plot } = this;
    const { xs, ys, colour } = series;
    const fill = `var(${colour})`;
    if (series.area) {
      const floor = series.from || xs.map(() => 0);
      body.append(s("path", { d: plot.area(xs, ys, floor), fill, opacity: series.area }));
    }
    if (series.band) {
      const upper = ys.map((value, i) => value + series.band[i]);
      const lower = ys.map((value, i) => value - series.band[i]);
      body.append(s("path", { d: plot.area(xs, upper, lower), fill, opacity: 0.16 }));
    }
    const round = series.kind === "dots" ? "round" : null;
    body.append(s("path", {
      d: plot.path(xs, ys),
      fill: "none",
      stroke: fill,
      "stroke-width": series.width || 2,
      "stroke-dasharray": series.dash,
      "stroke-linejoin": "round",
      "stroke-linecap": round,
      opacity: series.opacity,
    }));
    const single = xs.length === 1 ? 0 : undefined;
    this.ring(body, series, series.mark ?? single);
  }

  ring(body, series, index) {
    if (index === undefined || !isKnown(series.ys[index])) return;
    body.append(s("circle", {
      cx: this.plot.x(series.xs[index]),
      cy: this.plot.y(series.ys[index]),
      r: 4,
      fill: "var(--panel)",
      stroke: `var(${series.colour})`,
      "stroke-width": 2,
    }));
  }

  /** Names beside the ends of the lines, moved apart where they would overlap. */
  drawNames() {
    const { plot } = this;
    const ends = this.named().map((series) => this.endOf(series)).filter(Boolean);
    const early = ends.filter((end) => end.x < plot.right - 60);
    const late = ends.filter((end) => end.x >= plot.right - 60);
    for (const end of early) this.svg.append(this.nameAt(end, end.x + 10, end.y + 4));
    spread(late, 16, plot.top + 4, plot.bottom);
    for (const end of late) {
      const x = plot.right + 14;
      this.svg.append(
        s("path", {
          d: `M${end.x.toFixed(1)} ${end.y.toFixed(1)}L${x - 3} ${end.place.toFixed(1)}`,
          stroke: `var(${end.series.colour})`,
          opacity: 0.5,
        }),
        this.nameAt(end, x, end.place + 4));
    }
  }

  endOf(series) {
    let last = series.ys.length - 1;
    while (last >= 0 && !isKnown(series.ys[last])) last--;
    if (last < 0) return null;
    const y = clamp(this.plot.y(series.ys[last]), this.plot.top, this.plot.bottom);
    return { series, x: this.plot.x(series.xs[last]), y };
  }

  nameAt({ series }, x, y) {
    const [name, tail] = this.endText(series);
    const strong = series.strong === false ? "name" : "name strong";
    const style = `fill:color-mix(in srgb, var(${series.colour}) 78%, var(--ink))`;
    return s("text", { x, y, class: strong, style }, name,
      tail ? s("tspan", { "font-weight": 400, dx: 5 }, tail) : null);
  }

  nearest(pixel) {
    const { plot, positions } = this;
    if (pixel < plot.left - 8 || pixel > plot.right + 8) return -1;
    const value = plot.valueAt(pixel);
    let best = 0;
    for (let i = 1; i < positions.length; i++) {
      if (Math.abs(positions[i] - value) < Math.abs(positions[best] - value)) best = i;
    }
    return best;
  }

  show(index) {
    const isOff = index < 0 || index >= this.positions.length;
    this.tip.hidden = isOff;
    this.hair.setAttribute("visibility", isOff ? "hidden" : "visible");
    if (isOff) return;
    const position = this.positions[index];
    const x = this.plot.x(position);
    this.hair.setAttribute("x1", x);
    this.hair.setAttribute("x2", x);
    this.tip.replaceChildren(h("b", {}, this.spec.tipTitle(position)), ...this.tipLines(position));
    placeTip(this.tip, x, this.plot.top, this.width);
  }

  tipLines(position) {
    const values = [];
    for (const series of this.spec.series) {
      if (!series.name || !series.xs.length || position > series.xs.at(-1) * 1.0001) continue;
      const at = lastUpTo(series.xs, position);
      if (at < 0) continue;
      values.push({ series, value: series.tipValue ? series.tipValue(at) : series.ys[at] });
    }
    if (!this.spec.keepOrder) values.sort((a, b) => b.value - a.value);
    return values.map(({ series, value }) =>
      tipLine(swatch(series.kind, series.colour), series.name, this.spec.tipText(value)));
  }
}

/** The index of the last position that is not beyond a value; -1 if all are. */
function lastUpTo(positions, value) {
  let low = -1;
  for (let i = 0; i < positions.length && positions[i] <= value * (1 + 1e-9); i++) low = i;
  return low;
}

/** Move labels apart, inside a range: `place` becomes their height, near to `y`. */
function spread(labels, gap, low, high) {
  labels.sort((a, b) => a.y - b.y);
  for (const label of labels) label.place = clamp(label.y, low, high);
  for (let pass = 0; pass < 80; pass++) {
    for (let i = 1; i < labels.length; i++) {
      const missing = gap - (labels[i].place - labels[i - 1].place);
      if (missing <= 0.01) continue;
      labels[i].place += missing / 2;
      labels[i - 1].place -= missing / 2;
    }
  }
  const first = labels[0];
  if (first && first.place < low) labels.forEach((label, i) => {
    label.place = Math.max(label.place, low + i * gap);
  });
  labels.toReversed().forEach((label, i) => {
    label.place = Math.min(label.place, Math.max(high, low + gap * (labels.length - 1)) - i * gap);
  });
}

/* ---------- one dot per device ---------- */

/**
 * A chart with a place for every device, in a given order.
 *
 * `spec` returns {label, height, ids, y, yText, cap, caption, layers, tip, pick, marked}. A layer
 * is {values, colour, look, to}; its look is "dot", "ring", "dash", "cross" or "stem". A stem leads
 * from `values` to `to`.
 */
function deviceChart(spec) {
  const host = h("div", { class: "chart" });
  host.mark = () => {};
  return figure(host, (width) => new DeviceChart(host, width, spec()).draw());
}

class DeviceChart {
  constructor(host, width, spec) {
    this.host = host;
    this.width = width;
    this.spec = spec;
    this.height = spec.height || 320;
    const margin = { left: 58, right: 12, top: 14, bottom: spec.caption ? 32 : 12 };
    const x = [0, spec.ids.length];
    this.plot = new Plot({ width, height: this.height, margin, x, y: spec.y });
    this.step = this.plot.width / spec.ids.length;
    this.dot = clamp(this.step * 0.74, 2.6, 11);
    this.columnWidth = clamp(this.step, 4, 48);
  }

  draw() {
    const { spec, plot } = this;
    this.svg = s("svg", {
      height: this.height,
      viewBox: `0 0 ${this.width} ${this.height}`,
      role: "img",
      tabindex: 0,
      class: "pickable",
      "aria-label": `${spec.label}. Arrow keys move, Enter shows the device in the tree.`,
    });
    plot.grid(this.svg, spec.yText, spec.cap);
    this.selected = this.column("selected");
    this.hovered = this.column("hovered");
    this.svg.append(this.selected, this.hovered);
    for (const layer of spec.layers) this.svg.append(...this.layer(layer));
    if (spec.caption) {
      this.svg.append(s("text", { x: plot.left, y: this.height - 8 }, spec.caption));
    }
    this.tip = h("div", { class: "tip", hidden: true, "aria-live": "polite" });
    this.host.replaceChildren(this.svg, this.tip);
    crosshair(this.svg, {
      count: spec.ids.length,
      indexAt: (pixel) => this.indexAt(pixel),
      show: (index) => this.show(index),
      pick: (index) => {
        if (index >= 0) spec.pick(spec.ids[index]);
      },
    });
    this.host.mark = (device) => this.mark(device);
    this.mark(spec.marked());
  }

  column(name) {
    return s("rect", {
      y: this.plot.top - 6,
      height: this.plot.height + 12,
      width: this.columnWidth,
      rx: 4,
      class: name,
      visibility: "hidden",
    });
  }

  center(index) {
    return this.plot.left + (index + 0.5) * this.step;
  }

  /** One path for a whole layer: a thousand dots are one element. */
  layer({ values, colour, look, to }) {
    const path = (draw) =>
      values.map((value, i) => (isKnown(value) ? draw(i, this.plot.y(value)) : "")).join("");
    const at = (i) => this.center(i).toFixed(1);
    const stroke = `var(${colour})`;
    const round = { stroke, "stroke-linecap": "round" };
    if (look === "stem") {
      const d = path((i, y) => `M${at(i)} ${y.toFixed(1)}V${this.plot.y(to[i]).toFixed(1)}`);
      const opacity = this.step < 3 ? 0.6 : 1;
      return [s("path", { d, stroke, opacity, "stroke-width": clamp(this.step * 0.24, 1, 4) })];
    }
    if (look === "dash") {
      const half = Math.max(1.5, this.step * 0.36);
      const left = (i) => (this.center(i) - half).toFixed(1);
      const d = path((i, y) => `M${left(i)} ${y.toFixed(1)}h${(2 * half).toFixed(1)}`);
      return [s("path", { d, stroke, "stroke-width": this.step < 3 ? 1 : 1.8 })];
    }
    if (look === "cross") {
      const r = clamp(this.dot / 2, 2, 4);
      const draw = (i, y) => `M${(this.center(i) - r).toFixed(1)} ${(y - r).toFixed(1)}` +
        `l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`;
      return [s("path", { d: path(draw), stroke, "stroke-width": 1.6, fill: "none" })];
    }
    const d = path((i, y) => `M${at(i)} ${y.toFixed(1)}h0`);
    if (look === "dot") return [s("path", { d, ...round, "stroke-width": this.dot })];
    const out = [s("path", { d, ...round, "stroke-width": this.dot * 0.86 })];
    if (this.step > 5) {
      const inner = this.dot * 0.86 - 3.4;
      out.push(s("path", { d, ...round, stroke: "var(--panel)", "stroke-width": inner }));
    }
    return out;
  }

  indexAt(pixel) {
    const { plot, spec } = this;
    if (pixel < plot.left - 4 || pixel > plot.right + 4) return -1;
    return clamp(Math.floor((pixel - plot.left) / this.step), 0, spec.ids.length - 1);
  }

  move(column, index) {
    column.setAttribute("visibility", index < 0 ? "hidden" : "visible");
    if (index >= 0) column.setAttribute("x", this.center(index) - this.columnWidth / 2);
  }

  mark(device) {
    this.move(this.selected, this.spec.ids.indexOf(device));
  }

  show(index) {
    this.tip.hidden = index < 0;
    this.move(this.hovered, index);
    if (index < 0) return;
    this.tip.replaceChildren(...this.spec.tip(index));
    placeTip(this.tip, this.center(index), this.plot.top, this.width);
  }
}
