"""A writer of TensorBoard's files that never ends a training."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jarilab.core.errors import import_optional

WRITER_MODULE = "tensorboard.summary.writer.event_file_writer"


def check_is_installed() -> None:
    """Raises UserError if a library that the writer needs is missing."""
    import_optional("tensorboard", "tensorboard")
    # The writer makes images with it.
    import_optional("PIL", "tensorboard")


class EventWriter:
    """Writes into a folder, which TensorBoard then shows from `step` on. After an error it writes nothing more.

    notice: is called once, with a sentence, if the files cannot be written. writer: writes instead of a new
    `SummaryWriter`, and stays open.
    """

    def __init__(
        self, folder: Path, step: int, notice: Callable[[str], object], writer: Any = None
    ):
        from torch.utils.tensorboard import SummaryWriter

        self.folder, self.notice, self._closes = folder, notice, writer is None
        self._writer = writer
        self._exit_stack = contextlib.ExitStack()
        self._exit_stack.enter_context(_without_tracebacks())
        if writer is None:
            try:
                # TensorBoard hides what an earlier process wrote of this step and later ones.
                self._writer = SummaryWriter(str(folder), purge_step=step)
            # Any error, for the reason given in `write`.
            except Exception as error:
                self._stop(error)

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def write(self, method: str, *arguments: Any, **keywords: Any) -> None:
        """Call a method of the writer; after any error stop writing, and let the training continue."""
        if self._writer is None:
            return
        try:
            getattr(self._writer, method)(*arguments, **keywords)
        # Any error: TensorFlow may write the files, with errors of its own.
        except Exception as error:
            self._stop(error)

    def close(self) -> None:
        """Write what is buffered, and end the writer's thread."""
        self.write("close" if self._closes else "flush")
        self._exit_stack.close()

    def _stop(self, error: Exception) -> None:
        self._writer = None
        self.notice(
            f"{self.folder} cannot be written: {error}; training goes on without TensorBoard"
        )


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Print no traceback of the writer's thread inside the block: its next call raises the same error."""
    hook: Callable[[Any], object] = threading.excepthook

    def filtered(error: Any) -> None:
        if type(error.thread).__module__ != WRITER_MODULE:
            hook(error)

    threading.excepthook = filtered
    try:
        yield
    finally:
        # Another library may have set its own since.
        if threading.excepthook is filtered:
            threading.excepthook = hook
