// The accumulation explorer's view. `explore` and `nextAddition` below are those of
// accumulation_explorer.py; the rest draws what they return. Each part is {node, update}.

const LEAST_FRACTION = pow2(-28);

const ROUNDING_NAMES = {
  nearest_even: "nearest",
  toward_zero: "toward zero",
  up: "up",
  stochastic: "stochastic",
};

// -- where the sum stands -------------------------------------------------------------------------

function explore({ n, accumulator, rounding, term, series, choices }) {
  const position = Math.min(Math.max(Math.round(n / choices.every), 0), choices.n / choices.every);
  const fmt = choices.formats.find((row) => row.name === accumulator);
  const chosen = series[seriesKey(accumulator, rounding, term)];
  const totals = chosen.codes.map((codes) => decode(codes[position], fmt).value);
  const added = position * choices.every;
  return {
    fmt,
    rounding,
    n: added,
    totals,
    total: totals[0],
    exact: added * chosen.term,
    lastChange: chosen.last_change,
    standsStill: added >= chosen.last_change && chosen.last_change < choices.n,
    next: Number.isFinite(totals[0]) ? nextAddition(totals[0], chosen.term, fmt, rounding) : null,
  };
}

function seriesKey(accumulator, rounding, term) {
  return `${accumulator} ${rounding} ${term}`;
}

function nextAddition(total, term, fmt, rounding) {
  const wanted = total + Math.max(term, total * LEAST_FRACTION);
  const ulp = ulpOf(wanted, fmt);
  const steps = wanted / ulp;
  const whole = Math.floor(steps);
  const fraction = steps - whole;
  const chanceUp = {
    nearest_even: roundHalfEven(steps) > whole ? 1 : 0,
    toward_zero: 0,
    up: 1,
    stochastic: fraction,
  }[rounding];
  return { term, wanted, below: whole * ulp, above: Math.ceil(steps) * ulp, ulp, chanceUp };
}

// Where the sum stands and what the next term will do, in two sentences.
function sentence(view) {
  const { fmt, n, total, totals, exact, rounding, lastChange, standsStill, next } = view;
  if (n === 0)
    return `Nothing has been added yet. The first term is ${shortNumber(next.term, 4)} in ${fmt.name}.`;
  const after = `After ${count(n)} terms`;
  const aim = `exact is ${shortNumber(exact, 5)}`;
  if (!next) return `${after} the ${fmt.name} sum has overflowed to ∞; ${aim}.`;
  if (rounding === "stochastic") {
    const mean = totals.reduce((a, b) => a + b) / totals.length;
    const [low, high] = [Math.min(...totals), Math.max(...totals)].map((x) => shortNumber(x, 5));
    return (
      `${after} the ${totals.length} ${fmt.name} sums lie between ${low} and ${high}, on average at ` +
      `${shortNumber(mean, 5)}; ${aim}. ${countsAs(view)}`
    );
  }
  const stands = `${after} the ${fmt.name} sum is ${shortNumber(total, 6)}; ${aim}.`;
  if (standsStill)
    return `${stands} It has stood still since term ${count(lastChange)}: a term is ${inUlps(next)}.`;
  return `${stands} ${countsAs(view)}`;
}

// What the next term is worth, and what it counts for.
function countsAs({ total, next, rounding }) {
  const { wanted, below, above, ulp, chanceUp } = next;
  const worth = `The next term is ${inUlps(next)}`;
  if (below === above && wanted === below) return `${worth}, and all of it counts.`;
  const low = shortNumber((below - total) / ulp, 4);
  const high = shortNumber((above - total) / ulp, 4);
  if (rounding === "stochastic") {
    return `${worth}: it counts as ${high} with a chance of ${percentText(chanceUp)}, else as ${low}.`;
  }
  return `${worth} and counts as ${chanceUp ? high : low}.`;
}

function inUlps({ term, ulp }) {
  const steps = term / ulp;
  return `${shortNumber(steps, steps < 100 ? 3 : 6)} ulp`;
}

// -- the controls ---------------------------------------------------------------------------------

function termSlider(choices, choose) {
  const input = control("input", {
    type: "range",
    class: "mpt-slider mpt-terms",
    min: 0,
    max: choices.n,
    step: choices.every,
    "aria-label": "Terms added",
    oninput: () => choose({ n: Number(input.value) }),
  });
  const update = ({ n }) => {
    input.value = n;
    input.setAttribute("aria-valuetext", `${count(n)} terms`);
  };
  return { node: element("div", { class: "mpt-rail mpt-terms-track" }, input), update };
}

// -- the facts ------------------------------------------------------------------------------------

function factList() {
  const node = element("dl", { class: "mpt-facts" });
  const update = (view) => {
    node.replaceChildren(
      ...factsOf(view).map(([term, fact]) =>
        element("div", {}, element("dt", {}, term), element("dd", {}, fact)),
      ),
    );
  };
  return { node, update };
}

function factsOf({ total, exact, lastChange, next, rounding }) {
  const error = exact === 0 ? 0 : (100 * (total - exact)) / exact;
  const facts = [
    [rounding === "stochastic" ? "sum, first run" : "sum", shortNumber(total)],
    ["exact", shortNumber(exact)],
    ["error", `${shortNumber(error, 3)} %`],
  ];
  if (rounding !== "stochastic") facts.push(["last term that counts", count(lastChange)]);
  if (!next) return facts;
  return [...facts, ["1 ulp of the sum", shortNumber(next.ulp, 4)], ["term", inUlps(next)]];
}

// -- all together ---------------------------------------------------------------------------------

function render({ model, el }) {
  const { root, leave } = createStage(el, "Accumulation explorer", "mpt-accumulation");
  const readout = createReadout();
  const names = ["n", "accumulator", "rounding", "term"];
  const state = () =>
    Object.fromEntries([...names, "series", "choices"].map((name) => [name, model.get(name)]));
  const { choices } = state();
  const choose = (changes) => changeModel(model, changes);
  const controls = [
    choice(
      "Accumulator",
      "accumulator",
      choices.formats.map(({ name }) => [name, name]),
      choose,
    ),
    choice(
      "Rounding",
      "rounding",
      choices.roundings.map((mode) => [mode, ROUNDING_NAMES[mode]]),
      choose,
    ),
    choice(
      "Term",
      "term",
      choices.terms.map((term) => [term, term]),
      choose,
    ),
  ];
  const chart = sumChart(choices, choose);
  const slider = termSlider(choices, choose);
  const line = additionLine();
  const facts = factList();
  const help = element(
    "p",
    { class: "mpt-help" },
    `Drag in the chart or the slider. Keys on the slider: ← → add or take away ${choices.every} terms, `,
    "Page Up and Page Down more, Home and End go to the ends.",
  );
  root.append(
    element("div", { class: "mpt-bar" }, ...controls.map(({ node }) => node)),
    readout.node,
    chart.node,
    slider.node,
    line.node,
    facts.node,
    help,
  );
  const redraw = redrawOn(model, names, () => {
    const now = state();
    const view = explore(now);
    for (const part of controls) part.update(now);
    slider.update(view);
    chart.update(now, view);
    line.update(view);
    facts.update(view);
    readout.say(sentence(view));
  });
  return () => {
    redraw.stop();
    chart.leave();
    line.leave();
    leave();
  };
}
