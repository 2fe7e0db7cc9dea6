// The scale explorer's view. `explore` below is `ScaleExplorer.result` of scale_explorer.py; the rest
// draws what it returns. Each part is {node, update}.

const EVERY_POWER = [-126, 127]; // loss scales are normal FP32 numbers

const KIND_NAMES = { all: "outputs and weights", outputs: "layer outputs", weights: "weights" };

// -- counting --------------------------------------------------------------------------------------

// Cells with running counts, so that what lies below any cell is found by bisection.
function tally(censuses, cellsPerBinade) {
  const counts = new Map();
  for (const census of censuses) {
    census.cells.forEach((cell, i) => counts.set(cell, (counts.get(cell) ?? 0) + census.counts[i]));
  }
  const cells = [...counts.keys()].sort((a, b) => a - b);
  const running = [0];
  const exponents = new Map();
  for (const cell of cells) {
    running.push(running.at(-1) + counts.get(cell));
    const exponent = Math.floor(cell / cellsPerBinade);
    exponents.set(exponent, (exponents.get(exponent) ?? 0) + counts.get(cell));
  }
  const zeros = censuses.reduce((sum, census) => sum + census.zeros, 0);
  return { cells, running, zeros, nonzero: running.at(-1), exponents: [...exponents] };
}

// How many lie below `cell` once multiplied by 2^power: multiplying shifts the cells.
function below({ cells, running }, cell, power, cellsPerBinade) {
  const unscaled = cell - cellsPerBinade * power;
  let [low, high] = [0, cells.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cells[middle] < unscaled) low = middle + 1;
    else high = middle;
  }
  return running[low];
}

function zoneCounts(census, fmt, power, cellsPerBinade) {
  const edges = [fmt.first_kept, fmt.first_normal, fmt.first_infinite];
  const [flushed, small, finite] = edges.map((cell) => below(census, cell, power, cellsPerBinade));
  return {
    flushed,
    subnormal: small - flushed,
    normal: finite - small,
    infinite: census.nonzero - finite,
  };
}

const windows = new WeakMap();

// The exponents of the smallest and the largest safe scale; infinite where no scale will do. They
// depend on what is counted and on the format, not on the scale: each is looked for once.
function safeWindow(census, fmt, choices) {
  if (!windows.has(census)) windows.set(census, new Map());
  const known = windows.get(census);
  if (!known.has(fmt.name)) known.set(fmt.name, findSafeWindow(census, fmt, choices));
  return known.get(fmt.name);
}

function findSafeWindow(census, fmt, choices) {
  let [smallest, largest] = [Infinity, -Infinity];
  for (let power = EVERY_POWER[1]; power >= EVERY_POWER[0]; power--) {
    const { flushed, infinite } = zoneCounts(census, fmt, power, choices.cells_per_binade);
    if (flushed <= choices.flushed_at_most * census.nonzero) smallest = power;
    if (infinite === 0) largest = Math.max(largest, power);
  }
  return { smallest, largest };
}

// Everything about one network that does not depend on the scale, computed when first asked for.
const tallied = new WeakMap();

function talliesOf(layers, cellsPerBinade) {
  if (!tallied.has(layers)) {
    const tallies = new Map();
    for (const kind of ["all", "outputs", "weights"]) {
      const of = (layer) => (kind === "all" ? [layer.outputs, layer.weights] : [layer[kind]]);
      tallies.set(`${kind} all`, tally(layers.flatMap(of), cellsPerBinade));
      for (const layer of layers)
        tallies.set(`${kind} ${layer.name}`, tally(of(layer), cellsPerBinade));
    }
    tallied.set(layers, tallies);
  }
  return tallied.get(layers);
}

function explore({ power, fmt, kind, layer, network, networks, choices }) {
  const layers = networks[network];
  const perBinade = choices.cells_per_binade;
  const tallies = talliesOf(layers, perBinade);
  const chosen = choices.formats.find(({ name }) => name === fmt);
  const known = layer === "all" || layers.some(({ name }) => name === layer) ? layer : "all";
  const at = between(power, choices.lowest, choices.highest);
  const census = tallies.get(`${kind} ${known}`);
  const counts = zoneCounts(census, chosen, at, perBinade);
  const whole = zoneCounts(tallies.get("all all"), chosen, at, perBinade);
  const shares = Object.fromEntries(
    ZONES.map((zone) => [zone, percent(counts[zone], census.nonzero)]),
  );
  const rows = ["all", ...layers.map(({ name }) => name).reverse()].map((name) => {
    const row = tallies.get(`${kind} ${name}`);
    return { name, nonzero: row.nonzero, counts: zoneCounts(row, chosen, at, perBinade) };
  });
  return {
    power: at,
    fmt: chosen,
    layer: known,
    census,
    counts,
    shares,
    zeros: census.zeros,
    nonzero: census.nonzero,
    window: safeWindow(census, chosen, choices),
    skips: chosen.overflow === "inf" && whole.infinite > 0,
    layers: rows,
    interval: choices.growth_interval,
  };
}

// -- in words --------------------------------------------------------------------------------------

function sentence({ power, fmt, counts, shares, window }) {
  const infinite = counts.infinite ? count(counts.infinite) : "none";
  const become = fmt.overflow === "inf" ? "infinite" : "too large";
  const safe =
    window.smallest > window.largest
      ? "No scale is safe."
      : `Safe scales are 2${superscript(window.smallest)} to 2${superscript(window.largest)}.`;
  return (
    `At a scale of 2${superscript(power)}, ${fmt.name} flushes ${shares.flushed} % of these gradients to zero ` +
    `and makes ${infinite} ${become}. ${safe}`
  );
}

function nextSentence({ power, fmt, skips, interval }) {
  if (fmt.overflow !== "inf")
    return `${fmt.name} has no infinity, so GradScaler would notice nothing.`;
  if (skips)
    return `GradScaler would skip this step and halve the scale to 2${superscript(power - 1)}.`;
  return (
    `GradScaler would take this step; after ${count(interval)} such steps in a row it would double ` +
    `the scale to 2${superscript(power + 1)}.`
  );
}

// -- facts -------------------------------------------------------------------------------------------

// The shares of the zones, which are the key to their colours as well.
function zoneFacts() {
  const facts = ZONES.map((zone) => {
    const [term, fact] = [element("span"), element("dd")];
    const swatch = element("i", { class: `mpt-zone-${zone}` });
    const key = element("dt", {}, element("span", { class: "mpt-key" }, swatch, term));
    return { zone, term, fact, node: element("div", {}, key, fact) };
  });
  const zeros = element("dd");
  const apart = element("div", {}, element("dt", {}, "apart: zero in FP32"), zeros);
  const node = element("dl", { class: "mpt-facts" }, ...facts.map((fact) => fact.node), apart);
  const update = (view) => {
    const labels = zoneLabels(view.fmt);
    for (const { zone, term, fact } of facts) {
      setText(term, labels[zone]);
      setText(fact, `${view.shares[zone]} % (${count(view.counts[zone])})`);
    }
    setText(zeros, count(view.zeros));
  };
  return { node, update };
}

// -- all together ----------------------------------------------------------------------------------

function render({ model, el }) {
  const { root, leave } = createStage(el, "Scale explorer", "mpt-scale");
  const readout = createReadout();
  const names = ["power", "fmt", "kind", "layer", "network"];
  const state = () =>
    Object.fromEntries([...names, "networks", "choices"].map((name) => [name, model.get(name)]));
  const { choices, networks } = state();
  const choose = (changes) => changeModel(model, changes);
  const acts = {
    choosePower: (power) => choose({ power: between(power, choices.lowest, choices.highest) }),
    chooseLayer: (layer) => choose({ layer }),
  };
  const titles = Object.keys(networks);
  const chooseNetwork = ({ network }) => choose({ network, layer: "all" });
  const controls = [
    ...(titles.length > 1
      ? [
          choice(
            "Network",
            "network",
            titles.map((t) => [t, t]),
            chooseNetwork,
          ),
        ]
      : []),
    choice(
      "Gradients of",
      "kind",
      choices.kinds.map((kind) => [kind, KIND_NAMES[kind]]),
      choose,
    ),
    choice(
      "Format",
      "fmt",
      choices.formats.map(({ name }) => [name, name]),
      choose,
    ),
  ];
  const parts = [
    histogram(choices, acts),
    scaleSlider(choices, acts),
    zoneFacts(),
    layerList(acts),
  ];
  const next = element("p", { class: "mpt-next" });
  const help = element(
    "p",
    { class: "mpt-help" },
    "Drag the histogram or the slider. Keys on the slider: ← → halve and double the scale, ",
    "Page Up and Page Down change it more, Home and End go to the ends.",
  );
  const [chart, slider, facts, layers] = parts.map(({ node }) => node);
  root.append(
    element("div", { class: "mpt-bar" }, ...controls.map(({ node }) => node)),
    readout.node,
    next,
    chart,
    slider,
    facts,
    layers,
    help,
  );
  const redraw = redrawOn(model, names, () => {
    const now = state();
    const view = explore(now);
    for (const part of controls) part.update(now);
    for (const part of parts) part.update(view);
    setText(next, nextSentence(view));
    readout.say(sentence(view));
  });
  return () => {
    redraw.stop();
    parts[0].leave();
    leave();
  };
}
