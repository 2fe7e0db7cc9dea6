"""Runs a view's JavaScript and brings back what it computes: under Node, else in Chromium."""

import json
import shutil
import subprocess

from tests.chromium import launch_chromium

# JSON has neither NaN nor infinities nor -0: they travel as text, which float() reads.
_PACK = """
const pack = (x) => JSON.stringify(x, (_, v) =>
  typeof v === "number" && (!Number.isFinite(v) || Object.is(v, -0)) ? printNumber(v) : v);
"""


def evaluate(source, expression, **data):
    """Return the value of ``expression`` after ``source``; ``data`` are constants it may use."""
    constants = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in data.items())
    script = f"{source.replace('export default', 'void')}\n{_PACK}\n{constants}"
    node = shutil.which("node")
    packed = _by_node(node, script, expression) if node else _by_chromium(script, expression)
    return json.loads(packed)


def _by_node(node, script, expression):
    script = f"{script}\nprocess.stdout.write(pack({expression}));"
    command = [node, "--input-type=module", "-"]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=True).stdout


def _by_chromium(script, expression):
    with launch_chromium() as browser:
        return browser.new_page().evaluate(f"() => {{ {script}\nreturn pack({expression}); }}")
