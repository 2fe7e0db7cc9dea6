"""What the views share, in a browser: when it is drawn, and when the kernel is told."""

import pytest

from mptutor.widgets.base import javascript

pytestmark = pytest.mark.browser


def run_beside(open_page, function: str, body: str = ""):
    """Return what a function returns on a page that has the views' shared script."""
    page = open_page(offline=True)
    page.set_content(f"<!doctype html><title>Nothing</title>{body}")
    source = javascript().replace("export default { render };", "")
    return page.evaluate(f"() => {{ {source}\nreturn ({function})(); }}")


#: A model that notes, in order, what happens to it.
NOTE = """async () => {
  const happened = [];
  const state = modelWithoutKernel({ x: 0, y: 0 });
  const model = { ...state, save_changes: () => happened.push(`saved ${state.get("x")}`) };
  const drawing = redrawOn(model, ["x", "y"], () => happened.push(`drawn ${state.get("x")}`));
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)));
  for (const x of [1, 2, 3]) changeModel(model, { x, y: x });
  happened.push("asked");
  await frame();
  changeModel(model, { x: 4 });
  await frame();
  drawing.stop();
  return happened;
}"""


def test_changes_are_drawn_once_a_frame_and_then_the_kernel_is_told(open_page):
    happened = run_beside(open_page, NOTE)
    assert happened == ["drawn 0", "asked", "drawn 3", "saved 3", "drawn 4", "saved 4"]


#: The kernel's echo of a change that is one frame old comes just after the learner's next change.
ECHO = """async () => {
  const told = [];
  const state = modelWithoutKernel({ x: 0, y: 0 });
  const model = { ...state, save_changes: () => told.push([state.get("x"), state.get("y")]) };
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)));
  changeModel(model, { x: 1, y: 1 });
  await frame();
  changeModel(model, { x: 2 });
  model.set("x", 1);
  changeModel(model, { x: model.get("x") + 1, y: 3 });
  model.set("y", 1);
  await frame();
  model.set("x", 7); // what the kernel says later counts again
  return { told, now: [model.get("x"), model.get("y")] };
}"""


def test_an_echo_of_an_earlier_change_does_not_undo_the_next(open_page):
    seen = run_beside(open_page, ECHO)
    assert seen == {"told": [[1, 1], [3, 3]], "now": [7, 3]}


#: Two views of one model, each with a handle of its own, as anywidget gives them.
TWO_VIEWS = """async () => {
  const model = modelWithoutKernel({ x: 0 });
  const [one, other] = [{ ...model }, { ...model }];
  changeModel(one, { x: 1 });
  changeModel(other, { x: 2 });
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)));
  model.set("x", 3);
  return model.get("x");
}"""


def test_two_views_that_change_the_same_trait_come_to_an_end(open_page):
    assert run_beside(open_page, TWO_VIEWS) == 3


COMPLAINT = """() => {
  const model = modelWithoutKernel({ x: 0, y: 0 });
  const complaint = createComplaint(model, ["x"]);
  const heard = [complaint.now()];
  complaint.say("no");
  model.set("y", 1);
  heard.push(complaint.now());
  model.set("x", 1);
  heard.push(complaint.now());
  model.set("x", 0);
  heard.push(complaint.now());
  complaint.say("no");
  complaint.clear();
  return [...heard, complaint.now()];
}"""


def test_a_complaint_stands_until_something_changes(open_page):
    heard = run_beside(open_page, COMPLAINT)
    assert heard == ["", "no", "", "", ""]


TEXT = """() => {
  const node = document.querySelector("p");
  const before = node.firstChild;
  setText(node, "one");
  const kept = node.firstChild === before;
  setText(node, "two");
  return [kept, node.textContent];
}"""


def test_the_same_text_is_not_written_anew(open_page):
    assert run_beside(open_page, TEXT, "<p>one</p>") == [True, "two"]
