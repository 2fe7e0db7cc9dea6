"""Every rule has a loop in which it speaks, and one like it in which it is silent."""

import contextlib
import functools
import io
import warnings

import pytest

import mptutor
from mptutor.audit import RULES
from tests.audit import test_rules
from tests.audit.loops import dtype, gain, order, ranges  # noqa: F401  (they register themselves)
from tests.audit.loops.examples import FIRING, SILENT


def look_at(loop, options):
    return _audited(loop, tuple(options.items()))


@functools.cache
def _audited(loop, options):
    """Run a loop, once for all its tests. It may well raise: many faults do."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        a = mptutor.audit(**dict(options))
        with contextlib.suppress(Exception), a:
            loop()
    assert not [text for text in a.trace.unseen if "Error" in text], "an observer failed"
    return a


@pytest.mark.parametrize(
    ("loop", "rule", "options"), FIRING, ids=lambda x: getattr(x, "__name__", None)
)
def test_the_fault_comes_first(loop, rule, options):
    a = look_at(loop, options)
    assert [f.rule for f in a.findings[:1]] == [rule], str(a)
    assert a.findings[0].site.file.startswith(str(loop.__code__.co_filename.rpartition("/")[0]))


@pytest.mark.parametrize(
    ("loop", "rule", "options"), SILENT, ids=lambda x: getattr(x, "__name__", None)
)
def test_near_the_fault_it_is_silent(loop, rule, options):
    a = look_at(loop, options)
    assert rule not in [f.rule for f in a.findings], str(a)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_both_kinds_of_example(rule):
    firing = {name for _, name, _ in FIRING} | test_rules.FIRING
    silent = {name for _, name, _ in SILENT} | test_rules.SILENT
    assert rule in firing and rule in silent
