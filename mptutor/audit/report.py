"""Findings for people: in a terminal, in a notebook, and as JSON for programs.

A finding takes a few lines: its level and its cause in one sentence, the line of code, what was
seen with the numbers of this run, what it does, the repair as code and the lesson. Notes are
folded to a line each: they are true, but nothing has to be done.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from dataclasses import asdict

from mptutor.audit.rules import LEVELS, NOTE, Finding
from mptutor.audit.trace import Trace

_COLOURS = {"wrong": "#b3261e", "suspect": "#8a5a00", "note": "#4a5568"}


def text_report(trace: Trace, findings: list[Finding]) -> str:
    """Lay the findings out for a terminal."""
    parts = [_headline(trace, findings)]
    parts += [_text_finding(f) for f in findings if f.level != NOTE]
    notes = [f for f in findings if f.level == NOTE]
    parts += ["\n".join(_text_note(f) for f in notes)] if notes else []
    if trace.unseen:
        parts.append("\n".join(["not looked at:", *(f"  {line}" for line in trace.unseen)]))
    return "\n\n".join(parts)


def _headline(trace: Trace, findings: list[Finding]) -> str:
    steps = f"{trace.steps} step" + "s" * (trace.steps != 1)
    if not findings:
        return f"audit: {steps}, {len(trace.events)} events, nothing found"
    counts = Counter(f.level for f in findings)
    found = ", ".join(f"{counts[level]} {level}" for level in LEVELS if counts[level])
    return f"audit: {steps}, {len(trace.events)} events: {found}"


def _text_finding(f: Finding) -> str:
    return "\n".join(
        [
            f"{f.level.upper()}  {f.cause}  [{f.rule}]",
            f"  where   {f.site}  {f.site.code}".rstrip(),
            f"  seen    {f.seen} ({_how_often(f)})",
            f"  why     {f.why}",
            *_indented(f.repair),
            f"  lesson  {f.lesson:02d}",
        ]
    )


def _indented(repair: str) -> list[str]:
    first, *rest = repair.split("\n")
    return [f"  repair  {first}", *(f"          {line}" for line in rest)]


def _text_note(f: Finding) -> str:
    return f"note  {f.cause}  {f.site}: {f.seen} [{f.rule}, lesson {f.lesson:02d}]"


def _how_often(f: Finding) -> str:
    if f.times == 1:
        return f"in step {f.first_step}"
    return f"{f.times} times, first in step {f.first_step}"


def html_report(trace: Trace, findings: list[Finding]) -> str:
    """Lay the findings out for a notebook, in the theme's own colours and without scripts."""
    notes = [f for f in findings if f.level == NOTE]
    parts = [f"<p><b>{html.escape(_headline(trace, findings))}</b></p>"]
    parts += [_html_finding(f) for f in findings if f.level != NOTE]
    if notes:
        items = "".join(f"<li>{html.escape(_text_note(f)[6:])}</li>" for f in notes)
        summary = f"{len(notes)} note" + "s" * (len(notes) != 1)
        parts.append(f"<details><summary>{summary}</summary><ul>{items}</ul></details>")
    if trace.unseen:
        items = "".join(f"<li>{html.escape(line)}</li>" for line in trace.unseen)
        parts.append(f"<p>Not looked at:</p><ul>{items}</ul>")
    return f'<div class="mptutor-audit">{"".join(parts)}</div>'


def _html_finding(f: Finding) -> str:
    rows = [
        ("where", f"<b>{html.escape(str(f.site))}</b> <code>{html.escape(f.site.code)}</code>"),
        ("seen", f"{html.escape(f.seen)} ({_how_often(f)})"),
        ("why", html.escape(f.why)),
        ("repair", f"<pre style='margin:0'>{html.escape(f.repair)}</pre>"),
        ("lesson", f"{f.lesson:02d}"),
    ]
    cells = "".join(
        f"<tr><th scope='row' style='text-align:left;vertical-align:top'>{name}</th>"
        f"<td style='text-align:left'>{value}</td></tr>"
        for name, value in rows
    )
    colour = _COLOURS[f.level]
    return (
        f"<div style='border-left:4px solid {colour};padding-left:8px;margin:8px 0'>"
        f"<b>{f.level}</b>: {html.escape(f.cause)} <code>{f.rule}</code>"
        f"<table>{cells}</table></div>"
    )


def json_report(trace: Trace, findings: list[Finding]) -> str:
    """Return findings, what was not looked at, and the trace, as one JSON object."""
    stored = json.loads(trace.to_json())
    listed = [{**asdict(f), "site": f.site._asdict()} for f in findings]
    return json.dumps(
        {"steps": trace.steps, "findings": listed, "unseen": trace.unseen, "trace": stored},
        indent=1,
        allow_nan=False,
    )
