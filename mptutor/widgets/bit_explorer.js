// The bit explorer's view. `explore` below is bit_explorer.py's; the rest draws what it returns.
// Each part is {node, update}: it makes its elements once and then only changes them.

const NO_CODE = -1;

// -- what every format makes of a number ------------------------------------------------------------

function explore({ text, fmt, code, rows }) {
  const selected = rows.find((row) => row.name === fmt);
  let problem = codeProblem(selected, code);
  const hasCode = !problem && code !== NO_CODE;
  const held = hasCode ? decode(code, selected).value : NaN;
  let wanted = held;
  try {
    wanted = readNumber(text);
  } catch (error) {
    problem = error.message;
  }
  const stored = rows.map((row) => {
    const holdsNaN = row === selected && hasCode && Number.isNaN(held) && Number.isNaN(wanted);
    return describeCode(row, holdsNaN ? code : encode(wanted, row), wanted);
  });
  return { text, wanted, problem, stored, selected: stored[rows.indexOf(selected)] };
}

function describeCode(fmt, code, wanted) {
  if (code === null) {
    const unknown = { value: NaN, below: NaN, above: NaN, ulp: NaN, relativeError: NaN };
    return { fmt, code, bits: null, kind: "none", ...unknown };
  }
  const decoded = decode(code, fmt);
  const [below, above] = neighbours(decoded.value, fmt);
  return {
    fmt,
    ...decoded,
    bits: bitsOf(code, fmt),
    below,
    above,
    ulp: ulpOf(decoded.value, fmt),
    relativeError: relativeError(decoded.value, wanted),
  };
}

function relativeError(value, wanted) {
  if (value === wanted) return 0;
  if (Number.isNaN(value) || Number.isNaN(wanted)) return NaN;
  if (wanted === 0 || !Number.isFinite(wanted)) return Infinity;
  return Math.abs(value - wanted) / Math.abs(wanted);
}

function codeProblem(fmt, code) {
  const { bits } = formatLimits(fmt);
  if (code === NO_CODE || (code >= 0 && code < pow2(bits))) return "";
  return `${code} is no code of ${title(fmt)}: its ${bits} bits count from 0 to ${pow2(bits) - 1}.`;
}

function bitsOf(code, fmt) {
  return code.toString(2).padStart(formatLimits(fmt).bits, "0");
}

function title(fmt) {
  return fmt.name.replaceAll("_", " ");
}

// What the selected format makes of the number, in a sentence or two.
function sentence({ text, wanted, selected: stored }) {
  const name = title(stored.fmt);
  const { max, smallestSubnormal } = formatLimits(stored.fmt);
  const value = shortNumber(stored.value);
  if (stored.kind === "none") return `${name} has no NaN: each of its codes is a number.`;
  if (stored.kind === "nan") return `${name} stores NaN: not a number.`;
  if (stored.kind === "inf" && Number.isFinite(wanted)) {
    return `${text} is too large for ${name}. It becomes ${value}. The largest number is ${shortNumber(max)}.`;
  }
  if (stored.value === wanted) return `${name} holds ${text} exactly.${subnormalNote(stored)}`;
  if (stored.value === 0) {
    const smallest = shortNumber(smallestSubnormal, 3);
    return `${text} is too small for ${name}. It becomes 0. The smallest positive number is ${smallest}.`;
  }
  const distance = Math.abs(wanted - stored.value);
  if (distance > stored.ulp / 2 && Math.abs(stored.value) === max) {
    return `${text} is too large for ${name}. It becomes ${value}, the largest number.`;
  }
  const percent = shortNumber(stored.relativeError * 100, 2);
  return `${name} stores ${text} as ${value}. That is off by ${percent} %.${subnormalNote(stored)}`;
}

function subnormalNote({ kind, mantissaField, fmt }) {
  if (kind !== "subnormal") return "";
  const left = mantissaField.toString(2).length;
  const bits = left === 1 ? "1 significant bit is left" : `${left} significant bits are left`;
  return ` It is subnormal: ${bits} of ${fmt.mantissa_bits + 1}.`;
}

// -- the number, typed ----------------------------------------------------------------------------

function numberField({ wantText }, numbers, unread) {
  const input = control("input", {
    type: "text",
    class: "mpt-input",
    spellcheck: "false",
    autocomplete: "off",
    oninput: () => wantText(input.value),
  });
  const examples = numbers.map(([text, hint]) =>
    control(
      "button",
      { type: "button", class: "mpt-button", title: hint, onclick: () => wantText(text) },
      text,
    ),
  );
  const node = element(
    "div",
    { class: "mpt-bar" },
    element("label", { class: "mpt-label" }, "Number", input),
    element(
      "div",
      { class: "mpt-buttons", role: "group", "aria-label": "Numbers to try" },
      ...examples,
    ),
  );
  // What cannot be read stays in view, with its complaint, until the number changes: a drawing asked
  // for earlier may still be on its way.
  const update = ({ text }) => {
    if (unread.now()) return;
    if (input.value !== text) input.value = text;
    input.setAttribute("aria-invalid", "false");
  };
  const markUnreadable = (complaint) => {
    unread.say(complaint);
    input.setAttribute("aria-invalid", "true");
  };
  return { node, update, markUnreadable };
}

// -- the selected format, close up ------------------------------------------------------------------

function closeUp() {
  const heading = element("div", { class: "mpt-heading" });
  const formula = element("div", { class: "mpt-formula" });
  const facts = element("dl", { class: "mpt-facts" });
  const line = numberLine();
  const node = element("div", { class: "mpt-closeup" }, heading, formula, line.node, facts);
  const update = (view) => {
    const { selected } = view;
    const kind = { inf: "infinity", nan: "NaN", none: "no code" }[selected.kind] ?? selected.kind;
    heading.replaceChildren(title(selected.fmt), element("span", { class: "mpt-kind" }, kind));
    formula.replaceChildren(...formulaOf(selected));
    facts.replaceChildren(
      ...factsOf(view).flatMap(([term, fact]) => [
        element("div", {}, element("dt", {}, term), element("dd", {}, fact)),
      ]),
    );
    line.update(view);
  };
  return { node, update };
}

function formulaOf({
  fmt,
  kind,
  bits,
  sign,
  exponentField,
  mantissaField,
  exponent,
  significand,
  value,
}) {
  const chip = (field, content) =>
    element("span", { class: `mpt-chip mpt-one mpt-${field}` }, content);
  const raised = (...content) => element("sup", {}, ...content);
  if (kind === "none") return ["There is no code for it."];
  const exponentBits = bits.slice(1, 1 + fmt.exponent_bits);
  const mantissaBits = bits.slice(1 + fmt.exponent_bits);
  if (kind === "inf" || kind === "nan") {
    const meaning = {
      inf: "exponent all ones, mantissa 0: ",
      nan: "exponent all ones, mantissa not 0: ",
    }[kind];
    const all = fmt.special === "nan" ? "all ones: " : meaning;
    return [
      chip("sign", sign),
      chip("exponent", exponentBits),
      chip("mantissa", mantissaBits),
      ` ${all}${shortNumber(value)}`,
    ];
  }
  const power =
    exponentField > 0 ? [chip("exponent", exponentField), ` − ${fmt.bias}`] : [`1 − ${fmt.bias}`];
  const exact = exactNumber(value);
  const step =
    kind === "zero"
      ? []
      : [` = ${sign ? "−" : ""}${exactNumber(significand)} × 2`, raised(signed(exponent))];
  return [
    element(
      "span",
      {},
      "(−1)",
      raised(chip("sign", sign)),
      " × 2",
      raised(...power),
      exponentField > 0 ? " × 1." : " × 0.",
      chip("mantissa", mantissaBits),
      element("sub", {}, "2"),
    ),
    element("span", {}, ...step),
    element("span", {}, ` = ${exact}`),
  ];
}

function factsOf({ wanted, selected: { fmt, code, value, below, above, ulp } }) {
  if (code === null) return [];
  const digits = Math.ceil(formatLimits(fmt).bits / 4);
  const facts = [
    ["code", `0x${code.toString(16).toUpperCase().padStart(digits, "0")}`],
    ["next below", neighbourText(below)],
    ["next above", neighbourText(above)],
  ];
  if (Number.isFinite(ulp)) {
    const power = element("sup", {}, signed(binade(ulp)));
    facts.push(["1 ulp", element("span", {}, "2", power, ` = ${shortNumber(ulp, 3)}`)]);
  }
  const error = Math.abs(value - wanted) / ulp;
  if (Number.isFinite(error))
    facts.push(["error", error === 0 ? "none" : `${shortNumber(error, 3)} ulp`]);
  return facts;
}

function neighbourText(x) {
  return Number.isNaN(x) ? "none" : shortNumber(x);
}

// -- all together -----------------------------------------------------------------------------------

function render({ model, el }) {
  const { root, leave } = createStage(el, "Bit explorer", "mpt-bits");
  const readout = createReadout();
  const state = () =>
    Object.fromEntries(["text", "fmt", "code", "rows"].map((name) => [name, model.get(name)]));
  // What is the case now. Parts act on this, not on what they last drew: several keys may arrive
  // between two frames.
  const now = () => explore(state());
  const actions = {
    now,
    wantText: (text) => {
      const { fmt, rows } = state();
      try {
        const number = readNumber(text);
        const selected = rows.find((row) => row.name === fmt);
        unread.clear();
        changeModel(model, { text, code: encode(number, selected) ?? NO_CODE });
        redraw.ask();
      } catch (error) {
        field.markUnreadable(error.message);
        readout.say(error.message);
      }
    },
    wantNumber: (number) => actions.wantText(printNumber(number)),
    choose: (fmt) => {
      const { wanted } = now();
      unread.clear();
      changeModel(model, { fmt: fmt.name, code: encode(wanted, fmt) ?? NO_CODE });
    },
    hold: (fmt, code) => {
      unread.clear();
      changeModel(model, { fmt: fmt.name, code, text: printNumber(decode(code, fmt).value) });
    },
  };
  const unread = createComplaint(model, ["text"]);
  const field = numberField(actions, model.get("examples"), unread);
  const parts = [field, numberSlider(actions), bitTable(model.get("rows"), actions), closeUp()];
  const help = element(
    "p",
    { class: "mpt-help" },
    "Keys. Bits: arrows move, 0 or 1 sets, Space flips. Slider: ← → go to the next number the ",
    "format holds, Page Up and Page Down double and halve.",
  );
  root.append(field.node, readout.node, ...parts.slice(1).map((part) => part.node), help);
  const redraw = redrawOn(model, ["text", "fmt", "code"], () => {
    const view = now();
    for (const part of parts) part.update(view);
    readout.say(unread.now() || view.problem || sentence(view));
  });
  return () => {
    redraw.stop();
    leave();
  };
}
