// The loop as code: each line with what it left behind, and buttons that change the present call.

const CHANGE_BUTTONS = [
  ["earlier", "↑ earlier", "Move the call one line up"],
  ["later", "↓ later", "Move the call one line down"],
  ["twice", "twice", "Call it a second time"],
  ["out", "leave out", "Leave the call out"],
];

const ONE_CHANGE =
  "One call at a time: put the loop back in the right order, then change another one.";

// `change` is called with what a button stands for, `goTo` with a line that was clicked.
function codePane(change, goTo, walk) {
  const lines = element("ol", { class: "mpt-lines" });
  const buttons = CHANGE_BUTTONS.map(([name, label, title]) => {
    const attributes = { type: "button", class: "mpt-button", title, onclick: () => change(name) };
    return [name, control("button", attributes, label)];
  });
  const reset = control(
    "button",
    { type: "button", class: "mpt-button", onclick: () => change("right") },
    "right order",
  );
  const bar = element(
    "div",
    { class: "mpt-bar mpt-changes" },
    element("span", { class: "mpt-label" }, "Change the call at ▶"),
    element(
      "div",
      { class: "mpt-buttons", role: "group", "aria-label": "Change the present call" },
      ...buttons.map(([, button]) => button),
      reset,
    ),
  );
  const node = element("div", { class: "mpt-code" }, lines, walk, bar);
  const update = (view, recording) => {
    lines.replaceChildren(...codeLines(view, goTo));
    for (const [name, button] of buttons)
      button.setAttribute("aria-disabled", String(!changed(view, name, recording)));
  };
  return { node, update };
}

function codeLines(view, goTo) {
  const { loop, now } = view;
  const rows = [codeRow("for x, y in batches:", "", {})];
  let inAutocast = false;
  loop.calls.forEach((call, line) => {
    if (call.autocast && !inAutocast)
      rows.push(codeRow("    with torch.autocast(device, torch.float16):", "", {}));
    inAutocast = call.autocast;
    const attributes = {
      class: line === now.line ? "mpt-now" : null,
      "aria-current": line === now.line ? "step" : null,
      onclick: () => goTo(line),
    };
    rows.push(
      codeRow(
        `${call.autocast ? "        " : "    "}${call.code}`,
        leftBehind(view, line),
        attributes,
      ),
    );
  });
  if (now.event === "raised") rows.push(element("li", { class: "mpt-raised" }, view.error));
  return rows;
}

function codeRow(code, left, attributes) {
  return element(
    "li",
    attributes,
    element("code", {}, code),
    element("span", { class: "mpt-left-behind" }, left),
  );
}

// What a line has left behind in the present step, up to the present stop.
function leftBehind({ stops, stop, now }, line) {
  const here = stops
    .slice(0, stop + 1)
    .filter((each) => each.step === now.step && each.line === line);
  const last = here.at(-1);
  if (!last) return "";
  if (last.event === "raised") return "✕ raises";
  return (LEFT_BEHIND[last.event === "ran" ? last.call.name : last.event] ?? normText)(last);
}

function normText({ gradients }) {
  if (!gradients) return "no gradients";
  if (gradients.nonfinite) return `‖grad‖ ${shortNumber(gradients.norm)}`;
  return `‖grad‖ ${sizeText(gradients.norm)}`;
}

const LEFT_BEHIND = {
  half: () => "FP16 weights",
  forward: ({ losses: { outputDtype, outputMax } }) =>
    `${dtypeText(outputDtype)}, max ${sizeText(outputMax)}`,
  loss: ({ losses: { lossDtype, loss } }) => `${dtypeText(lossDtype)} ${sizeText(loss)}`,
  scale: ({ losses: { scaled } }) => sizeText(scaled),
  unscale_: (stop) => `${normText(stop)}${stop.scaling.foundInf ? ", inf found" : ""}`,
  checked: ({ scaling: { foundInf } }) => (foundInf ? "inf found" : "no inf found"),
  stepped: ({ weights: { moved } }) => `weights move by ${sizeText(moved)}`,
  skipped: () => "skipped",
  update: ({ scaling: { scale } }) => `scale ${scaleText(scale)}`,
};
