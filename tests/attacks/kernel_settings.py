"""Writes kernel settings through /proc and /sys."""

for path in (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sysrq-trigger",
    "/proc/self/oom_score_adj",
    "/proc/sys/vm/drop_caches",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/self/uid_map",
):
    try:
        open(path, "w").write("0")
    except OSError:
        continue
    raise RuntimeError("GAINED " + path)
