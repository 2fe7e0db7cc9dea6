// Shared by every view: elements, theme, redrawing, the readout, and a model without a kernel.
// The files a view needs are put one after another into one module; see base.py.

// -- elements -------------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// An element that takes the focus. JupyterLab binds arrows, digits, Enter and letters on whatever
// has the focus in a notebook, unless the element itself, not a parent, says otherwise.
function control(tag, attributes = {}, ...children) {
  return element(tag, { "data-lm-suppress-shortcuts": "true", ...attributes }, ...children);
}

// Writing the same text anew would lay out the page anew.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// -- the stage ------------------------------------------------------------------------------------

// The root of a view, in the page's theme; `name` is the class that the view's own styles stand in.
// Call `leave` when the view goes.
function createStage(el, label, name) {
  const root = element("div", { class: `mpt ${name}`, role: "group", "aria-label": label });
  el.append(root);
  const leave = followTheme(root);
  return { root, leave };
}

function followTheme(root) {
  const apply = () => {
    root.dataset.theme = pageIsDark(root) ? "dark" : "light";
  };
  const observer = new MutationObserver(apply);
  const attributeFilter = ["class", "style", "theme", "data-theme", "data-jp-theme-light"];
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, { attributes: true, attributeFilter });
  }
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", apply);
  apply();
  return () => {
    observer.disconnect();
    system.removeEventListener("change", apply);
  };
}

// JupyterLab and its exports say so. Elsewhere the first painted background behind the view does.
function pageIsDark(root) {
  const said = document.body.dataset.jpThemeLight;
  if (said) return said === "false";
  for (let node = root.parentElement; node; node = node.parentElement) {
    const [red, green, blue, alpha = 1] = getComputedStyle(node)
      .backgroundColor.match(/[\d.]+/g)
      .map(Number);
    if (alpha > 0.5) return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
  }
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

// -- readout --------------------------------------------------------------------------------------

// A sentence that is seen at once, and read out when it has stood still for a moment: a drag would
// otherwise queue dozens of sentences in a screen reader.
function createReadout() {
  const seen = element("p", { class: "mpt-readout", "aria-hidden": "true" });
  const heard = element("p", { class: "mpt-unseen", role: "status", "aria-live": "polite" });
  let waiting = 0;
  const say = (sentence) => {
    if (seen.textContent === sentence) return;
    seen.textContent = sentence;
    clearTimeout(waiting);
    waiting = setTimeout(() => (heard.textContent = sentence), 250);
  };
  return { node: element("div", {}, seen, heard), seen, say };
}

// What could not be done: said until something is done, or one of the traits is another.
function createComplaint(model, names) {
  const traits = () => JSON.stringify(names.map((name) => model.get(name)));
  let [said, beside] = ["", ""];
  const say = (sentence) => ([said, beside] = [sentence, traits()]);
  const now = () => {
    if (said && traits() !== beside) said = "";
    return said;
  };
  return { say, now, clear: () => (said = "") };
}

// -- dragging -------------------------------------------------------------------------------------

// Calls `grab` when the pointer is pressed on the node and `move` while it is held, and so for no
// drag that began elsewhere.
function onDrag(node, grab, move = grab) {
  node.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    node.setPointerCapture(event.pointerId);
    grab(event);
  });
  node.addEventListener("pointermove", (event) => {
    if (node.hasPointerCapture(event.pointerId)) move(event);
  });
}

// -- redrawing ------------------------------------------------------------------------------------

// Calls draw now, and at most once a frame after any of the traits has changed or `ask` was called.
function redrawOn(model, names, draw) {
  let asked = 0;
  const ask = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      draw();
    });
  };
  for (const name of names) model.on(`change:${name}`, ask);
  draw();
  const stop = () => {
    cancelAnimationFrame(asked);
    for (const name of names) model.off(`change:${name}`, ask);
  };
  return { ask, stop };
}

// The learner sees a change at once; the kernel is told after the frame, of all changes together.
// Until then they stand: the kernel's echo of an earlier change may arrive and bring the old value.
const untold = new Map();
let insisting = false;

function changeModel(model, changes) {
  if (!untold.has(model)) untold.set(model, tellAfterFrame(model));
  const change = untold.get(model);
  for (const [name, value] of Object.entries(changes)) change(name, value);
}

function tellAfterFrame(model) {
  const changes = new Map();
  // Two views of a model may both have something to tell: neither answers the other's insistence.
  const insist = () => {
    if (insisting) return;
    insisting = true;
    changes.forEach((value, name) => model.set(name, value));
    insisting = false;
  };
  const tell = () => {
    untold.delete(model);
    for (const name of changes.keys()) model.off(`change:${name}`, insist);
    model.save_changes();
  };
  requestAnimationFrame(() => setTimeout(tell));
  return (name, value) => {
    if (!changes.has(name)) model.on(`change:${name}`, insist);
    changes.set(name, value);
    model.set(name, value);
  };
}

// -- without a kernel -----------------------------------------------------------------------------

function showWithoutKernel(id, state, render) {
  const place = document.getElementById(id);
  const stage = element("div");
  place.append(stage);
  render({ model: modelWithoutKernel(state), el: stage });
  place.querySelector(":scope > img").remove();
}

function modelWithoutKernel(state) {
  const listeners = new Map();
  const heard = (event) => listeners.get(event) ?? listeners.set(event, new Set()).get(event);
  return {
    get: (name) => state[name],
    set: (name, value) => {
      if (state[name] === value) return;
      state[name] = value;
      for (const listener of heard(`change:${name}`)) listener();
    },
    save_changes: () => {},
    on: (event, listener) => heard(event).add(listener),
    off: (event, listener) => heard(event).delete(listener),
  };
}
