// The update on the grid: what update_paths.js computes, drawn. Each part is {node, update}.

// -- what the learner types -----------------------------------------------------------------------

const PAIRS = [
  ["1", "-0.0002", "the lesson's first example"],
  ["1", "-2^-12", "FP16's tie below 1"],
  ["1", "2^-11", "FP16's tie above 1"],
  ["1.5", "-2^-9", "BF16's tie"],
  ["0.05", "-3e-5", "fine-tuning with Adam"],
];

function typedNumber(label, trait, model, choose, complain) {
  // What cannot be read stays in view, with its complaint, until the number changes: a drawing asked
  // for earlier may still be on its way.
  const unread = createComplaint(model, [trait]);
  const input = control("input", {
    type: "text",
    class: "mpt-input mpt-short",
    spellcheck: "false",
    autocomplete: "off",
    oninput: () => {
      try {
        readNumber(input.value);
        choose({ [trait]: input.value });
      } catch (error) {
        unread.say(error.message);
        input.setAttribute("aria-invalid", "true");
        complain(error.message);
      }
    },
  });
  const update = (state) => {
    if (unread.now()) return;
    if (input.value !== state[trait]) input.value = state[trait];
    input.setAttribute("aria-invalid", "false");
  };
  const accept = (changes) => {
    if (trait in changes) unread.clear();
  };
  const node = element("label", { class: "mpt-label" }, label, input);
  return { node, update, accept, problem: unread.now };
}

function pairButtons(choose) {
  const buttons = PAIRS.map(([weight, update, title]) =>
    control(
      "button",
      {
        type: "button",
        class: "mpt-button",
        title,
        onclick: () => choose({ weight, update, n: 0 }),
      },
      `${weight}, ${update}`,
    ),
  );
  return element(
    "div",
    { class: "mpt-buttons", role: "group", "aria-label": "Weights and updates to try" },
    ...buttons,
  );
}

// -- the ratio, with every format's cut-off -------------------------------------------------------

// The slider stays inside the allowed ratios by more than typed digits are off.
const RULER = { from: 1.125, to: 25.875, step: 0.125, height: 62 };

function ratioRuler(now, choose) {
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: RULER.from,
    max: RULER.to,
    step: RULER.step,
    "aria-label": "Weight divided by update, on a logarithmic scale",
    oninput: () => {
      const { weight, direction } = now();
      const size = weight / 2 ** Number(input.value);
      choose({ update: printNumber(Number((direction * size).toPrecision(4))) });
    },
  });
  const marks = shape("svg", { class: "mpt-ruler", height: RULER.height, "aria-hidden": "true" });
  const node = element(
    "div",
    { class: "mpt-closeup" },
    element(
      "div",
      { class: "mpt-heading" },
      "Weight ÷ update, and from where each format swallows the update",
    ),
    element("div", { class: "mpt-ruler-track" }, marks, input),
  );
  const update = (view) => {
    const ratio = Math.abs(view.start / view.update);
    input.value = Math.log2(ratio);
    input.setAttribute("aria-valuetext", `${ratioText(ratio)} times`);
    marks.replaceChildren(...drawRuler(view));
  };
  return { node, update };
}

function drawRuler({ rows, fmt, way, grid, start, update }) {
  const percent = (ratio) => (100 * (Math.log2(ratio) - RULER.from)) / (RULER.to - RULER.from);
  const zone = (name, from, to) =>
    shape("rect", {
      class: `mpt-zone-${name}`,
      y: 0,
      height: 26,
      x: `${between(from, 0, 100)}%`,
      width: `${Math.max(between(to, 0, 100) - between(from, 0, 100), 0)}%`,
    });
  const edge = percent(cutOff(start, update, grid));
  // From half the cut-off on, the update is less than one step: chance decides.
  const sure = percent(cutOff(start, update, grid) / 2);
  const zones =
    way === "stochastic"
      ? [zone("normal", 0, sure), zone("subnormal", sure, 100)]
      : [zone("normal", 0, edge), zone("flushed", edge, 100)];
  const labels = rows.flatMap((row, i) => {
    const at = percent(row.cutOff);
    const y = i % 2 ? 56 : 42;
    return [
      shape("line", { class: "mpt-tick", x1: `${at}%`, x2: `${at}%`, y1: 0, y2: y - 9 }),
      shape(
        "text",
        {
          class: `mpt-tick-label${row.fmt === fmt ? " mpt-strong" : ""}`,
          x: `${at}%`,
          y,
          "text-anchor": at > 93 ? "end" : at < 7 ? "start" : "middle",
        },
        `${row.fmt.name.replace("FP8_", "")} ${ratioText(row.cutOff)}`,
      ),
    ];
  });
  return [...zones, ...labels];
}

function rulerLegend(way) {
  const keys =
    way === "stochastic"
      ? [
          ["normal", "always moves the weight"],
          ["subnormal", "moves it by chance, a whole step"],
        ]
      : [
          ["normal", way === "master" ? "kept by the master copy" : "moves the weight"],
          ["flushed", "swallowed"],
        ];
  return keys.map(([zone, label]) =>
    element("span", { class: "mpt-key" }, element("i", { class: `mpt-zone-${zone}` }), label),
  );
}

// -- all formats at once --------------------------------------------------------------------------

function formatTable(choices) {
  const body = element("tbody", {});
  const heads = [
    "rounded to nearest",
    "starts at",
    "swallowed from",
    "this update is",
    `after ${count(choices.steps)}`,
  ];
  const node = element(
    "table",
    { class: "mpt-numbers mpt-formats" },
    element(
      "thead",
      {},
      element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head))),
    ),
    body,
  );
  const update = ({ rows, fmt }) => {
    body.replaceChildren(
      ...rows.map((row) =>
        element(
          "tr",
          { class: row.fmt === fmt ? "mpt-selected" : null },
          element("th", { scope: "row" }, row.fmt.name.replaceAll("_", " ")),
          element("td", {}, shortNumber(row.start, 6)),
          element("td", {}, `${ratioText(row.cutOff)} ×`),
          element(
            "td",
            { class: row.swallowed ? "mpt-lost" : null },
            row.swallowed ? "swallowed" : "kept",
          ),
          element("td", {}, shortNumber(row.end, 6)),
        ),
      ),
    );
  };
  return { node, update };
}

// -- all together ---------------------------------------------------------------------------------

function render({ model, el }) {
  const { root, leave } = createStage(el, "Update on the grid", "mpt-updates");
  const readout = createReadout();
  const names = ["weight", "update", "fmt", "way", "n"];
  const state = () =>
    Object.fromEntries([...names, "choices"].map((name) => [name, model.get(name)]));
  const { choices } = state();
  const choose = (changes) => {
    for (const { accept } of numbers) accept(changes);
    changeModel(model, changes);
    redraw.ask();
  };
  const now = () => {
    const { weight, update } = readInputs(model.get("weight"), model.get("update"), choices);
    return { weight, direction: Math.sign(update) };
  };
  const numbers = [
    typedNumber("Weight", "weight", model, choose, readout.say),
    typedNumber("Update", "update", model, choose, readout.say),
  ];
  const controls = [
    choice(
      "Format",
      "fmt",
      choices.formats.map(({ name }) => [name, name.replaceAll("_", " ")]),
      choose,
    ),
    choice(
      "Weight kept",
      "way",
      choices.ways.map((way) => [way, WAY_NAMES[way]]),
      choose,
    ),
    ...numbers,
  ];
  const ruler = ratioRuler(now, choose);
  const legend = element("div", { class: "mpt-legend" });
  const line = gridLine();
  const chart = pathChart(choices, choose);
  const table = formatTable(choices);
  const help = element(
    "p",
    { class: "mpt-help" },
    "Drag the sliders or in the chart. Keys on a slider: ← → one step, Page Up and Page Down more, Home and End go to the ends.",
  );
  root.append(
    element("div", { class: "mpt-bar" }, ...controls.map(({ node }) => node), pairButtons(choose)),
    readout.node,
    ruler.node,
    legend,
    line.node,
    chart.node,
    table.node,
    help,
  );
  const redraw = redrawOn(model, names, () => {
    const view = explore(state());
    for (const part of controls) part.update(state());
    for (const part of [ruler, line, chart, table]) part.update(view);
    legend.replaceChildren(...rulerLegend(view.way));
    const complaint = numbers.map(({ problem }) => problem()).find(Boolean);
    readout.say(complaint || view.problem || sentence(view));
  });
  return () => {
    redraw.stop();
    line.leave();
    chart.leave();
    leave();
  };
}
