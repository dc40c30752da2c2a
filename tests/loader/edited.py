"""A store behind a network whose rows say which version of it they are of: a file says which that is now."""

from headrace.store.base import Row
from headrace.store.catalogues.provenance import Provenance
from tests.engine.remote import RemoteNumbers, _Session

SAMPLES = 24


def payload(index, version):
    return f"{index} {version} ".encode() + b"x" * version


class Edited(RemoteNumbers):
    """A store behind a network whose rows say which version of it they are of."""

    def __init__(self, path):
        super().__init__(SAMPLES)
        self.path = path

    def provenance(self):
        return Provenance("edited", self.path.read_text())

    async def connect(self):
        return EditedSession(self)


class EditedSession(_Session):
    async def get(self, key):
        version = int(self.store.path.read_text())
        return Row(key, payload(int(key), version), version)


class Watched(Edited):
    """One whose connections say in which state it is."""

    async def connect(self):
        return WatchedEdits(self)


class WatchedEdits(EditedSession):
    async def revision(self):
        return self.store.path.read_text()
