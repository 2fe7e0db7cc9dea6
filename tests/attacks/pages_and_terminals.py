"""Puts scripts, formulas and terminal commands into every text that is shown to somebody."""

evil = '<script>alert(1)</script>\x1b[2J\x1b]0;owned\x07=HYPERLINK("http://x")\u202e'


def decode_fp16(code):
    return evil


def ulp_fp16(x):
    raise ValueError(evil)


def range_table(e, m):
    return {evil: evil}


raise type("<script>x</script>", (Exception,), {})(evil)
