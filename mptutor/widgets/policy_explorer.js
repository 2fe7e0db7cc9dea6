// The policy explorer's view: policy_chain.js says what is shown, this draws it and lets one change it.
// Each part is {node, update}: it makes its elements once and then only changes them.

let explorers = 0;

const DEVICE_NAMES = { cuda: "CUDA", cpu: "CPU" };

// A dtype or a rule in a box; 16 bits are filled, FP32 is outlined, all the rest is plain.
function chip(text, prefix = "") {
  const kind = {
    "16-bit": "low",
    float16: "low",
    bfloat16: "bf16",
    FP32: "wide",
    float32: "wide",
    raises: "raises",
  }[text];
  return element(
    "span",
    { class: `mpt-dtype mpt-dtype-${kind ?? "plain"}` },
    ...(prefix ? [element("span", { class: "mpt-device" }, prefix)] : []),
    text || "–",
  );
}

// -- finding an op ------------------------------------------------------------------------------------

function opFinder(now, choose) {
  explorers += 1;
  const id = `mpt-ops-${explorers}-${Math.random().toString(36).slice(2)}`;
  const { tables } = now();
  const options = new Map(
    tables.ops.map((row, i) => [row.op, opOption(row, `${id}-${i}`, choose)]),
  );
  const list = element(
    "div",
    { class: "mpt-ops", id, role: "listbox", "aria-label": "Ops" },
    ...options.values(),
  );
  const input = control("input", {
    type: "text",
    class: "mpt-input mpt-search",
    role: "combobox",
    "aria-label": "Find an op",
    placeholder: "Find an op",
    "aria-expanded": "true",
    "aria-controls": id,
    "aria-autocomplete": "list",
    spellcheck: "false",
    autocomplete: "off",
    oninput: () => choose(searched(now(), input.value)),
    onkeydown: (event) => {
      const change = changeByKey(event.key, now());
      if (!change || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      // At once: the next key may arrive before the next frame, and is added to what stands here.
      if ("search" in change) input.value = change.search;
      choose(change);
    },
  });
  const found = element("span", { class: "mpt-found" });
  const head = element(
    "div",
    { class: "mpt-op mpt-ops-head", "aria-hidden": "true" },
    element("span", {}, "op"),
    element("span", {}, "CUDA"),
    element("span", {}, "CPU"),
  );
  const node = element(
    "div",
    { class: "mpt-finder" },
    element("div", { class: "mpt-finder-bar" }, input, found),
    head,
    list,
  );
  let shown = "";
  const update = ({ matches, selected }) => {
    const { search } = now();
    if (input.value !== search) input.value = search;
    input.setAttribute("aria-invalid", String(!matches.length));
    found.textContent = `${matches.length} of ${tables.ops.length}`;
    const wanted = new Set(matches);
    for (const [op, option] of options) {
      option.hidden = !wanted.has(op);
      option.setAttribute("aria-selected", String(op === selected.op));
    }
    const option = options.get(selected.op);
    input.setAttribute("aria-activedescendant", option.id);
    const key = `${selected.op} ${search}`;
    if (shown !== key) scrollTo(list, option);
    shown = key;
  };
  return { node, update, focus: () => input.focus({ preventScroll: true }) };
}

function opOption({ op, family, rules }, id, choose) {
  return element(
    "div",
    {
      class: "mpt-op",
      id,
      role: "option",
      title: family,
      onclick: () => choose({ op }),
      ondblclick: () => choose({ op, add: op }),
    },
    element("span", { class: "mpt-op-name" }, op),
    chip(rules.cuda),
    chip(rules.cpu),
  );
}

// Within the list only, from which offsets count: the page should stand still.
function scrollTo(list, option) {
  const top = option.offsetTop;
  if (top < list.scrollTop) list.scrollTop = top;
  const below = top + option.offsetHeight - list.clientHeight;
  if (below > list.scrollTop) list.scrollTop = below;
}

// An op of just this name is looked at. Else the one looked at stays, unless the search has left it
// behind; then it is one that begins so, or the first.
function searched(state, search) {
  const { matches } = explore({ ...state, search });
  const typed = search.trim().toLowerCase();
  const op = [
    matches.find((name) => name.toLowerCase() === typed),
    matches.find((name) => name === state.op),
    matches.find((name) => name.toLowerCase().startsWith(typed)),
    matches[0],
  ].find(Boolean);
  return op ? { search, op } : { search };
}

function changeByKey(key, state) {
  const { matches } = explore(state);
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[key];
  if (step && matches.length) {
    const at = matches.indexOf(state.op);
    const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), matches.length - 1);
    return { op: matches[next] };
  }
  if (key === "Enter") return { add: state.op };
  if (key === "Escape" && state.search) return { search: "" };
  return null;
}

// -- the op looked at ---------------------------------------------------------------------------------

function opCard(now, choose) {
  const { tables } = now();
  const heading = element("div", { class: "mpt-heading" });
  const operands = [tables.dtype, "float32", "one of each"];
  const cells = operands.map(() => [element("td"), element("td")]);
  const rule = [element("td"), element("td")];
  const row = (name, [cuda, cpu]) =>
    element("tr", {}, element("th", { scope: "row" }, name), cuda, cpu);
  const table = element(
    "table",
    { class: "mpt-outcomes" },
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        element("th", { scope: "col" }, "operands"),
        element("th", { scope: "col" }, "CUDA gives"),
        element("th", { scope: "col" }, "the CPU gives"),
      ),
    ),
    element("tbody", {}, ...operands.map((name, i) => row(name, cells[i])), row("rule", rule)),
  );
  const error = element("p", { class: "mpt-error-text" });
  const add = control(
    "button",
    { type: "button", class: "mpt-button", onclick: () => choose({ add: now().op }) },
    "add to the chain (Enter)",
  );
  const node = element("div", { class: "mpt-card" }, heading, table, error, add);
  const update = ({ selected }) => {
    heading.replaceChildren(selected.op, element("span", { class: "mpt-kind" }, selected.family));
    for (const [j, device] of ["cuda", "cpu"].entries()) {
      cells.forEach((pair, i) => pair[j].replaceChildren(chip(selected[device][i])));
      rule[j].textContent = selected.rules[device];
    }
    const { cuda, cpu } = selected.errors;
    error.textContent = cuda ? `CUDA: ${cuda}` : cpu ? `CPU: ${cpu}` : "";
  };
  return { node, update };
}

// -- the chain ----------------------------------------------------------------------------------------

function chainLine(now, choose) {
  const steps = element("ol", { class: "mpt-chain", "aria-label": "The chain" });
  const { tables } = now();
  const presets = tables.presets.map(([name, ops]) =>
    control(
      "button",
      {
        type: "button",
        class: "mpt-button",
        title: ops.join(", "),
        onclick: () => choose({ chain: ops }),
      },
      name,
    ),
  );
  const clear = control(
    "button",
    { type: "button", class: "mpt-button", onclick: () => choose({ chain: [] }) },
    "clear",
  );
  const bar = element(
    "div",
    { class: "mpt-bar mpt-chain-bar" },
    element("span", { class: "mpt-label", "aria-hidden": "true" }, "Chain"),
    element(
      "div",
      { class: "mpt-buttons", role: "group", "aria-label": "Chains to look at" },
      ...presets,
      clear,
    ),
  );
  // A cross says where its op stands in the chain that was drawn; in another it would be another.
  const remove = (drawnChain, at) => {
    const { chain } = now();
    if (chain.join() === drawnChain.join()) choose({ chain: chain.filter((_, i) => i !== at) });
  };
  let drawn = "";
  const update = ({ start, steps: chain }) => {
    const { chain: ops, tables } = now();
    const wanted = JSON.stringify([start, chain, ops]);
    if (wanted === drawn) return;
    drawn = wanted;
    const known = new Set(tables.ops.map(({ op }) => op));
    const places = ops.flatMap((op, i) => (known.has(op) ? [i] : []));
    const focused = [...steps.querySelectorAll("button")].indexOf(document.activeElement);
    steps.replaceChildren(
      chainStep({ op: "start", cuda: start, cpu: start }),
      ...chain.map((step, i) => chainStep(step, () => remove(ops, places[i]), i)),
    );
    const buttons = steps.querySelectorAll("button");
    if (focused >= 0)
      (buttons[Math.min(focused, buttons.length - 1)] ?? clear).focus({ preventScroll: true });
  };
  return { node: element("div", { class: "mpt-chain-part" }, bar, steps), update };
}

function chainStep({ op, cuda, cpu }, remove, at) {
  const name = element("span", { class: "mpt-step-name" }, op);
  const cross =
    remove &&
    control(
      "button",
      {
        type: "button",
        class: "mpt-button mpt-remove",
        "aria-label": `Remove ${op}, step ${at + 1}`,
        onclick: remove,
      },
      "×",
    );
  const differs = cuda !== cpu;
  return element(
    "li",
    { class: `mpt-step${differs ? " mpt-differs" : ""}` },
    element("div", { class: "mpt-step-head" }, name, ...(cross ? [cross] : [])),
    chip(cuda, DEVICE_NAMES.cuda),
    chip(cpu, DEVICE_NAMES.cpu),
    element("span", { class: "mpt-step-note" }, differs ? "they differ" : ""),
  );
}

// -- all together -------------------------------------------------------------------------------------

function render({ model, el }) {
  const { root, leave } = createStage(el, "Policy explorer", "mpt-policy");
  const readout = createReadout();
  const names = ["search", "op", "chain", "start", "other"];
  const now = () => Object.fromEntries([...names, "tables"].map((name) => [name, model.get(name)]));
  const { tables } = now();
  const complaint = createComplaint(model, names);
  const choose = ({ add, ...changes }) => {
    const { chain } = now();
    const isFull = add && chain.length >= tables.longest;
    complaint.clear();
    if (isFull)
      complaint.say(`A chain of ${tables.longest} ops is as long as it gets. Remove one first.`);
    else changeModel(model, add ? { ...changes, chain: [...chain, add] } : changes);
    redraw.ask();
  };
  const start = choice(
    "The chain starts with",
    "start",
    [
      ["float32", "float32"],
      ["16-bit", tables.dtype],
    ],
    choose,
  );
  const other = choice(
    "Other operands are",
    "other",
    [
      ["same", "like the tensor"],
      ["float32", "float32"],
    ],
    choose,
  );
  const parts = [opFinder(now, choose), opCard(now, choose), chainLine(now, choose)];
  const [finder, card, line] = parts;
  const help = element(
    "p",
    { class: "mpt-help" },
    "Type to search; ↑ ↓ go through what is found, Enter adds it to the chain. Both tables were observed under ",
    `autocast to ${tables.dtype} in torch ${tables.torch}; for CUDA no GPU was needed.`,
  );
  root.append(
    readout.node,
    element("div", { class: "mpt-columns" }, finder.node, card.node),
    line.node,
    element("div", { class: "mpt-bar" }, start.node, other.node),
    help,
  );
  const redraw = redrawOn(model, names, () => {
    const view = explore(now());
    for (const part of parts) part.update(view);
    for (const radio of [start, other]) radio.update(now());
    readout.say(complaint.now() || sentence(view, tables.does));
  });
  return () => {
    redraw.stop();
    leave();
  };
}
