"""Figures as people read them."""


def seconds(value: float) -> str:
    """A length of time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size:
            return f"{digits(value / size)} {unit}"
    return f"{value * 1e9:.0f} ns" if abs(value) >= 0.5e-9 else "0"


def size(value: float) -> str:
    """Bytes with three digits and their unit."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale:
            return f"{digits(value / scale)} {unit}"
    return f"{value:.0f} B"


def digits(value: float) -> str:
    """The value in three digits."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def part(value: float, whole: float) -> str:
    """A share in percent."""
    return f"{value / whole if whole else 0:.0%}"
