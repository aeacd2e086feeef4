"""Laws of whole models in a person's own tests.

    from jarilab.laws.testing import model_laws

    test_mine = model_laws(lambda: MyModel(vocab_size=99))      # a test for each law, where pytest looks for tests

`check_model` gives the same as a list.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

from jarilab.core.errors import import_optional
from jarilab.laws import judge
from jarilab.laws.whole_laws import LAWS
from jarilab.laws.whole_laws import check_model as check_model
from jarilab.laws.whole_model import WholeModel


def model_laws(make: Callable[[], nn.Module], **options: Any) -> Callable[[str], None]:
    """A test for pytest with a case for each law of whole models. make: gives the model, once for all cases. options:
    as `check_model` has them. A law that does not concern the model is skipped, with the reason."""
    pytest: Any = import_optional("pytest", "dev")
    subject = cache(lambda: WholeModel(make(), **options))

    @pytest.mark.parametrize("law", LAWS)
    def test(law: str) -> None:
        outcome = judge(law, LAWS[law], subject())
        if outcome.verdict == "skipped":
            pytest.skip(outcome.detail)
        assert outcome.verdict == "holds", f"{law}: {outcome.detail}"

    return test
