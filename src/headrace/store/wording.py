"""Texts from files, as they may be shown: in one line, of a length that is read, and without a terminal's commands."""

LONGEST = 400


def one_line(text: str, longest: int = LONGEST) -> str:
    """The text with a space for whatever cannot be printed; dots for what is too much."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * longest])
    short = " ".join(plain.split()) if plain != text else plain
    return short if len(short) <= longest else f"{short[: longest - 4]} ..."


def quoted(name: str) -> str:
    """A name as SQL and CQL take it, case and all."""
    return '"' + name.replace('"', '""') + '"'


def is_text(text: str) -> bool:
    """True for a text that can be written down: Python's text for a name of a file that is not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
