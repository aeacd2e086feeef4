"""Laws of whole models as pytest tests.

    from jarilab.laws.testing import model_laws

    test_mine = model_laws(lambda: MyModel(vocab_size=99))      # a test for each law

`check_model` returns the same as a list.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

from jarilab.core.errors import import_optional
from jarilab.laws import run_law
from jarilab.laws.whole_laws import LAWS
from jarilab.laws.whole_laws import check_model as check_model
from jarilab.laws.whole_model import WholeModel


def model_laws(make: Callable[[], nn.Module], **options: Any) -> Callable[[str], None]:
    """A pytest test with a case for each law of whole models.

    make: builds the model, once for all cases. options: as for `check_model`. A law that does not apply is skipped,
    with the reason.
    """
    pytest: Any = import_optional("pytest", "dev")
    subject = cache(lambda: WholeModel(make(), **options))

    @pytest.mark.parametrize("law", LAWS)
    def test(law: str) -> None:
        outcome = run_law(law, LAWS[law], subject())
        if outcome.verdict == "skipped":
            pytest.skip(outcome.detail)
        assert outcome.verdict == "holds", f"{law}: {outcome.detail}"

    return test
