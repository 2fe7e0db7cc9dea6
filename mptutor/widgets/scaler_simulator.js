// The scaler simulator's view: scaler_run.js computes, scaler_chart.js draws, this lets one change it.

// As many NaN batches as take a scale of 65536 to 0.
const MANY = 166;

function exponentSlider({ exponents: [low, high] }, choose) {
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: low,
    max: high,
    step: 1,
    "aria-label": "Initial scale, a power of two",
    oninput: () => choose({ init_exponent: Number(input.value) }),
  });
  const shown = element("output", { class: "mpt-shown" });
  const node = element(
    "div",
    { class: "mpt-label mpt-init" },
    "Initial scale",
    element("div", { class: "mpt-rail mpt-plain-track" }, input),
    shown,
  );
  const update = ({ start }) => {
    const exponent = binade(start.scale);
    input.value = exponent;
    shown.textContent = `2${superscript(exponent)}`;
    input.setAttribute("aria-valuetext", `2 to the power of ${exponent}`);
  };
  return { node, update };
}

// -- accidents ------------------------------------------------------------------------------------

// What an accident at `step` makes of the two lists; asked for twice it goes away.
function withAccident({ spikes, nans, step }, kind) {
  const without = (steps) => steps.filter((i) => i !== step);
  const toggled = (steps) =>
    steps.includes(step) ? without(steps) : [...steps, step].sort((a, b) => a - b);
  if (kind === "spike") return { spikes: toggled(spikes), nans: without(nans) };
  if (kind === "nan") return { spikes: without(spikes), nans: toggled(nans) };
  return { spikes: without(spikes), nans: without(nans) };
}

function withManyNaNs({ nans, step, choices }) {
  const end = Math.min(step + MANY, choices.gradients.length);
  const added = Array.from({ length: Math.max(end - step, 0) }, (_, i) => step + i);
  return { nans: [...new Set([...nans, ...added])].sort((a, b) => a - b) };
}

function accidentButtons(now, choose) {
  const button = (label, title, change) =>
    control(
      "button",
      { type: "button", class: "mpt-button", title, onclick: () => choose(change()) },
      label,
    );
  const accident = (kind) => () => withAccident(now(), kind);
  return element(
    "div",
    { class: "mpt-bar" },
    element("span", { class: "mpt-label", "aria-hidden": "true" }, "At this step"),
    element(
      "div",
      { class: "mpt-buttons", role: "group", "aria-label": "Accidents at this step" },
      button("spike × 1000 (S)", "Gradients a thousand times larger", accident("spike")),
      button("NaN batch (N)", "Gradients that are NaN", accident("nan")),
      button(`${MANY} NaN batches`, "From here on", () => withManyNaNs(now())),
      button("healthy (Delete)", "Take the accident away", accident("none")),
      button("all healthy", "Take all accidents away", () => ({ spikes: [], nans: [] })),
    ),
  );
}

function stepSlider(now, choose) {
  const { choices } = now();
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: 0,
    max: choices.gradients.length - 1,
    step: 1,
    "aria-label": "Step to look at",
    oninput: () => choose({ step: Number(input.value) }),
    onkeydown: (event) => {
      const kind = { s: "spike", n: "nan", delete: "none", backspace: "none" }[
        event.key.toLowerCase()
      ];
      if (!kind || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      choose(withAccident(now(), kind));
    },
  });
  const update = (view) => {
    input.value = view.step;
    input.setAttribute(
      "aria-valuetext",
      `step ${view.step}, scale ${shortNumber(view.steps[view.step].scale, 4)}`,
    );
  };
  return {
    node: element("div", { class: "mpt-rail mpt-step-track" }, input),
    update,
    focus: () => input.focus({ preventScroll: true }),
  };
}

// -- all together ---------------------------------------------------------------------------------

function render({ model, el }) {
  const { root, leave } = createStage(el, "Scaler simulator", "mpt-scaler");
  const readout = createReadout();
  const names = [
    "init_exponent",
    "growth",
    "backoff",
    "interval",
    "floor",
    "spikes",
    "nans",
    "step",
  ];
  const now = () =>
    Object.fromEntries([...names, "choices"].map((name) => [name, model.get(name)]));
  const { choices } = now();
  const choose = (changes) => {
    changeModel(model, changes);
    redraw.ask();
  };
  const same = (options) => options.map((option) => [option, option]);
  const radios = [
    choice("Growth factor", "growth", same(choices.growth), choose),
    choice("Backoff factor", "backoff", same(choices.backoff), choose),
    choice("Growth interval", "interval", same(choices.interval), choose),
    choice(
      "Floor",
      "floor",
      choices.floor.map((floor) => [floor, floor === "0" ? "none" : floor]),
      choose,
    ),
  ];
  // With the step that is shown, which is the last one where the trait is beyond it.
  const looked = () => ({ ...now(), step: explore(now()).step });
  const init = exponentSlider(choices, choose);
  const slider = stepSlider(looked, choose);
  // After a click in the chart the keys should act on the step that was clicked.
  const chart = scaleChart(choices, (change) => {
    choose(change);
    slider.focus();
  });
  const said = element("p", { class: "mpt-summary" });
  const help = element(
    "p",
    { class: "mpt-help" },
    "Click in the chart or move the slider below it to choose a step. Keys there: ← → one step, S spike, N NaN, ",
    "Delete healthy. The gradients were recorded in a real training without skips; a real skip would also ",
    `change those after it. Recording: ${choices.made_by}.`,
  );
  root.append(
    element("div", { class: "mpt-bar" }, init.node, ...radios.map(({ node }) => node)),
    readout.node,
    scaleLegend(),
    chart.node,
    slider.node,
    accidentButtons(looked, choose),
    said,
    help,
  );
  const redraw = redrawOn(model, names, () => {
    const view = explore(now());
    for (const part of radios) part.update(now());
    for (const part of [init, chart, slider]) part.update(view);
    said.textContent = summary(view);
    readout.say(view.problem || sentence(view));
  });
  return () => {
    redraw.stop();
    chart.leave();
    leave();
  };
}
