/* The radio of a run: a part of the page, a tile, and figures of every device. */

/** The figures of a radio run that there are of every device. */
function radioColumns(seed) {
  const devices = seed.facts.radio?.devices;
  if (!devices) return [];
  const columns = [
    { key: "bandwidth", name: "Bandwidth", text: (value) => amount(value, HERTZ) },
    { key: "rate", name: "Rate", text: (value) => amount(value, BITS) },
    { key: "ratio", name: "Pruning ratio", text: (value) => ratioText(value) },
    { key: "seconds", name: "Answer latency", text: (value) => amount(value, SECONDS) },
    { key: "joules", name: "Energy, all rounds", text: (value) => amount(value, JOULES) },
    { key: "left_out", name: "Rounds left out", text: (value) => short(value) },
    { key: "late", name: "Rounds late", text: (value) => short(value) },
  ];
  return columns.filter(({ key }) => devices[key]?.some(isKnown))
    .map((column) => ({ ...column, values: devices[column.key] }));
}

const BITS = [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"], [1, "bit/s"]];

function ratioText(value) {
  return isKnown(value) ? `${percent(value)} %` : EMPTY;
}

PARTS[90] = function radioPart() {
  const { seed } = state;
  const radio = seed?.facts.radio;
  if (!radio) return null;
  const seconds = duration(sum(radio.seconds));
  const joules = amount(sum(radio.joules), JOULES);
  const many = seed.run.scored.length > 1 ? ` Seed ${seed.number} is shown.` : "";
  const note = `Modelled, not measured: ${seconds} and ${joules} for ` +
    `${plural(radio.seconds.length, "round")}.${radioLosses(radio)}${many}`;
  const rounds = h("div", { class: "two" },
    radioPanel("Seconds of a round", radio.seconds, duration, SECONDS),
    radioPanel("Energy of a round, all devices", radio.joules, (v) => amount(v, JOULES), JOULES));
  return section("radio", "Over the air", note, null, rounds, radioDevices(seed));
};

function radioLosses(radio) {
  const leftOut = sum(radio.left_out || []);
  const late = sum(radio.late || []);
  if (!leftOut && !late) return " Every device was in time in every round.";
  const perRound = (count) => short(count / radio.seconds.length);
  return ` Devices per round, on average: ${perRound(leftOut)} left out by the plan, ` +
    `${perRound(late)} late.`;
}

function radioPanel(title, values, text, units) {
  const xs = range(values.length).map((i) => i + 1);
  const top = Math.max(...values) || 1;
  const [scale, unit] = unitOf(top, units);
  const spec = () => ({
    height: 200,
    label: `${title}, by round`,
    x: [1, xs.length],
    y: [0, top * 1.06],
    yText: (value) => (value ? `${Number((value / scale).toPrecision(3))} ${unit}` : "0"),
    xText: String,
    xUnit: "rounds",
    integers: true,
    tipTitle: (round) => `Round ${round}`,
    tipText: text,
    series: [{ name: "round", quiet: true, xs, ys: values, colour: "--ink2", area: 0.12 }],
  });
  return h("div", { class: "panel" }, h("h3", {}, title), lines(spec));
}

/** Bandwidth, ratio and latency of every device; all figures have the devices in one order. */
function radioDevices(seed) {
  const columns = radioColumns(seed).filter(({ key }) =>
    ["bandwidth", "rate", "ratio", "seconds"].includes(key));
  const varied = columns.filter(({ key }) => {
    const [low, high] = extent(seed.facts.radio.devices[key]);
    return high > low;
  });
  if (!varied.length || !treeView) return null;
  const slowest = seed.facts.radio.devices.seconds || seed.facts.radio.devices[varied[0].key];
  const ids = range(seed.devices).filter((device) => isKnown(slowest[device]));
  ids.sort((a, b) => slowest[b] - slowest[a]);
  const charts = varied.map((column, i) => {
    const isLast = i === varied.length - 1;
    const chart = deviceChart(() => radioSpec(seed, ids, column, varied, isLast));
    markers.add(() => chart.mark(selectedDevice()));
    return [h("h3", {}, column.name), chart];
  });
  const silent = seed.devices - ids.length;
  const never = h("p", { class: "note" }, `${plural(silent, "device")} never answered.`);
  return h("div", { class: "panel spaced" }, charts, silent ? never : null);
}

function radioSpec(seed, ids, { key, name, text }, columns, isLast) {
  const devices = seed.facts.radio.devices;
  const values = ids.map((device) => devices[key][device]);
  const lost = ids.map((device, i) =>
    ((devices.left_out?.[device] || devices.late?.[device]) ? values[i] : null));
  const caption = `${plural(ids.length, "device")}, the slowest first; ` +
    "a cross: left out or late in a round";
  return {
    label: `${name} of every device, the slowest first`,
    height: isLast ? 160 : 140,
    ids,
    y: [0, extent(values)[1] * 1.06 || 1],
    yText: (value) => (value ? text(value).replace(".0\u00a0", "\u00a0") : "0"),
    caption: isLast ? caption : null,
    layers: [
      { values, colour: "--device", look: "dot" },
      { values: lost, colour: "--loss", look: "cross" },
    ],
    tip: (i) => [
      h("b", {}, seed.nodeName(seed.leaf, ids[i])),
      ...columns.map((column) =>
        tipLine(null, column.name, column.text(devices[column.key][ids[i]]))),
    ],
    pick: selectDevice,
    marked: selectedDevice,
  };
}

function radioTile(run) {
  if (!run.first.facts.radio) return null;
  const joules = run.total((seed) => sum(seed.facts.radio.joules)).mean;
  const [value, unit] = amountParts(modelled(run), SECONDS);
  return tile(null, "Modelled time", value, unit, `${amount(joules, JOULES)} of all devices`);
}

function modelledCell(run) {
  return isKnown(modelled(run)) ? duration(modelled(run)) : EMPTY;
}

const modelled = (run) => run.total(({ facts }) => facts.radio && sum(facts.radio.seconds)).mean;
const modelledSeconds = (seed) => seed.facts.radio?.seconds;
AXES.seconds = { text: "By modelled time", units: SECONDS, of: modelledSeconds };
ROOMS.push({ tile: radioTile, columns: radioColumns, head: "Modelled", cell: modelledCell });
