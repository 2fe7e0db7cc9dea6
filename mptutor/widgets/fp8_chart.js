// The drawings of the FP8 scale explorer: the histogram over the zones of the format, the scale with
// the amax's mark on it, and the blocks of columns with a bar of zones for each. The zones' bands are
// the scale explorer's (scale_chart.js).

// -- the histogram ---------------------------------------------------------------------------------

// A change of one scale for the tensor moves the group of bars and touches nothing else.
function fp8Histogram(choices, { choosePower }) {
  const [low, high] = choices.axis;
  const zones = shape("g");
  const bars = shape("g");
  const y = HISTOGRAM.height - HISTOGRAM.bottom - 22;
  const name = shape("text", { class: "mpt-outlier-name", y, "text-anchor": "middle" });
  const svg = shape(
    "svg",
    { class: "mpt-histogram", height: HISTOGRAM.height, role: "img" },
    zones,
    bars,
    name,
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
    const { fmt, values, shift } = shown;
    if (drawn.width !== width) svg.setAttribute("viewBox", `0 0 ${width} ${HISTOGRAM.height}`);
    if (drawn.width !== width || drawn.fmt !== fmt)
      zones.replaceChildren(...drawZoneBands(fmt, choices, step()));
    if (drawn.width !== width || drawn.values !== values)
      bars.replaceChildren(...drawValues(values, choices, step()));
    bars.setAttribute("transform", `translate(${shift * step()} 0)`);
    nameOutlier(name, shown, choices, step());
    svg.setAttribute("aria-label", fp8HistogramLabel(shown));
    svg.classList.toggle("mpt-held", !shown.isDragged);
    drawn = { width, fmt, values };
  };
  const drag = (power) => shown.isDragged && choosePower(power);
  dragByPowers(svg, step, () => shown.power, drag);
  const observer = new ResizeObserver(() => {
    width = node.clientWidth;
    paint();
  });
  observer.observe(node);
  const update = (view) => {
    shown = view;
    paint();
  };
  return { node, update, leave: () => observer.disconnect() };
}

function fp8HistogramLabel({ tensor, fmt, shares, scaleSaid }) {
  const labels = zoneLabels(fmt);
  const parts = ZONES.map((zone) => `${labels[zone]} ${shares[zone]} %`);
  return `Histogram of the ${tensor} with ${scaleSaid} by exponent, over the zones of ${fmt.name}: ${parts.join(", ")}.`;
}

// Bars for all values, and in front of them, outlined and in another hue, those of an outlier channel.
function drawValues({ exponents, outlier }, { axis: [low] }, step) {
  const base = HISTOGRAM.height - HISTOGRAM.bottom;
  const most = Math.max(...exponents.map(([, n]) => n));
  const bar =
    (least, name) =>
    ([exponent, n]) => {
      const height = Math.max((n / most) * (base - HISTOGRAM.top), least);
      const x = (exponent - low) * step + 0.5;
      return shape("rect", {
        class: name,
        x,
        y: base - height,
        width: Math.max(step - 1, 1),
        height,
      });
    };
  // The channel is a small part of the tensor: drawn to scale it would hardly be seen.
  return [...exponents.map(bar(1.5, "mpt-bars")), ...outlier.map(bar(14, "mpt-outlier-bars"))];
}

// The name stays in sight, at the edge that the channel has left by.
function nameOutlier(name, { values: { outlier }, shift }, { axis: [low, high] }, step) {
  name.textContent = outlier.length ? "outlier channel" : "";
  if (!outlier.length) return;
  const middle = (outlier[0][0] + outlier.at(-1)[0] + 1) / 2 + shift;
  if (middle > high) name.textContent += " →";
  name.setAttribute("x", between((middle - low) * step, 66, (high - low) * step - 66));
}

// -- the scale -------------------------------------------------------------------------------------

// One scale to drag, with a mark where the amax would have it; or the range of the scales in use.
function fp8Slider({ lowest, highest }, { choosePower }) {
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: lowest,
    max: highest,
    step: 1,
    "aria-label": "Scale, as a power of two",
    oninput: () => choosePower(Number(input.value)),
  });
  const band = element("div", { class: "mpt-safe" });
  const name = element("span", { class: "mpt-safe-name" });
  const track = element("div", { class: "mpt-scale-track" }, band, name, input);
  const scale = element("output", { class: "mpt-scale-value", "aria-hidden": "true" });
  const button = control("button", { class: "mpt-button", type: "button" }, "set by amax");
  const label = element("span", { class: "mpt-label" }, "Scale");
  const node = element("div", { class: "mpt-scale-line" }, label, track, scale, button);
  const place = (power) => (between(power, lowest, highest) - lowest) / (highest - lowest);
  let byAmax = 0;
  button.addEventListener("click", () => choosePower(byAmax));
  const update = ({ power, isDragged, range, amaxPower }) => {
    byAmax = Math.floor(amaxPower);
    input.value = power;
    input.disabled = !isDragged;
    button.disabled = !isDragged;
    input.setAttribute("aria-valuetext", `2 to the power ${power}`);
    scale.textContent = isDragged ? `2${superscript(power)}` : "";
    const [from, to] = isDragged ? [amaxPower, amaxPower] : range;
    band.style.setProperty("--from", place(from));
    band.style.setProperty("--to", place(to));
    name.textContent = isDragged ? "amax" : "scales in use";
    name.style.setProperty("--from", place((from + to) / 2));
    node.classList.toggle("mpt-many", !isDragged);
  };
  return { node, update };
}

// -- the blocks ------------------------------------------------------------------------------------

// Every 32 columns of the tensor, a bar of zones for each.
function blockList() {
  const rows = element("div", { role: "list", "aria-label": "Blocks of columns" });
  const heading = element(
    "div",
    { class: "mpt-heading" },
    "Block by block: the tensor's columns, 32 at a time",
  );
  const node = element("div", { class: "mpt-closeup" }, heading, rows);
  let parts = [];
  const update = (view) => {
    if (view.blocks.length !== parts.length) {
      parts = view.blocks.map(() => blockRow());
      rows.replaceChildren(...parts.map((part) => part.node));
    }
    view.blocks.forEach((block, i) => parts[i].update(block));
  };
  return { node, update };
}

function blockRow() {
  const segments = ZONES.map((zone) => element("i", { class: `mpt-zone-${zone}` }));
  const name = element("span", { class: "mpt-layer-name" });
  const lost = element("span", { class: "mpt-layer-lost" });
  const bar = element("span", { class: "mpt-layer-bar", "aria-hidden": "true" }, ...segments);
  const node = element("div", { class: "mpt-block", role: "listitem" }, name, bar, lost);
  const update = ({ first, last, hasOutlier, counts, nonzero }) => {
    name.textContent = `${first}–${last}${hasOutlier ? " outlier" : ""}`;
    segments.forEach((segment, i) => (segment.style.flexGrow = counts[ZONES[i]] / (nonzero || 1)));
    const clipped = counts.infinite ? `, ${percent(counts.infinite, nonzero)} % clipped` : "";
    lost.textContent = `${percent(counts.flushed, nonzero)} % zero${clipped}`;
  };
  return { node, update };
}
