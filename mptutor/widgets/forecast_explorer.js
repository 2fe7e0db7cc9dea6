// The forecast explorer's view. `explore` is `ForecastExplorer.result` of forecast_explorer.py; the
// rest draws what it returns. Each part is {node, update}.

const MODEL_NAMES = {
  small_cnn: "small CNN",
  mlp: "MLP",
  wide_mlp: "wide MLP (4096)",
  char_transformer: "small transformer",
  resnet50: "ResNet-50",
};

// Prices do not change while a learner looks at one position and then another.
const pricedBefore = new WeakMap();

function pricesOf({ model, gpu: name, channels_last: channelsLast, steps, choices }, power) {
  if (!pricedBefore.has(steps)) pricedBefore.set(steps, new Map());
  const known = pricedBefore.get(steps);
  const key = [model, name, channelsLast, power].join(" ");
  if (!known.has(key)) {
    const gpu = choices.gpus.find((one) => one.name === name);
    const price = (recipe) => priceStep(steps[model][recipe], power, gpu, channelsLast, choices);
    known.set(key, Object.fromEntries(choices.recipes.map((recipe) => [recipe, price(recipe)])));
  }
  return known.get(key);
}

function explore(state) {
  const { model, recipe, choices } = state;
  const power = between(state.power, 0, choices.largest_power[model]);
  const gpu = choices.gpus.find(({ name }) => name === state.gpu);
  const priced = pricesOf(state, power);
  const chosen = priced[recipe];
  const layer = between(state.layer, 0, chosen.layers.length - 1);
  return {
    model,
    recipe,
    gpu,
    priced,
    chosen,
    power,
    layer,
    choices,
    batch: 2 ** power,
    problem: problemOf(state, power, chosen.layers.length),
    gain: priced.FP32.ms / chosen.ms,
    peakRatio: chosen.peak / priced.FP32.peak,
  };
}

function problemOf({ model, power, layer, choices }, shownPower, layers) {
  if (power !== shownPower)
    return (
      `A batch of 2^${power} is not in the table of ${model}; allowed are powers of two from 1 to ` +
      `${2 ** choices.largest_power[model]}. Shown is ${2 ** shownPower}.`
    );
  if (layer < 0 || layer >= layers)
    return `There is no layer ${layer} with products in ${model}; allowed are 0 to ${layers - 1}. Shown is the nearest.`;
  return "";
}

// -- in words ----------------------------------------------------------------------------------------

// Three significant digits.
function digits(x) {
  const rounded = Number(x.toPrecision(3));
  return rounded !== 0 && rounded < 1e-4 ? rounded.toExponential() : String(rounded);
}

function bytesText(bytes) {
  for (const [unit, size] of [
    ["GB", 1e9],
    ["MB", 1e6],
  ])
    if (bytes >= size) return `${digits(bytes / size)} ${unit}`;
  return `${digits(bytes / 1e3)} kB`;
}

function flopsText(flops) {
  return flops >= 1e12 ? `${digits(flops / 1e12)} T` : `${digits(flops / 1e9)} G`;
}

function isChecked({ gpu, chosen }) {
  return gpu.checked && !mostlyLaunches(chosen);
}

function mostlyLaunches({ bounds, ms }) {
  return bounds.launch > 0.5 * ms;
}

function sentence(view) {
  if (view.problem) return view.problem;
  const { model, batch, recipe, gpu, chosen, gain, peakRatio, choices } = view;
  const error = isChecked(view)
    ? `± ${Math.round(100 * choices.time_error)}%`
    : "nothing checks it";
  const versus =
    recipe === "FP32"
      ? ""
      : ` FP32 takes ${digits(gain)} times as long, and this peak is ${digits(100 * peakRatio)} % of FP32's.`;
  return (
    `Forecast, not measured: a step of ${model}, batch ${batch}, ${recipe}, on the ${gpu.name} takes ` +
    `${digits(chosen.ms)} ms (${error}) and holds ${bytesText(chosen.peak)} at its peak ` +
    `(± ${Math.round(100 * choices.memory_error)}%).${versus}`
  );
}

function notesOf({ gpu, recipe, chosen }) {
  const notes = [];
  if (!gpu.checked)
    notes.push(`Nothing checks the time: no published training on the ${gpu.name} was found.`);
  if (recipe.endsWith("BF16") && !gpu.bf16_flops)
    notes.push(
      `The ${gpu.name} has no units for BF16 and imitates it, perhaps slower than forecast.`,
    );
  if (gpu.checked && mostlyLaunches(chosen))
    notes.push(
      `On the ${gpu.name} the step mostly launches kernels.  How long that takes depends on ` +
        "the computer around it, and no published measurement was found to check it.",
    );
  return notes;
}

// -- controls ----------------------------------------------------------------------------------------

function batchSlider(choices, { choosePower }) {
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: 0,
    step: 1,
    "aria-label": "Batch size",
    oninput: () => choosePower(Number(input.value)),
  });
  const track = element("div", { class: "mpt-rail mpt-line-track" }, input);
  const value = element("output", { class: "mpt-batch-value", "aria-hidden": "true" });
  const node = element(
    "div",
    { class: "mpt-slider-line" },
    element("span", { class: "mpt-label" }, "Batch"),
    track,
    value,
  );
  const update = ({ model, power, batch }) => {
    input.max = choices.largest_power[model];
    input.value = power;
    input.setAttribute("aria-valuetext", String(batch));
    value.textContent = count(batch);
  };
  return { node, update };
}

function layoutBox(choose) {
  const input = control("input", {
    type: "checkbox",
    onchange: () => choose({ channels_last: input.checked }),
  });
  const node = element("label", { class: "mpt-option" }, input, "channels last");
  return { node, update: (state) => (input.checked = state.channels_last) };
}

// -- all together ------------------------------------------------------------------------------------

function render({ model, el }) {
  const { root, leave } = createStage(el, "Forecast explorer", "mpt-forecast");
  const readout = createReadout();
  const names = ["model", "power", "recipe", "gpu", "channels_last", "layer"];
  const state = () =>
    Object.fromEntries([...names, "steps", "choices"].map((name) => [name, model.get(name)]));
  const { choices } = state();
  const choose = (changes) => changeModel(model, changes);
  const chooseModel = ({ model: name }) =>
    choose({
      model: name,
      layer: 0,
      power: between(model.get("power"), 0, choices.largest_power[name]),
    });
  const acts = {
    choosePower: (power) => choose({ power }),
    chooseLayer: (layer) => choose({ layer }),
  };
  const controls = [
    choice(
      "Network",
      "model",
      choices.models.map((name) => [name, MODEL_NAMES[name]]),
      chooseModel,
    ),
    choice(
      "GPU",
      "gpu",
      choices.gpus.map(({ name }) => [name, name]),
      choose,
    ),
    layoutBox(choose),
  ];
  const parts = [
    batchSlider(choices, acts),
    recipeRows(choices, choose),
    partsLegend(choices),
    roofline(acts),
    layerSlider(acts),
    layerFacts(),
  ];
  const [batch, recipes, legend, roof, slider, facts] = parts.map(({ node }) => node);
  const notes = element("p", { class: "mpt-notes" });
  const help = element(
    "p",
    { class: "mpt-help" },
    "Click a mark, or use the slider, to see a layer. Keys on the sliders: ← → one further, Page Up ",
    "and Page Down more, Home and End to the ends. Dotted: what the data sheet promises; solid: ",
    "what kernels get. The optimizer is SGD with momentum; convolutions in FP32 use TF32 where there ",
    "is TF32, as is PyTorch's default.",
  );
  root.append(
    element("div", { class: "mpt-bar" }, ...controls.map(({ node }) => node)),
    batch,
    readout.node,
    notes,
    recipes,
    legend,
    element(
      "div",
      { class: "mpt-closeup" },
      element("div", { class: "mpt-heading" }, "Each layer under the roof, forward and backward"),
      roof,
      slider,
      facts,
    ),
    help,
  );
  const redraw = redrawOn(model, names, () => {
    const now = state();
    const view = explore(now);
    for (const part of controls) part.update(now);
    for (const part of parts) part.update(view);
    notes.textContent = notesOf(view).join(" ");
    readout.say(sentence(view));
  });
  return () => {
    redraw.stop();
    parts[3].leave();
    leave();
  };
}
