// Keeps JupyterLab's shortcuts away from the buttons beside it. A notebook binds a, b, x, d d and
// others on whatever has the focus, unless the element itself says otherwise, and plain ipywidgets
// offer no way to have it said.

function render({ el }) {
  let asked = 0;
  const quieten = () => {
    const buttons = el.closest(".mpt-race")?.querySelectorAll("button") ?? [];
    for (const button of buttons) button.dataset.lmSuppressShortcuts = "true";
    // The views beside this one may be made after it.
    if (!buttons.length) asked = requestAnimationFrame(quieten);
  };
  quieten();
  return () => cancelAnimationFrame(asked);
}

export default { render };
