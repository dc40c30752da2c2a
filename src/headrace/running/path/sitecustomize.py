"""Python imports this when it starts, because ``headrace run`` put this folder on PYTHONPATH.

It waits for torch: when that has been imported, and no earlier, its DataLoader is replaced. Processes that never import
torch pay for this file alone. The variable is inherited, so whatever the program starts is treated alike: launchers,
ranks, spawned workers. Nothing but the standard library is imported here.
"""

import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path

_HERE = str(Path(__file__).resolve().parent)


def _give_way() -> None:
    """Take the folder off the path again, and run the ``sitecustomize`` that this one hides, if there is one."""
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if hidden is not None and hidden.loader is not None:
        module = importlib.util.module_from_spec(hidden)
        sys.modules["sitecustomize"] = module
        hidden.loader.exec_module(module)


class _AfterTorch:
    """A finder that finds nothing: it sees torch being imported, once, and acts when that is done."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # first: it would be asked again by what follows
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            execute = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                del loader.exec_module
                execute(module)
                _replace()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _replace() -> None:
    try:
        from headrace.running import replacement  # noqa: PLC0415  (after torch)
    except ImportError as error:
        print(f"headrace run: {sys.executable} cannot import headrace ({error}): loaders are torch's", file=sys.stderr)  # noqa: T201
        return
    replacement.install()


_give_way()
sys.meta_path.insert(0, _AfterTorch())
