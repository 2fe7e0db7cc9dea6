// The drawings of the forecast explorer: a row of two stacked bars for each recipe, and the layers
// under the roof of the GPU.

// -- recipes -----------------------------------------------------------------------------------------

function recipeRows(choices, choose) {
  const group = `mpt-recipe-${Math.random().toString(36).slice(2)}`;
  const rows = choices.recipes.map((recipe) => recipeRow(recipe, group, choices, choose));
  const heads = ["", "Recipe", "Peak memory, by part", "", "Time, by what it waits for", ""].map(
    (title) => element("span", { class: "mpt-column", "aria-hidden": "true" }, title),
  );
  const node = element(
    "div",
    { class: "mpt-recipes", role: "radiogroup", "aria-label": "Recipe" },
    element("div", { class: "mpt-recipe mpt-heads" }, ...heads),
    ...rows.map((row) => row.node),
  );
  const update = (view) => {
    const mostBytes = Math.max(...Object.values(view.priced).map(({ peak }) => peak));
    const mostMs = Math.max(...Object.values(view.priced).map(({ ms }) => ms));
    rows.forEach((row) => row.update(view, mostBytes, mostMs));
  };
  return { node, update };
}

function recipeRow(recipe, group, choices, choose) {
  const input = control("input", {
    type: "radio",
    name: group,
    value: recipe,
    onchange: () => choose({ recipe }),
  });
  const memory = stackedBar(choices.parts, "part");
  const time = stackedBar(choices.bounds, "bound");
  const [held, takes] = [
    element("span", { class: "mpt-amount" }),
    element("span", { class: "mpt-amount" }),
  ];
  const name = element("span", { class: "mpt-recipe-name" }, recipe);
  const node = element(
    "label",
    { class: "mpt-recipe" },
    input,
    name,
    memory.node,
    held,
    time.node,
    takes,
  );
  const update = ({ priced, gpu, recipe: chosen }, mostBytes, mostMs) => {
    const { parts, peak, bounds, ms } = priced[recipe];
    input.checked = recipe === chosen;
    memory.update(parts, mostBytes);
    time.update(bounds, mostMs);
    const fits = peak + choices.context_bytes <= gpu.memory_bytes;
    held.textContent = bytesText(peak) + (fits ? "" : ", does not fit");
    takes.textContent = `${digits(ms)} ms`;
  };
  return { node, update };
}

function stackedBar(names, kind) {
  const segments = names.map((name) => element("i", { class: `mpt-${kind}-${name}` }));
  const rest = element("i");
  const node = element("span", { class: "mpt-stack", "aria-hidden": "true" }, ...segments, rest);
  const update = (values, most) => {
    names.forEach((name, i) => (segments[i].style.flexGrow = values[name] / most));
    rest.style.flexGrow = Math.max(0, 1 - total(values) / most);
  };
  return { node, update };
}

// The key to both bars, with the chosen recipe's numbers.
function partsLegend(choices) {
  const keys = [
    ...choices.parts.map((n) => ["part", n]),
    ...choices.bounds.map((n) => ["bound", n]),
  ].map(([kind, name]) => {
    const value = element("span", { class: "mpt-key-value" });
    const words = kind === "part" ? name : `waits for ${name}`;
    const key = element(
      "span",
      { class: "mpt-key" },
      element("i", { class: `mpt-${kind}-${name}` }),
      words,
      value,
    );
    return { kind, name, value, key };
  });
  const line = (kind) =>
    element(
      "div",
      { class: "mpt-legend" },
      ...keys.filter((k) => k.kind === kind).map((k) => k.key),
    );
  const node = element("div", { class: "mpt-keys" }, line("part"), line("bound"));
  const update = ({ chosen }) => {
    for (const { kind, name, value } of keys)
      value.textContent =
        kind === "part"
          ? bytesText(chosen.parts[name])
          : `${digits((100 * chosen.bounds[name]) / chosen.ms)} %`;
  };
  return { node, update };
}

// -- the roof ----------------------------------------------------------------------------------------

const ROOF = { height: 300, left: 46, right: 14, top: 12, bottom: 34, x: [-1.5, 4], y: [9, 15.6] };
const MARKS = { arithmetic: "triangle", memory: "circle", launch: "square" };

function roofline({ chooseLayer }) {
  const ground = shape("g");
  const marks = shape("g");
  const svg = shape(
    "svg",
    { class: "mpt-roofline", height: ROOF.height, role: "img" },
    ground,
    marks,
  );
  const node = element("div", { class: "mpt-chart" }, svg);
  let view = null;
  const place = () => {
    const width = node.clientWidth;
    const along =
      ([low, high], from, to) =>
      (log) =>
        from + ((between(log, low, high) - low) / (high - low)) * (to - from);
    return {
      width,
      x: along(ROOF.x, ROOF.left, width - ROOF.right),
      y: along(ROOF.y, ROOF.height - ROOF.bottom, ROOF.top),
    };
  };
  const paint = () => {
    if (!view || !node.clientWidth) return;
    const at = place();
    svg.setAttribute("viewBox", `0 0 ${at.width} ${ROOF.height}`);
    svg.setAttribute("aria-label", roofLabel(view));
    ground.replaceChildren(...drawAxes(at), ...drawRoof(view.chosen.roof, at));
    marks.replaceChildren(...drawMarks(view, at));
  };
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const at = place();
    const distance = ({ intensity, flops }) =>
      Math.hypot(
        at.x(Math.log10(intensity)) - event.clientX + box.left,
        at.y(Math.log10(flops)) - event.clientY + box.top,
      );
    const nearest = view.chosen.layers.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    chooseLayer(view.chosen.layers.indexOf(nearest));
  });
  const observer = new ResizeObserver(paint);
  observer.observe(node);
  const update = (now) => {
    view = now;
    paint();
  };
  return { node, update, leave: () => observer.disconnect() };
}

function roofLabel({ chosen, gpu }) {
  const waiting = Object.keys(MARKS).map(
    (bound) => `${chosen.layers.filter((l) => l.bound === bound).length} wait for ${bound}`,
  );
  return `Layers with products under the roof of the ${gpu.name}, by forecast: ${waiting.join(", ")}.`;
}

function drawAxes(at) {
  const base = ROOF.height - ROOF.bottom;
  const text = (x, y, anchor, ...words) =>
    shape("text", { class: "mpt-tick-label", x, y, "text-anchor": anchor }, ...words);
  const parts = [];
  for (const [log, label] of [
    [-1, "0.1"],
    [0, "1"],
    [1, "10"],
    [2, "100"],
    [3, "1000"],
    [4, "10000"],
  ]) {
    const x = at.x(log);
    parts.push(shape("line", { class: "mpt-gridline", x1: x, x2: x, y1: ROOF.top, y2: base }));
    parts.push(text(x, base + 14, log === 4 ? "end" : "middle", label));
  }
  for (const [log, label] of [
    [9, "1 G"],
    [10, "10 G"],
    [11, "100 G"],
    [12, "1 T"],
    [13, "10 T"],
    [14, "100 T"],
    [15, "1000 T"],
  ]) {
    const y = at.y(log);
    parts.push(
      shape("line", {
        class: "mpt-gridline",
        x1: ROOF.left,
        x2: at.width - ROOF.right,
        y1: y,
        y2: y,
      }),
    );
    parts.push(text(ROOF.left - 5, y + 4, "end", label));
  }
  parts.push(text(at.width - ROOF.right, base + 29, "end", "FLOP per byte"));
  parts.push(text(ROOF.left + 6, ROOF.top + 10, "start", "FLOP a second"));
  return parts;
}

// What the data sheet promises, dotted, and what kernels get.
function drawRoof({ flops, bytesPerS, reachedFlops, reachedBytesPerS }, at) {
  const line = (name, most, bandwidth) => {
    const slope = (log) => Math.min(Math.log10(most), log + Math.log10(bandwidth));
    const ridge = Math.log10(most / bandwidth);
    const foot = Math.max(ROOF.x[0], ROOF.y[0] - Math.log10(bandwidth));
    const points = [foot, ridge, ROOF.x[1]].map((log) => `${at.x(log)},${at.y(slope(log))}`);
    return shape("polyline", { class: `mpt-roof mpt-roof-${name}`, points: points.join(" ") });
  };
  return [line("sheet", flops, bytesPerS), line("reached", reachedFlops, reachedBytesPerS)];
}

function drawMarks({ chosen, layer }, at) {
  const order = [...chosen.layers.keys()].sort((a, b) => (a === layer) - (b === layer)); // the chosen one on top
  return order.flatMap((i) => {
    const { intensity, flops, bound } = chosen.layers[i];
    const [x, y] = [at.x(Math.log10(intensity)), at.y(Math.log10(flops))];
    const mark = drawMark(x, y, bound);
    if (i !== layer) return [mark];
    return [shape("circle", { class: "mpt-ring", cx: x, cy: y, r: 10 }), mark];
  });
}

function drawMark(x, y, bound) {
  const attributes = { class: `mpt-mark mpt-bound-${bound}` };
  if (MARKS[bound] === "circle") return shape("circle", { ...attributes, cx: x, cy: y, r: 4.5 });
  if (MARKS[bound] === "square")
    return shape("rect", { ...attributes, x: x - 4, y: y - 4, width: 8, height: 8 });
  return shape("path", { ...attributes, d: `M${x} ${y - 6}l5.5 9.5h-11z` });
}

// -- one layer ---------------------------------------------------------------------------------------

function layerSlider({ chooseLayer }) {
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: 0,
    step: 1,
    "aria-label": "Layer, from the first operation on",
    oninput: () => chooseLayer(Number(input.value)),
  });
  const track = element("div", { class: "mpt-rail mpt-line-track" }, input);
  const name = element("output", { class: "mpt-layer-value", "aria-hidden": "true" });
  const node = element(
    "div",
    { class: "mpt-slider-line" },
    element("span", { class: "mpt-label" }, "Layer"),
    track,
    name,
  );
  const update = ({ chosen, layer }) => {
    const { name: title, phase, bound } = chosen.layers[layer];
    input.max = chosen.layers.length - 1;
    input.value = layer;
    input.setAttribute("aria-valuetext", `${title} ${phase}, waits for ${bound}`);
    name.textContent = `${title} ${phase}`;
  };
  return { node, update };
}

function layerFacts() {
  const terms = ["FLOP per byte", "FLOP a second", "takes", "of the step", "waits for"];
  const facts = terms.map(() => element("dd"));
  const node = element(
    "dl",
    { class: "mpt-facts" },
    ...terms.map((term, i) => element("div", {}, element("dt", {}, term), facts[i])),
  );
  const update = ({ chosen, layer }) => {
    const { intensity, flops, ms, bound } = chosen.layers[layer];
    const said = [
      digits(intensity),
      flopsText(flops),
      `${digits(1000 * ms)} µs`,
      `${digits((100 * ms) / chosen.ms)} %`,
      bound,
    ];
    facts.forEach((fact, i) => (fact.textContent = said[i]));
  };
  return { node, update };
}
