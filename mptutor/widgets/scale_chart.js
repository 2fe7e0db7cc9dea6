// The drawings of the scale explorer: the histogram that slides over the zones of a format, and the
// layers, a bar of zones for each.

const ZONES = ["flushed", "subnormal", "normal", "infinite"];

function zoneLabels(fmt) {
  return {
    flushed: "becomes 0",
    subnormal: "subnormal",
    normal: "normal",
    infinite: fmt.beyond ?? (fmt.overflow === "inf" ? "becomes ∞" : "too large"),
  };
}

// A share in per cent to four digits, never rounded to 0 or 100 unless it is.
function percent(part, whole) {
  if (part === 0 || part === whole || !whole) return part ? "100" : "0";
  const exact = (100 * part) / whole;
  if (exact < 0.001) return "less than 0.001";
  return exact > 99.99 ? "more than 99.99" : String(Number(exact.toPrecision(4)));
}

// -- the histogram ---------------------------------------------------------------------------------

const HISTOGRAM = { height: 250, top: 26, bottom: 26 };

// The bars are drawn once for a selection, the zones once for a format. A change of scale moves the
// group of bars and touches nothing else.
function histogram(choices, { choosePower }) {
  const [low, high] = choices.axis;
  const zones = shape("g");
  const bars = shape("g", { class: "mpt-bars" });
  const svg = shape(
    "svg",
    { class: "mpt-histogram", height: HISTOGRAM.height, role: "img" },
    zones,
    bars,
  );
  const node = element("div", { class: "mpt-chart" }, svg);
  let shown = null;
  let drawn = {};
  // Asked for once, not for every drawing: after a change the browser lays out the page to answer.
  let width = 0;
  const step = () => width / (high - low);
  const paint = () => {
    width ||= node.clientWidth;
    if (!shown || !width) return;
    const { view } = shown;
    if (drawn.width !== width) svg.setAttribute("viewBox", `0 0 ${width} ${HISTOGRAM.height}`);
    if (drawn.width !== width || drawn.fmt !== view.fmt)
      zones.replaceChildren(...drawZoneBands(view.fmt, choices, step()));
    if (drawn.width !== width || drawn.census !== view.census)
      bars.replaceChildren(...drawBars(view.census, choices, step()));
    bars.setAttribute("transform", `translate(${view.power * step()} 0)`);
    svg.setAttribute("aria-label", histogramLabel(view));
    drawn = { width, fmt: view.fmt, census: view.census };
  };
  dragByPowers(svg, step, () => shown.view.power, choosePower);
  const observer = new ResizeObserver(() => {
    width = node.clientWidth;
    paint();
  });
  observer.observe(node);
  const update = (view) => {
    shown = { view };
    paint();
  };
  return { node, update, leave: () => observer.disconnect() };
}

// The histogram follows the pointer from where it was taken hold of, a binade at a time.
function dragByPowers(svg, step, powerNow, choosePower) {
  let grip = null;
  onDrag(
    svg,
    (event) => (grip = { x: event.clientX, power: powerNow() }),
    (event) => choosePower(grip.power + Math.round((event.clientX - grip.x) / step())),
  );
}

function histogramLabel({ power, fmt, shares }) {
  const labels = zoneLabels(fmt);
  const parts = ZONES.map((zone) => `${labels[zone]} ${shares[zone]} %`);
  return `Histogram of the gradients times 2${superscript(power)} by exponent, over the zones of ${fmt.name}: ${parts.join(", ")}.`;
}

function drawZoneBands(fmt, { axis, axis_name = "gradient × scale" }, step) {
  const [low, high] = axis;
  const labels = zoneLabels(fmt);
  const edges = [low, ...fmt.edges, high].map((edge) => between(edge, low, high));
  const base = HISTOGRAM.height - HISTOGRAM.bottom;
  const bands = ZONES.flatMap((zone, i) => {
    const x = (edges[i] - low) * step;
    const width = (edges[i + 1] - edges[i]) * step;
    if (width <= 0) return [];
    const band = shape("rect", {
      class: `mpt-band mpt-zone-${zone}`,
      x,
      y: 0,
      width,
      height: base,
    });
    const label = shape("text", { class: "mpt-zone-label", x: x + 6, y: 17 }, labels[zone]);
    return width > 70 ? [band, label] : [band];
  });
  const ticks = [];
  for (let e = low + 12; e < high - 12; e += 12) {
    const at = { x: (e - low) * step, y: base + 17, "text-anchor": "middle" };
    const above = shape("tspan", { dy: -4, "font-size": 9 }, signed(e));
    ticks.push(shape("text", { class: "mpt-tick-label", ...at }, "2", above));
  }
  const end = { x: (high - low) * step, y: base + 17, "text-anchor": "end" };
  const name = shape("text", { class: "mpt-tick-label", ...end }, axis_name);
  return [...bands, ...ticks, name];
}

function drawBars({ exponents }, { axis: [low] }, step) {
  const base = HISTOGRAM.height - HISTOGRAM.bottom;
  const most = Math.max(...exponents.map(([, count]) => count));
  return exponents.map(([exponent, count]) => {
    // A single gradient must be seen too: it may be the one that overflows.
    const height = Math.max((count / most) * (base - HISTOGRAM.top), 1.5);
    const x = (exponent - low) * step + 0.5;
    return shape("rect", { x, y: base - height, width: Math.max(step - 1, 1), height });
  });
}

// -- the scale -------------------------------------------------------------------------------------

function scaleSlider({ lowest, highest }, { choosePower }) {
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: lowest,
    max: highest,
    step: 1,
    "aria-label": "Loss scale, as a power of two",
    oninput: () => choosePower(Number(input.value)),
  });
  const safe = element("div", { class: "mpt-safe" });
  const name = element("span", { class: "mpt-safe-name" });
  const track = element("div", { class: "mpt-scale-track" }, safe, name, input);
  const scale = element("output", { class: "mpt-scale-value", "aria-hidden": "true" });
  const node = element(
    "div",
    { class: "mpt-scale-line" },
    element("span", { class: "mpt-label" }, "Scale"),
    track,
    scale,
  );
  const place = (power) => (power - lowest) / (highest - lowest);
  let marked = null;
  const update = ({ power, window }) => {
    input.value = power;
    input.setAttribute("aria-valuetext", `2 to the power ${power}`);
    setText(scale, `2${superscript(power)}`);
    if (window !== marked) markSafe(window);
    marked = window;
  };
  const markSafe = ({ smallest, largest }) => {
    const [from, to] = [smallest, largest].map((edge) => between(edge, lowest, highest));
    const empty = smallest > largest;
    safe.hidden = empty || largest < lowest || smallest > highest;
    safe.style.setProperty("--from", place(from));
    safe.style.setProperty("--to", place(to));
    name.textContent = empty ? "no safe scale" : "safe scales";
    name.style.setProperty("--from", empty ? 0 : place((from + to) / 2));
  };
  return { node, update };
}

// -- the layers ------------------------------------------------------------------------------------

// One radio button a layer, the one nearest to the loss first, each with its bar of zones.
function layerList({ chooseLayer }) {
  const rows = element("div", { class: "mpt-layers", role: "radiogroup", "aria-label": "Layer" });
  const heading = element(
    "div",
    { class: "mpt-heading" },
    "Layer by layer, from the loss to the input",
  );
  const node = element("div", { class: "mpt-closeup" }, heading, rows);
  const group = `mpt-layer-${Math.random().toString(36).slice(2)}`;
  let names = "";
  let parts = [];
  const build = (layers) => {
    parts = layers.map(({ name }) => layerRow(name, group, () => chooseLayer(name)));
    rows.replaceChildren(...parts.map((part) => part.node));
  };
  const update = (view) => {
    const now = view.layers.map(({ name }) => name).join(" ");
    if (now !== names) build(view.layers);
    names = now;
    view.layers.forEach((layer, i) => parts[i].update(layer, view));
  };
  return { node, update };
}

function layerRow(name, group, choose) {
  const input = control("input", { type: "radio", name: group, value: name, onchange: choose });
  const segments = ZONES.map((zone) => element("i", { class: `mpt-zone-${zone}` }));
  const lost = element("span", { class: "mpt-layer-lost" });
  const node = element(
    "label",
    { class: "mpt-layer" },
    input,
    element("span", { class: "mpt-layer-name" }, name === "all" ? "all layers" : name),
    element("span", { class: "mpt-layer-bar", "aria-hidden": "true" }, ...segments),
    lost,
  );
  const update = ({ counts, nonzero }, view) => {
    input.checked = name === view.layer;
    segments.forEach((segment, i) => (segment.style.flexGrow = counts[ZONES[i]] / (nonzero || 1)));
    const infinite = counts.infinite
      ? `, ${count(counts.infinite)} ${view.fmt.overflow === "inf" ? "∞" : "too large"}`
      : "";
    setText(lost, `${percent(counts.flushed, nonzero)} % lost${infinite}`);
  };
  return { node, update };
}
