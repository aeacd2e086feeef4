"""Options as flags: `--lr NUMBER its highest value (0.015)`, made of the definitions that Python goes by."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jarilab.core.options import Option

SWITCH = {"action": "store_const", "const": True}
"""What argparse is told of a yes or no that is no unless it is asked for."""


def flag_of(name: str) -> str:
    """`batch_size` as it is typed: `--batch-size`."""
    return f"--{name.replace('_', '-')}"


def add_flag(
    container: argparse._ActionsContainer,
    flag: str,
    dest: str,
    option: Option,
    *,
    repeat: bool = False,
    both: bool = False,
) -> None:
    """Make an option a flag, which is None where it is not given.

    repeat: a list is written by giving the flag again, since words behind it may be others; otherwise by words behind.
    both: a yes or no has a flag for no, too: its default differs from task to task.
    """
    shape = _shape(option, repeat, both)
    text = f"{option.meaning} ({_default(option)})".strip()
    if shape is SWITCH:
        text = option.meaning
    container.add_argument(flag, dest=dest, default=None, help=text.replace("%", "%%"), **shape)


def _shape(option: Option, repeat: bool, both: bool) -> dict[str, Any]:
    """What argparse is told of the values."""
    if option.annotation is bool:
        return {"action": argparse.BooleanOptionalAction} if both else SWITCH
    if option.several:
        if repeat:
            return {"action": "append", "metavar": "TEXT"}
        return {"action": "extend", "nargs": "+", "metavar": "FILE"}
    words = ",".join(map(str, option.choices))
    return {"metavar": f"{{{words}}}" if words else option.kind.upper()}


def _default(option: Option) -> str:
    if isinstance(option.default, bool):
        return "yes" if option.default else "no"
    return "not set" if option.default in (None, (), "") else str(option.default)
