"""Judging a trace: every rule is applied, and what they saw is gathered and put in order."""

from __future__ import annotations

from mptutor.audit import (  # noqa: F401  (importing them registers the rules)
    rules_dtype,
    rules_dtype_weights,
    rules_gain,
    rules_order,
    rules_order_scaler,
    rules_order_steps,
    rules_range,
    rules_range_constants,
    rules_range_scale,
    rules_range_underflow,
)
from mptutor.audit.rules import LEVELS, RULES, Evidence, Finding, Rule, Sighting
from mptutor.audit.trace import Trace

Rank = tuple[int, int, int]


def judge(trace: Trace) -> list[Finding]:
    """Apply every rule to a trace.

    Returns
    -------
    list of Finding
        The worst first; among equals causes before consequences, then in order of appearance.
        What one rule saw at one line is one finding.
    """
    evidence = Evidence(trace)
    found: list[tuple[Rank, Finding]] = []
    for rule in RULES.values():
        lines: dict[tuple[str, int], list[tuple[Rank, Sighting]]] = {}
        for sighting in rule.look(evidence):
            site = sighting.site or sighting.event.site
            rank = _level(rule, sighting), rule.order, evidence.index(sighting.event)
            lines.setdefault((site.file, site.line), []).append((rank, sighting))
        found += [_finding(rule, sightings) for sightings in lines.values()]
    return [finding for _, finding in sorted(found, key=lambda pair: pair[0])]


def _level(rule: Rule, sighting: Sighting) -> int:
    return LEVELS.index(sighting.level or rule.level)


def _finding(rule: Rule, sightings: list[tuple[Rank, Sighting]]) -> tuple[Rank, Finding]:
    """Make one finding of what a rule saw at one line, told by its worst and first sighting."""
    rank, told = min(sightings, key=lambda pair: pair[0])
    return rank, Finding(
        rule=rule.id,
        kind=rule.kind,
        level=LEVELS[rank[0]],
        cause=rule.cause,
        why=rule.why,
        site=told.site or told.event.site,
        seen=told.seen,
        repair=rule.repair,
        lesson=rule.lesson,
        times=len(sightings),
        first_step=min(sighting.event.step for _, sighting in sightings),
    )
