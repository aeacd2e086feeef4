"""What the options of models may be: the same limits wherever an option of this name stands."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Width = Annotated[int, Ge(1), Le(65536)]
"""D."""

Heads = Annotated[int, Ge(1), Le(1024)]
"""H."""

Layers = Annotated[int, Ge(1), Le(1000)]
"""Of one stack."""

Hidden = Annotated[int, Ge(1), Le(262144)]
"""F of the feed-forward."""

Epsilon = Annotated[float, Gt(0), Le(1)]
"""What a norm adds to a variance."""

Share = Annotated[float, Ge(0), Lt(1)]
"""Of what is dropped."""
