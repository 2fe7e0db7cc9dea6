// Controls and numbers that several explorers share.

let groups = 0;

// A row of radio buttons for one trait.
function choice(label, trait, options, choose) {
  groups += 1;
  const name = `mpt-choice-${groups}-${Math.random().toString(36).slice(2)}`;
  const inputs = options.map(([value]) =>
    control("input", { type: "radio", name, value, onchange: () => choose({ [trait]: value }) }),
  );
  const labels = options.map(([, text], i) =>
    element("label", { class: "mpt-option" }, inputs[i], text),
  );
  const node = element(
    "div",
    { class: "mpt-choice", role: "radiogroup", "aria-label": label },
    element("span", { class: "mpt-label", "aria-hidden": "true" }, label),
    ...labels,
  );
  const update = (state) =>
    inputs.forEach((input) => (input.checked = input.value === state[trait]));
  return { node, update };
}

// -- numbers in sentences -------------------------------------------------------------------------

function percentText(share) {
  return `${shortNumber(100 * share, 3)} %`;
}

function count(n) {
  return String(n).replace(/\B(?=(\d{3})+$)/g, ",");
}
