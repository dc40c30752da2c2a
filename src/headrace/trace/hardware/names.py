"""Names of C and C++ functions, as tools write them and as people read them."""

import re

_KERNEL = re.compile(r"(\w+_kernel\w*)\(at::TensorIterator")
_ELEMENT = re.compile(r"\{lambda\(([a-z][\w: ]*?)[,)]")
_WRAPPED = re.compile(r"CompileTimeFunctionPointer<.*?, &[^>]*?(\w+)>")


def spellings(name: str) -> list[str]:
    """Spellings of a function's name: as given, and without its arguments."""
    address = re.fullmatch(r"(?:func|function|fun|sub)[@_]?(0x[0-9a-f]+)|.*!(0x[0-9a-f]+)", name, re.IGNORECASE)
    if address:
        return [f"function@{int(address[1] or address[2], 16):#x}"]
    return list(dict.fromkeys([name, bare(name)]))


def bare(name: str) -> str:
    """A C++ function's name without return type and arguments; any other name as it is."""
    text = name.replace("(anonymous namespace)", "{anonymous}").partition(" [clone")[0]
    depth, start = 0, 0
    for at, letter in enumerate(text):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth = max(0, depth - 1)
        elif letter == " " and depth == 0 and not text[:at].endswith("operator"):
            start = at + 1
        elif letter == "(" and depth == 0 and not text[:at].endswith("operator"):
            return text[start:at].replace("{anonymous}", "(anonymous namespace)")
    return text.replace("{anonymous}", "(anonymous namespace)")


def readable(name: str) -> str:
    """A short name for a function: torch's kernels are named by what stands deep within them."""
    kernel = _KERNEL.search(name)
    if kernel and "lambda" in name:
        element = _ELEMENT.search(name)
        return f"{kernel[1]}({element[1]})" if element and "char**" not in element[1] else kernel[1]
    wrapped = _WRAPPED.search(name)
    return f"{wrapped[1]} (dispatch)" if wrapped else bare(name)
