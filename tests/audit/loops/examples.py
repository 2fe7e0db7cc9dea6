"""Marks loops as examples of a rule: one where it speaks up, one near it where it must not."""

FIRING, SILENT = [], []


def fires(rule, **audit_options):
    """The loop has one fault: this rule's finding should come first."""

    def mark(loop):
        FIRING.append((loop, rule, audit_options))
        return loop

    return mark


def silent(*rules, **audit_options):
    """The loop looks like the fault of these rules, and is none: they should say nothing."""

    def mark(loop):
        SILENT.extend((loop, rule, audit_options) for rule in rules)
        return loop

    return mark
