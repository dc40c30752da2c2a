"""What a user can say about a source and about what is to be stored. Values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.errors import IngestError
from headrace.store.base import Kind

FORMATS = ("jpeg", "png", "webp", "tiff", "bmp")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read.

    ``label``: the column of the labels, ``label`` or the dataset's own by default. ``label_files``: the column that has
    paths of files (masks, say) whose contents are the labels. ``key``: the column of the keys; by default a key is
    derived from the content and its place in the source. ``columns``: the metadata to keep, all by default. ``types``:
    what columns of a CSV file hold, where guessing would guess wrong. ``root``: where the paths of a manifest begin,
    its own folder by default. ``classes``: names of classes in the order of their numbers. ``payload``: the column that
    is the sample itself. ``extensions``: the files of a folder that are samples.
    """

    label: str | None = None
    label_files: str | None = None
    key: str | None = None
    columns: tuple[str, ...] | None = None
    types: Mapping[str, Kind] = field(default_factory=dict)
    root: str | None = None
    classes: tuple[str, ...] = ()
    payload: str | None = None
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Encoding:
    """How pictures are stored; without anything said, files stay what they are, byte by byte.

    ``resize``: the length of the shorter side, or width and height. ``format``: one of ``FORMATS``; the picture's own
    by default, PNG for one that has none. ``quality``: of JPEG and WebP.
    """

    resize: int | tuple[int, int] | None = None
    format: str | None = None
    quality: int = 90

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured, by name."""
        sides = () if self.resize is None else (self.resize,) if isinstance(self.resize, int) else self.resize
        if any(side < 1 for side in sides):
            raise IngestError(f"resize: a side of {min(sides)} pixels is no picture")
        if self.format is not None and self.format not in FORMATS:
            raise IngestError(f"encode: {self.format!r} is not among {', '.join(FORMATS)}")
        if not 1 <= self.quality <= 100:
            raise IngestError(f"quality: {self.quality} is not between 1 and 100")

    @property
    def changes(self) -> bool:
        """Whether pictures are read and written again."""
        return self.resize is not None or self.format is not None

    def tag(self) -> str:
        """What makes two encodings of one picture two samples."""
        return f"{self.resize}/{self.format}/{self.quality}" if self.changes else ""
