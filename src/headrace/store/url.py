"""A store's URL, taken apart: hosts, path, options; with a form that can be shown to anybody."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from headrace.core.errors import BadStoreUrl, StoreRefused

MASK = "***"


@dataclass(frozen=True)
class StoreUrl:
    """Parts of a store's URL. ``str()`` and ``repr()`` of it hide the password; ``full`` does not."""

    scheme: str
    path: str = ""
    """Decoded, from the slash that follows the hosts."""
    hosts: tuple[tuple[str, int | None], ...] = ()
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "StoreUrl":
        """Raises ``BadStoreUrl``, whose message never repeats a password."""
        scheme, separator, rest = text.partition("://")
        if not separator or not scheme:
            shown = text.rpartition("@")[2]
            raise BadStoreUrl(
                f"{shown!r} names no store: a store's URL begins like sqlite:///, file:/// or cassandra://"
            )
        try:
            # Hosts are read here: there may be several, and Python 3.14 takes brackets at the beginning only.
            authority = re.match(r"[^/?#]*", rest).group()  # type: ignore[union-attr]  # it may be empty
            parts = urlsplit(f"{scheme}://{rest[len(authority) :]}")
        except ValueError as error:
            raise BadStoreUrl(f"{scheme}://…: {error}") from None
        if parts.fragment:
            raise BadStoreUrl(f"{scheme}://…: a store's URL has no part after '#'; write %23 for a '#' in a name")
        userinfo, _, netloc = authority.rpartition("@")
        user, colon, password = userinfo.partition(":")
        return cls(
            scheme=scheme.lower(),
            path=unquote(parts.path),
            hosts=tuple(_host(part, scheme) for part in netloc.split(",") if part),
            user=unquote(user) or None,
            password=unquote(password) if colon else None,
            options=_options(parts.query, scheme),
        )

    @property
    def full(self) -> str:
        """The whole URL, password included: for opening, never for showing."""
        return self._text(self.password)

    @cached_property  # it is asked for with every row that is read
    def redacted(self) -> str:
        """The URL with stars for the password."""
        return self._text(None if self.password is None else MASK)

    def __str__(self) -> str:
        return self.redacted

    def __repr__(self) -> str:
        return f"StoreUrl({self.redacted!r})"

    def secret(self) -> str | None:
        """The password: the URL's, or the first line of the file that ``password_file=`` names."""
        path = self.options.get("password_file")
        if path is None:
            return self.password
        try:
            return Path(path).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreRefused.at(self.redacted, f"the password file cannot be read: {error}") from None

    def only(self, known: Sequence[str]) -> None:
        """Refuses options that are not among the known ones: a misspelt option must not be ignored."""
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise BadStoreUrl.at(self.redacted, f"no option {unknown[0]!r} for {self.scheme}://; {takes}")

    def number(self, name: str, default: int, *, least: int = 1) -> int:
        text = self.options.get(name)
        if text is None:
            return default
        if not text.isdecimal() or int(text) < least:
            raise BadStoreUrl.at(self.redacted, f"{name}= takes a whole number from {least}, not {text!r}")
        return int(text)

    def _text(self, password: str | None) -> str:
        userinfo = quote(self.user or "", safe="")
        if password is not None:
            userinfo += ":" + (password if password == MASK else quote(password, safe=""))
        hosts = ",".join(_host_text(host, port) for host, port in self.hosts)
        query = urlencode(dict(self.options), safe="/:,")
        return (
            f"{self.scheme}://{userinfo}{'@' if userinfo else ''}{hosts}{quote(self.path)}{'?' if query else ''}{query}"
        )


class UrlNamed:
    """A store that is called by its URL. Stands before the kind of store it is in a class's bases."""

    _url: StoreUrl

    @property
    def name(self) -> str:
        return self._url.redacted

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _host(text: str, scheme: str) -> tuple[str, int | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        bad = not bracket or (rest and not rest.startswith(":"))
    else:
        host, _, port = text.partition(":")
        bad = False
    if bad or not host or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise BadStoreUrl(f"{scheme}://…: {text!r} is no host or host:port")
    return host, int(port) if port else None


def _host_text(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def _options(query: str, scheme: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise BadStoreUrl(f"{scheme}://…: what follows '?' is not a list of name=value joined by '&'") from None
    options: dict[str, str] = {}
    for name, value in pairs:
        if name in options:
            raise BadStoreUrl(f"{scheme}://…: option {name!r} is there twice")
        options[name] = value
    return options
