// The step debugger's view: step_tape.js says what there is to see, step_code.js and step_chart.js
// show it, this lets one move about in it.

const BATCH_NAMES = {
  healthy: "healthy",
  overflowing: "one that overflows",
  tiny: "tiny gradients",
};
const TRAITS = ["loop", "batch", "scale", "stop"];

function loopMenu({ choices }, choose) {
  const option = (name) => element("option", { value: name }, name);
  const others = choices.loops
    .map(({ name }) => name)
    .filter((name) => !choices.known.includes(name));
  const [right, ...known] = choices.known;
  const menu = control(
    "select",
    { class: "mpt-menu", onchange: () => choose({ loop: menu.value }) },
    option(right),
    element("optgroup", { label: "Found in real loops" }, ...known.map(option)),
    element("optgroup", { label: "Other orders" }, ...others.map(option)),
  );
  const node = element("label", { class: "mpt-label" }, "Loop", menu);
  return { node, update: ({ loop }) => (menu.value = loop) };
}

function stopSlider(look) {
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: 0,
    step: 1,
    "aria-label": "Stop",
    oninput: () => look(Number(input.value)),
  });
  const update = (view) => {
    input.max = view.stops.length - 1;
    input.value = view.stop;
    input.setAttribute("aria-valuetext", sentence(view));
  };
  return { node: element("div", { class: "mpt-rail mpt-stop-track" }, input), update };
}

function stopButtons(move) {
  const button = (label, by) =>
    control("button", { type: "button", class: "mpt-button", onclick: () => move(by) }, label);
  return element(
    "div",
    { class: "mpt-buttons mpt-walk" },
    button("◀ back", -1),
    button("next call ▶", 1),
  );
}

// -- what it has cost -----------------------------------------------------------------------------

function damageTable() {
  const body = element("tbody", {});
  const heads = [
    "",
    "optimizer",
    "weights move by",
    "in the right order",
    "ratio",
    "scale afterwards",
  ];
  const node = element(
    "table",
    { class: "mpt-numbers mpt-damage" },
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ...heads.map((head) => (head ? element("th", { scope: "col" }, head) : element("td"))),
      ),
    ),
    body,
  );
  const update = (view) => body.replaceChildren(...damage(view).map(damageRow));
  return { node, update };
}

function damageRow({ step, outcome, moved, reference, ratio, scale }) {
  const isOff = !(Math.abs(Math.log2(ratio)) < 0.001);
  const cells = [
    outcome,
    scale === null ? "" : sizeText(moved),
    sizeText(reference),
    scale === null ? "" : ratioText(ratio),
    scale === null ? "" : scaleText(scale),
  ];
  return element(
    "tr",
    { class: isOff ? "mpt-off" : null },
    element("th", { scope: "row" }, `step ${step + 1}`),
    ...cells.map((cell) => element("td", {}, cell)),
  );
}

function followedWeight() {
  const node = element("dl", { class: "mpt-facts" });
  const update = ({ now: { weights, gradients, scaling } }) => {
    const facts = [
      ["one weight", shortNumber(weights.one, 9)],
      ["its gradient", gradients ? shortNumber(gradients.one, 4) : "none"],
      ["gradients that are 0", gradients ? percentText(gradients.zero) : "none"],
      [
        "inf or NaN noted by the scaler",
        { true: "yes", false: "no" }[scaling.foundInf] ?? "not looked yet",
      ],
      ["scale now", scaleText(scaling.scale)],
    ];
    node.replaceChildren(
      ...facts.map(([term, fact]) =>
        element("div", {}, element("dt", {}, term), element("dd", {}, fact)),
      ),
    );
  };
  return { node, update };
}

// -- all together ---------------------------------------------------------------------------------

function render({ model, el }) {
  const { root, leave } = createStage(el, "Step debugger", "mpt-steps");
  const readout = createReadout();
  const recording = model.get("recording");
  const state = () => ({
    ...Object.fromEntries(TRAITS.map((name) => [name, model.get(name)])),
    recording,
  });
  const now = () => explore(state());
  const complaint = createComplaint(model, TRAITS);
  const set = (changes) => {
    complaint.clear();
    changeModel(model, changes);
    redraw.ask();
  };
  const complain = (sentence) => {
    complaint.say(sentence);
    redraw.ask();
  };
  const choose = (changes) => set(changedTo(state(), changes));
  const look = (stop) => set({ stop });
  const goTo = (line) => {
    const {
      stops,
      now: { step },
    } = now();
    const stop = stopAt(stops, step, line);
    if (stops[stop].line === line) look(stop);
    else complain("The loop does not get there.");
  };
  const change = (name) => {
    if (name === "right") return choose({ loop: recording.choices.known[0] });
    const changes = changed(now(), name, recording);
    return changes ? set(changes) : complain(ONE_CHANGE);
  };
  const { choices } = recording;
  const controls = [
    loopMenu(recording, choose),
    choice(
      "Batch",
      "batch",
      Object.keys(choices.batches).map((name) => [name, BATCH_NAMES[name]]),
      choose,
    ),
    choice(
      "Scale",
      "scale",
      choices.scales.map((scale) => [scale, scaleText(Number(scale))]),
      choose,
    ),
  ];
  const move = (by) => {
    const { stops, stop } = now();
    look(between(stop + by, 0, stops.length - 1));
  };
  const code = codePane(change, goTo, stopButtons(move));
  const chart = gradientChart(look);
  const slider = stopSlider(look);
  const facts = followedWeight();
  const table = damageTable();
  const help = element(
    "p",
    { class: "mpt-help" },
    "Click a line or a bar to go there. Keys on the slider: ← → one stop, Home and End the ends. ",
    `Recorded: ${recording.made_by}.`,
  );
  root.append(
    element("div", { class: "mpt-bar" }, ...controls.map(({ node }) => node)),
    readout.node,
    element(
      "div",
      { class: "mpt-panes" },
      code.node,
      element("div", {}, chartHeading(), chart.node, slider.node, tapeLegend()),
    ),
    facts.node,
    table.node,
    help,
  );
  const redraw = redrawOn(model, TRAITS, () => {
    const view = now();
    for (const part of controls) part.update(state());
    code.update(view, recording);
    for (const part of [chart, slider, facts, table]) part.update(view);
    readout.say(complaint.now() || view.problem || sentence(view));
  });
  return () => {
    redraw.stop();
    chart.leave();
    leave();
  };
}
