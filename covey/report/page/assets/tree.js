/* The tree of the run: a node per machine, coloured by a figure, walked with the arrow keys. */

/** What nodes can be coloured by. */
function colourKinds(seed) {
  const kinds = [
    ["metric", capital(seed.run.metric.name), seed.metricReason],
    ["gain", "Gain over global", gainReason(seed)],
    ["sparsity", "Non-zero weights"],
  ];
  if (seed.facts.asked) kinds.push(["asked", "Rounds asked"]);
  return kinds;
}

function gainReason(seed) {
  if (!seed.global) return "this run has no global model";
  if (seed.modelNames().length < 2) return "this run has the global model alone";
  return seed.metricReason;
}

/** The figure of one node; null where it is unknown. */
function nodeValue(seed, kind, tier, id) {
  const model = seed.modelOf(tier);
  const span = seed.span(tier, id);
  if (kind === "metric") return seed.value(model, span);
  if (kind === "gain") return seed.gain(model, seed.global, span);
  if (kind === "asked") return seed.facts.asked[tier]?.[id] ?? null;
  const { sparsity, tier: keeper } = seed.models[model];
  if (!sparsity) return null;
  return sparsity[keeper === tier ? id : 0] ?? null;
}

function nodeText(seed, kind, value) {
  if (!isKnown(value)) return "unknown";
  if (kind === "metric") return seed.run.metric.text(value);
  if (kind === "gain") return seed.run.gainText(value);
  if (kind === "asked") return plural(value, "round");
  return `${percent(value)} %`;
}

/* ---------- colours ---------- */

const RAMPS = {
  metric: { light: ["#ece9f6", "#46298c"], dark: ["#2b2643", "#cbbcff"] },
  other: { light: ["#eceff1", "#25313b"], dark: ["#262c32", "#e3e9ee"] },
  middle: { light: "#e7e8e8", dark: "#343b43" },
};

/** The scale of a figure: its two ends, its colours and their texts. */
function colourScale(seed, kind, values) {
  const known = values.filter(isKnown).sort((a, b) => a - b);
  if (kind === "gain") return gainScale(seed, known);
  const theme = isDark() ? "dark" : "light";
  const [pale, full] = RAMPS[kind === "metric" ? "metric" : "other"][theme];
  const [low, high] = scaleEnds(seed, kind, known);
  const share = (value) => clamp((value - low) / (high - low || 1), 0, 1);
  const isReversed = kind === "metric" && seed.run.metric.better < 0;
  const of = (value) => mix(pale, full, isReversed ? 1 - share(value) : share(value));
  const isShare = kind === "sparsity" || (kind === "metric" && seed.run.metric.isCount);
  const text = (value) => (isShare ? `${percent(value, 0)} %` : nodeText(seed, kind, value));
  const ends = [text(low), text(high)];
  if (isReversed) ends.reverse();
  return { of, ends, stops: [pale, full], high };
}

function scaleEnds(seed, kind, known) {
  const last = known.at(-1) ?? 1;
  if (kind === "asked") return [0, seed.bytesByRound().length || last];
  if (kind === "sparsity") return [0, Math.max(0.05, last)];
  const low = known[Math.floor(0.02 * known.length)] ?? 0;
  const { cap, floor } = seed.run.metric;
  if (cap === 1 && floor === 0) return [Math.floor(20 * low) / 20, 1];
  return [low, known[Math.floor(0.98 * (known.length - 1))] ?? 1];
}

/** Brick for losses and violet for gains, grey around 0. */
function gainScale(seed, known) {
  const { metric } = seed.run;
  const isShare = metric.isCount || metric.isRelative;
  const least = isShare || metric.cap === 1 ? 0.01 : 1e-9;
  const most = Math.max(least, ...known.map(Math.abs));
  const whole = `${Math.round(100 * most)} ${metric.gainUnit}`;
  const size = isShare ? whole : signedShort(most).slice(1);
  const middle = RAMPS.middle[isDark() ? "dark" : "light"];
  const loss = cssColour("--loss");
  const gain = cssColour("--gain-end");
  return {
    of: (value) => mix(middle, value < 0 ? loss : gain, Math.min(1, Math.abs(value) / most)),
    ends: [`loses ${size}`, `gains ${size}`],
    stops: [loss, middle, gain],
    high: most,
  };
}

/* ---------- places ---------- */

const LEVEL = 92; // px between two tiers
const TREE_TOP = 26;
const LEAST_GROUP = 17; // px: groups narrower than this are put on several shelves,
const LEAST_PITCH = 9; // and groups whose devices are closer than this
const MOST_SHELVES = 12;

/**
 * Where every node goes. Devices stand in one row while there is room, else in a block under the
 * node above them. Where even the blocks are too many for one line, they stand on shelves.
 */
class TreeLayout {
  constructor(seed, width) {
    this.seed = seed;
    this.width = width;
    this.over = seed.tiers.at(-2);
    this.groups = range(seed.size(this.over)).map((id) => seed.span(this.over, id));
    this.chooseShelves();
    this.places = { [seed.leaf]: [], [this.over]: [] };
    this.boxes = [];
    this.shelves = [];
    this.layDevices();
    this.layUpper();
  }

  /** As few shelves as leave room for every group and for every device in it. */
  chooseShelves() {
    const count = this.groups.length;
    for (let shelves = 1; shelves <= Math.min(count, MOST_SHELVES); shelves++) {
      this.perShelf = Math.ceil(count / shelves);
      this.measure();
      const isWide = this.width / this.perShelf >= LEAST_GROUP;
      if (isWide && (this.isRow || this.pitch >= LEAST_PITCH)) return;
    }
  }

  measure() {
    this.gap = clamp(this.width / this.perShelf / 6, 1, 22);
    this.room = this.width - this.gap * (this.perShelf - 1);
    this.largest = this.largestShelf();
    this.isRow = !this.isShelved && this.room / this.largest >= 13;
    this.pitch = this.isRow ? Math.min(26, this.room / this.largest) : this.blockPitch();
  }

  get isShelved() {
    return this.perShelf < this.groups.length;
  }

  /** Where the lowest tier above the devices starts. */
  get overTop() {
    return TREE_TOP + LEVEL * (this.seed.tiers.length - 2);
  }

  layDevices() {
    this.radius = clamp(this.pitch * 0.41, 1.8, 9);
    let y = this.overTop;
    for (let first = 0; first < this.groups.length; first += this.perShelf) {
      y = this.layShelf(first, y);
    }
    this.height = y;
  }

  /** How far devices are below the node above them. */
  get drop() {
    if (this.isShelved) return 44;
    return this.isRow ? LEVEL : LEVEL - 14;
  }

  /** The most devices of any shelf. */
  largestShelf() {
    let most = 1;
    for (let first = 0; first < this.groups.length; first += this.perShelf) {
      const shelf = this.groups.slice(first, first + this.perShelf);
      most = Math.max(most, sum(shelf.map(([a, b]) => b - a)));
    }
    return most;
  }

  /** The distance of devices in blocks: as large as keeps the tree on a screen. */
  blockPitch() {
    const count = this.seed.devices;
    let pitch = 22;
    if (count > 150) pitch = 16;
    if (count > 400) pitch = 13;
    const most = this.isShelved ? 90 : 260;
    const depth = (size) => {
      const columns = Math.max(1, Math.floor(this.room / this.perShelf / size));
      return Math.ceil(this.largest / this.perShelf / columns) * size;
    };
    while (pitch > 5 && depth(pitch) > most) pitch -= 0.5;
    return pitch;
  }

  /** One line of groups; returns where the next one starts. */
  layShelf(first, top) {
    const shelf = this.groups.slice(first, first + this.perShelf);
    const sizes = shelf.map(([a, b]) => Math.max(0.5, b - a));
    const all = this.isShelved ? Math.max(this.largest, sum(sizes)) : sum(sizes);
    const y = top + this.drop;
    let x = 0;
    let rows = 1;
    shelf.forEach(([a, b], k) => {
      const width = (this.room * sizes[k]) / all;
      rows = Math.max(rows, this.layGroup(first + k, [a, b], x, y, width));
      this.places[this.over][first + k].y = top;
      x += width + this.gap;
    });
    const bottom = y + (rows - 0.5) * this.pitch + 14;
    this.shelves.push({ y: top - 14, height: bottom - top + 10 });
    return bottom + (this.isShelved ? 22 : 0);
  }

  /** The devices of one group; returns the number of their rows. */
  layGroup(group, [a, b], x, y, width) {
    const count = b - a;
    let columns = count;
    if (!this.isRow) columns = Math.max(1, Math.floor(width / this.pitch));
    const rows = Math.max(1, Math.ceil(count / columns));
    columns = Math.max(1, Math.ceil(count / rows));
    const pitch = this.isRow ? Math.min(width / Math.max(1, count), 48) : this.pitch;
    const used = columns * pitch;
    const left = x + (width - used) / 2;
    for (let device = a; device < b; device++) {
      const column = (device - a) % columns;
      const row = Math.floor((device - a) / columns);
      const place = { x: left + pitch * (column + 0.5), y: y + row * this.pitch };
      this.places[this.seed.leaf][device] = place;
    }
    const height = rows * this.pitch + 8;
    this.boxes[group] = { x: left - 4, y: y - this.pitch / 2 - 4, width: used + 8, height };
    this.places[this.over][group] = { x: x + width / 2, y: 0 };
    return rows;
  }

  /** Every upper node stands over the middle of its children. */
  layUpper() {
    const { seed } = this;
    for (let depth = seed.tiers.length - 3; depth >= 0; depth--) {
      const below = seed.tiers[depth + 1];
      const children = range(seed.facts.sizes[depth]).map(() => []);
      seed.facts.parents[below].forEach((parent, id) => {
        children[parent].push(this.places[below][id].x);
      });
      this.places[seed.tiers[depth]] = children.map((xs) => {
        const [low, high] = xs.length ? extent(xs) : [this.width / 2, this.width / 2];
        return { x: (low + high) / 2, y: TREE_TOP + LEVEL * depth };
      });
    }
  }

  /** The half width of the nodes of a tier. */
  nodeRadius(tier) {
    if (tier === this.seed.leaf) return this.radius;
    if (tier === this.seed.top) return 16;
    const count = tier === this.over ? this.perShelf : this.seed.size(tier);
    return clamp(this.width / count / 5, 5, 13);
  }
}

/* ---------- drawing ---------- */

class TreeView {
  constructor(seed) {
    this.seed = seed;
    this.nodes = new Map(); // "tier:id" to its element
    this.host = h("div", { class: "tree" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.legend = h("div", { class: "legend" });
    this.detail = h("div", { class: "detail", "aria-live": "polite" });
    if (colourKinds(seed).every(([kind, , reason]) => kind !== state.colour || reason)) {
      state.colour = colourKinds(seed).find(([, , reason]) => !reason)[0];
    }
    figure(this.host, (width) => this.draw(width));
  }

  part() {
    const tools = segmented("colour", "Colour nodes by", colourKinds(this.seed), state.colour,
      (kind) => {
        state.colour = kind;
        this.paint();
      });
    const of = this.seed.run.scored.length > 1 ? ` Seed ${this.seed.number} is shown.` : "";
    const note = "Click a node, or reach it with Tab and the arrow keys, for its curve, " +
      `its labels and its bytes.${of}`;
    return section("tree", "The tree", note, tools,
      h("div", { class: "panel" }, this.host, this.legend, this.detail));
  }

  draw(width) {
    const hadFocus = this.host.contains(document.activeElement);
    const layout = new TreeLayout(this.seed, width);
    this.svg = s("svg", {
      height: layout.height,
      viewBox: `0 0 ${width} ${layout.height}`,
      role: "tree",
      "aria-label": "The tree of the run; arrow keys move from node to node",
    });
    this.drawLinks(layout);
    this.nodes.clear();
    this.seed.tiers.forEach((tier, depth) => this.svg.append(this.drawTier(layout, tier, depth)));
    this.host.replaceChildren(this.svg, this.tip);
    this.listen(width);
    this.paint();
    this.mark(hadFocus);
  }

  drawLinks(layout) {
    const group = s("g", { class: "links" });
    this.svg.append(group);
    if (layout.isShelved) {
      for (const { y, height } of layout.shelves) {
        group.append(s("rect", { x: -6, y, width: layout.width + 12, height, rx: 10 }));
      }
      const above = layout.places[this.seed.tiers.at(-3)] || [];
      const d = above.map(({ x, y }) => `M${x} ${y}V${layout.shelves[0].y}`).join("");
      group.append(s("path", { d, "stroke-width": 2 }));
    }
    this.seed.tiers.slice(1).forEach((tier) => {
      if (tier === this.seed.leaf && !layout.isRow) this.drawBoxes(group, layout);
      else if (tier !== layout.over || !layout.isShelved) this.drawWires(group, layout, tier);
    });
  }

  drawBoxes(group, layout) {
    const count = this.seed.size(layout.over);
    for (let id = 0; id < count; id++) {
      const box = layout.boxes[id];
      const place = layout.places[layout.over][id];
      group.append(
        s("rect", { ...box, rx: Math.min(8, box.width / 3), class: "box" }),
        s("path", { d: `M${place.x} ${place.y}V${box.y}`, "stroke-width": 2 }));
    }
  }

  /** The links to a tier; a line is as wide as its share of the bytes, from 0. */
  drawWires(group, layout, tier) {
    const { seed } = this;
    const above = seed.tiers[seed.tiers.indexOf(tier) - 1];
    const sent = range(seed.size(tier)).map((id) => nodeBytes(seed, tier, id) || 0);
    const most = Math.max(1, ...sent);
    const [thin, wide] = tier === seed.leaf ? [0.6, 1.2] : [1, 3.5];
    sent.forEach((count, id) => {
      const from = layout.places[above][seed.parent(tier, id)];
      const to = layout.places[tier][id];
      const middle = (from.y + to.y) / 2;
      const curve = `C${from.x} ${middle + 6} ${to.x} ${middle - 6} ${to.x} ${to.y}`;
      const width = (thin + (wide * count) / most).toFixed(2);
      group.append(s("path", { d: `M${from.x} ${from.y}${curve}`, "stroke-width": width }));
    });
  }

  drawTier(layout, tier, depth) {
    const radius = layout.nodeRadius(tier);
    const level = s("g", { role: "group", "aria-label": `${tier} tier` });
    layout.places[tier].forEach((place, id) => {
      const node = this.drawNode(tier, depth, id, place, radius);
      this.nodes.set(`${tier}:${id}`, node);
      level.append(node);
      const label = this.nodeLabel(layout, tier, id, place, radius);
      if (label) level.append(label);
    });
    return level;
  }

  drawNode(tier, depth, id, place, radius) {
    const isLeaf = tier === this.seed.leaf;
    const stroke = `var(${tierColour(this.seed, tier)})`;
    const shape = nodeShape(tierShape(this.seed, tier), radius, stroke);
    const node = s("g", {
      class: "node",
      role: "treeitem",
      "aria-level": depth + 1,
      "aria-selected": "false",
      tabindex: -1,
      transform: `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})`,
      "data-node": `${tier}:${id}`,
    }, nodeHalo(tierShape(this.seed, tier), radius), shape);
    node.shape = shape;
    if (isLeaf && radius >= 5.5) {
      node.sign = s("text", { class: "sign", "text-anchor": "middle", y: 4 });
      node.append(node.sign);
    }
    return node;
  }

  nodeLabel(layout, tier, id, { x, y }, radius) {
    if (tier === this.seed.leaf) return null;
    const count = tier === layout.over ? layout.perShelf : this.seed.size(tier);
    const step = layout.width / count;
    const room = Math.min(step - 2 * radius - 16, step / 2 - radius + 8);
    if (room > 44) {
      const text = clipped(this.seed.nodeName(tier, id), Math.floor(room / 6.5));
      return s("text", { x: x + radius + 7, y: y + 4, class: "node-name" }, text);
    }
    if (step > 26) {
      return s("text", { x: x + radius + 4, y: y - radius + 1, class: "node-number" }, String(id));
    }
    return null;
  }

  /** Fill the nodes by the figure that is chosen. */
  paint() {
    const { seed } = this;
    const kind = state.colour;
    const values = new Map();
    for (const key of this.nodes.keys()) {
      const { tier, id } = parseNode(key);
      values.set(key, nodeValue(seed, kind, tier, id));
    }
    const scale = colourScale(seed, kind, [...values.values()]);
    const what = colourKinds(seed).find(([name]) => name === kind)[1].toLowerCase();
    for (const [key, node] of this.nodes) {
      const value = values.get(key);
      const { tier, id } = parseNode(key);
      node.shape.setAttribute("fill", isKnown(value) ? scale.of(value) : "var(--panel)");
      const label = `${seed.nodeName(tier, id)}, ${what} ${nodeText(seed, kind, value)}`;
      node.setAttribute("aria-label", label);
      if (node.sign) signOf(node.sign, kind, value, scale);
    }
    this.values = values;
    this.what = capital(what);
    this.drawLegend(scale);
  }

  drawLegend(scale) {
    const { seed } = this;
    const bar = `background:linear-gradient(90deg, ${scale.stops.join(",")})`;
    const tiers = seed.tiers.map((tier) => {
      const ring = `border-color:var(${tierColour(seed, tier)})`;
      const dot = h("span", { class: `dot hollow ${tierShape(seed, tier)}`, style: ring });
      return h("span", { class: "key" }, dot, tier);
    });
    const wires = seed.facts.bytes && seed.traffic.sent
      ? h("span", {}, "line width: bytes, within a tier")
      : null;
    const unknown = [...this.values.values()].some((value) => !isKnown(value))
      ? h("span", {}, "white: unknown")
      : null;
    this.legend.replaceChildren(...[
      h("span", { class: "ramp" },
        h("span", {}, scale.ends[0]), h("span", { class: "bar", style: bar }),
        h("span", {}, scale.ends[1])),
      ...tiers, wires, unknown,
    ].filter(Boolean));
  }

  listen(width) {
    this.svg.addEventListener("click", (event) => {
      const node = event.target.closest(".node");
      if (node) this.select(parseNode(node.dataset.node), true);
    });
    this.svg.addEventListener("pointermove", (event) => this.hover(event, width));
    this.svg.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    this.svg.addEventListener("keydown", (event) => this.walk(event));
  }

  hover(event, width) {
    const node = event.target.closest(".node");
    this.tip.hidden = !node;
    if (!node) return;
    const { tier, id } = parseNode(node.dataset.node);
    const value = this.values.get(node.dataset.node);
    this.tip.replaceChildren(
      h("b", {}, this.seed.nodeName(tier, id)),
      tipLine(null, this.what, nodeText(this.seed, state.colour, value)));
    const box = this.host.getBoundingClientRect();
    placeTip(this.tip, event.clientX - box.left, event.clientY - box.top + 16, width);
  }

  /** The arrow keys: along a tier, up to the parent, down to the first child. */
  walk(event) {
    const next = this.neighbour(event);
    if (!next) return;
    event.preventDefault();
    this.select(next, true);
  }

  neighbour(event) {
    const { seed } = this;
    const { tier, id } = state.node;
    const depth = seed.tiers.indexOf(tier);
    if (stepOf(event)) return { tier, id: clamp(id + stepOf(event), 0, seed.size(tier) - 1) };
    if (event.key === "ArrowUp" && depth > 0) {
      return { tier: seed.tiers[depth - 1], id: seed.parent(tier, id) };
    }
    const below = seed.tiers[depth + 1];
    if (event.key !== "ArrowDown" || !below) return null;
    const child = seed.facts.parents[below].indexOf(id);
    return child < 0 ? null : { tier: below, id: child };
  }

  select(node, focus = false) {
    const old = state.node && this.nodes.get(`${state.node.tier}:${state.node.id}`);
    if (old) {
      old.setAttribute("aria-selected", "false");
      old.setAttribute("tabindex", -1);
    }
    state.node = node;
    this.mark(focus);
    showNode(this.detail, this.seed, node);
    for (const mark of markers) mark();
  }

  mark(focus) {
    const node = state.node && this.nodes.get(`${state.node.tier}:${state.node.id}`);
    if (!node) return;
    node.setAttribute("aria-selected", "true");
    node.setAttribute("tabindex", 0);
    if (focus) node.focus({ preventScroll: true });
  }
}

function parseNode(key) {
  const at = key.lastIndexOf(":");
  return { tier: key.slice(0, at), id: Number(key.slice(at + 1)) };
}

function nodeShape(kind, radius, stroke) {
  if (kind === "") {
    const width = radius < 3.5 ? 0 : 1.5; // a ring would hide the fill of so small a dot
    return s("circle", { r: radius, stroke, "stroke-width": width });
  }
  const half = kind === "square" ? radius : radius * 0.8;
  return s("rect", {
    x: -half,
    y: -half,
    width: 2 * half,
    height: 2 * half,
    rx: kind === "square" ? 5 : Math.min(3, half / 3),
    transform: kind === "diamond" ? "rotate(45)" : null,
    stroke,
    "stroke-width": radius < 8 ? 1.8 : 2.5,
  });
}

function nodeHalo(kind, radius) {
  if (kind === "square") {
    const half = radius + 4;
    const box = { x: -half, y: -half, width: 2 * half, height: 2 * half, rx: 8 };
    return s("rect", { class: "halo", ...box });
  }
  const small = radius < 4 ? 2 : 3.5;
  return s("circle", { class: "halo", r: kind ? radius * 1.13 + 5 : radius + small });
}

/** A minus on the devices that lose, so that a loss is told without colour too. */
function signOf(sign, kind, value, scale) {
  const loses = kind === "gain" && isKnown(value) && value < -1e-9;
  sign.textContent = loses ? "−" : "";
  sign.style.fill = loses && -value > 0.45 * scale.high ? "var(--panel)" : "var(--ink)";
}

/** Bytes to and from a node over the link above it, all rounds. */
function nodeBytes(seed, tier, id) {
  const counts = seed.facts.bytes?.[tier];
  return counts ? counts.down[id] + counts.up[id] : null;
}

const markers = new Set(); // functions that mark the selected device in other figures
let treeView = null;

PARTS[40] = function treePart() {
  const { seed } = state;
  markers.clear();
  treeView = null;
  if (!seed?.hasNodes) return null;
  treeView = new TreeView(seed);
  const part = treeView.part();
  treeView.select(validNode(seed, state.node) || firstNode(seed));
  return part;
};

function validNode(seed, node) {
  const isThere = node && seed.tiers.includes(node.tier) && node.id < seed.size(node.tier);
  return isThere ? node : null;
}

/** The device that gains most, or the best one. */
function firstNode(seed) {
  const order = deviceOrder(seed, gainReason(seed) ? "value" : "gain");
  return { tier: seed.leaf, id: order.at(-1) ?? 0 };
}

function selectDevice(device) {
  treeView?.select({ tier: state.seed.leaf, id: device });
}

/** The device that is selected; -1 if another node is. */
function selectedDevice() {
  return state.node?.tier === state.seed.leaf ? state.node.id : -1;
}
