"""A user's options for a source. Values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.core.errors import IngestError
from headrace.store.base import Kind
from headrace.store.pictures import Check


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a source.

    ``label``: the column of the labels, ``label`` or the dataset's own by default. ``label_files``: the column that has
    paths of files (masks, say) whose contents are the labels. ``key``: the column of the keys; by default a key is
    derived from the content and its place in the source. ``path_column``: the column of a manifest that has the files'
    paths, by default ``path``, ``filename``, ``file``, ``image`` or the like. ``columns``: the metadata to keep, all by
    default. ``types``: what columns of a CSV file hold, where guessing would guess wrong. ``root``: where paths of a
    manifest begin, its own folder by default. ``classes``: names of classes in the order of their numbers. ``payload``:
    the column that is the sample itself. ``extensions``: the files of a folder that are samples. ``check``: how closely
    pictures are looked at. ``allow_outside``: whether the paths of a manifest may lead out of its folder, or ``root``.
    """

    label: str | None = None
    label_files: str | None = None
    key: str | None = None
    path_column: str | None = None
    columns: tuple[str, ...] | None = None
    types: Mapping[str, Kind] = field(default_factory=dict)
    root: str | None = None
    classes: tuple[str, ...] = ()
    payload: str | None = None
    extensions: tuple[str, ...] = ()
    check: Check = Check.STRUCTURE
    allow_outside: bool = False

    def refuse(self, names: Sequence[str], source: str) -> None:
        """Raises ``IngestError`` where one of these was said, which has no meaning for such a source."""
        for name in names:
            if getattr(self, name):
                raise IngestError(f"{name.replace('_', '-')} is not for {source}")
