// The FP8 scale explorer's view. `explore` below is `Fp8Explorer.result` of fp8_explorer.py: it looks
// up what was computed there for every position. The rest draws what it returns.

const SHARED_BY = { tensor: "the tensor", row: "each row", block: "each block of 32" };

// -- looking up ------------------------------------------------------------------------------------

function explore({ power, fmt, tensor, granularity, tensors, choices }) {
  const of = tensors[tensor];
  const ofFormat = of.formats[fmt];
  const parts = ofFormat.parts[granularity];
  const at = between(power, choices.lowest, choices.highest);
  const place = at - choices.lowest;
  const byBlock = parts ? parts.counts : ofFormat.counts[place];
  const blocks = byBlock.map((counts, i) => ({
    first: i * choices.block_size,
    last: (i + 1) * choices.block_size - 1,
    hasOutlier: i === of.outlier_block,
    nonzero: of.nonzero[i],
    counts: zonesFrom(counts, of.nonzero[i]),
  }));
  const nonzero = of.nonzero.reduce((sum, n) => sum + n, 0);
  const total = [0, 1, 2].map((zone) => byBlock.reduce((sum, counts) => sum + counts[zone], 0));
  const counts = zonesFrom(total, nonzero);
  return {
    power: at,
    tensor,
    fmt: choices.formats.find(({ name }) => name === fmt),
    values: parts ?? of,
    shift: parts ? 0 : at,
    isDragged: !parts,
    amaxPower: ofFormat.amax_power,
    range: parts?.range,
    scales: parts?.scales ?? 1,
    error: parts ? parts.error : ofFormat.errors[place],
    zeros: of.zeros,
    scaleSaid: saidOfScale(granularity, at),
    nonzero,
    counts,
    shares: Object.fromEntries(ZONES.map((zone) => [zone, percent(counts[zone], nonzero)])),
    blocks,
  };
}

function zonesFrom([flushed, subnormal, infinite], nonzero) {
  return { flushed, subnormal, normal: nonzero - flushed - subnormal - infinite, infinite };
}

// -- in words --------------------------------------------------------------------------------------

function saidOfScale(granularity, power) {
  return granularity === "tensor"
    ? `one scale of 2${superscript(power)}`
    : `a scale for ${SHARED_BY[granularity]}`;
}

function sentence({ scaleSaid, fmt, tensor, counts, shares, error }) {
  const clips = counts.infinite ? `clips ${shares.infinite} %` : "clips none";
  return (
    `With ${scaleSaid}, ${fmt.name} makes ${shares.flushed} % of the ${tensor} zero and ${clips}. ` +
    `Mean relative error: ${Number((100 * error).toPrecision(3))} %.`
  );
}

// A scale as people read it: a power of two where it is one, else to three digits.
function scaleText(power) {
  if (Number.isInteger(power)) return `2${superscript(power)}`;
  const scale = Number((2 ** power).toPrecision(3));
  return scale < 1000 ? shortNumber(scale) : count(scale);
}

function amaxSentence({ isDragged, amaxPower, scales, range }) {
  if (isDragged) {
    const below = superscript(Math.floor(amaxPower));
    return `The amax asks for a scale of about ${scaleText(amaxPower)}; the largest power of two up to there is 2${below}.`;
  }
  return `${count(scales)} scales, each chosen by its own amax, from ${scaleText(range[0])} to ${scaleText(range[1])}.`;
}

// -- facts -------------------------------------------------------------------------------------------

// The shares of the zones, which are the key to their colours as well, and the error.
function fp8Facts() {
  const facts = ZONES.map((zone) => {
    const [term, fact] = [element("span"), element("dd")];
    const swatch = element("i", { class: `mpt-zone-${zone}` });
    const key = element("dt", {}, element("span", { class: "mpt-key" }, swatch, term));
    return { zone, term, fact, node: element("div", {}, key, fact) };
  });
  const [zeros, error] = [element("dd"), element("dd")];
  const others = [
    ["apart: zero in FP32", zeros],
    ["mean relative error", error],
  ].map(([term, fact]) => element("div", {}, element("dt", {}, term), fact));
  const node = element("dl", { class: "mpt-facts" }, ...facts.map((fact) => fact.node), ...others);
  const update = (view) => {
    const labels = zoneLabels(view.fmt);
    for (const { zone, term, fact } of facts) {
      term.textContent = labels[zone];
      fact.textContent = `${view.shares[zone]} % (${count(view.counts[zone])})`;
    }
    zeros.textContent = count(view.zeros);
    error.textContent = percentText(view.error);
  };
  return { node, update };
}

// -- all together ----------------------------------------------------------------------------------

function render({ model, el }) {
  const { root, leave } = createStage(el, "FP8 scale explorer", "mpt-scale mpt-fp8");
  const readout = createReadout();
  const names = ["power", "fmt", "tensor", "granularity"];
  const state = () =>
    Object.fromEntries([...names, "tensors", "choices"].map((name) => [name, model.get(name)]));
  const { choices, tensors } = state();
  const choose = (changes) => changeModel(model, changes);
  const acts = {
    choosePower: (power) => choose({ power: between(power, choices.lowest, choices.highest) }),
  };
  const controls = [
    choice(
      "Tensor",
      "tensor",
      Object.keys(tensors).map((name) => [name, name]),
      choose,
    ),
    choice(
      "Format",
      "fmt",
      choices.formats.map(({ name }) => [name, name]),
      choose,
    ),
    choice(
      "A scale for",
      "granularity",
      choices.granularities.map((g) => [g, SHARED_BY[g]]),
      choose,
    ),
  ];
  const parts = [fp8Histogram(choices, acts), fp8Slider(choices, acts), fp8Facts(), blockList()];
  const next = element("p", { class: "mpt-next" });
  const help = element(
    "p",
    { class: "mpt-help" },
    "With one scale for the tensor, drag the histogram or the slider. Keys on the slider: ← → halve and double ",
    "the scale, Page Up and Page Down change it more, Home and End go to the ends.",
  );
  const [chart, slider, facts, blocks] = parts.map(({ node }) => node);
  root.append(
    element("div", { class: "mpt-bar" }, ...controls.map(({ node }) => node)),
    readout.node,
    next,
    chart,
    slider,
    facts,
    blocks,
    help,
  );
  const redraw = redrawOn(model, names, () => {
    const now = state();
    const view = explore(now);
    for (const part of controls) part.update(now);
    for (const part of parts) part.update(view);
    next.textContent = amaxSentence(view);
    readout.say(sentence(view));
  });
  return () => {
    redraw.stop();
    parts[0].leave();
    leave();
  };
}
