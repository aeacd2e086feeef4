"""Numbers as pages print them."""

from collections.abc import Iterator
from typing import Any

import pytest

from jarilab.pages.kit.page import bundle


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page()
    opened.add_script_tag(content=f"{bundle('jarilab.pages.kit', 'kit/numbers.js')}\nwindow.numbers = kit_numbers$;")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (-0.41249, "−0.412"),
        (99.96, "100"),
        (7, "7"),
        (999.4, "999"),
        (999.6, "1000"),
        (-999.6, "−1000"),
        (1234.5, "1235"),
        (9999.4, "9999"),
        (9999.6, "1.00·10⁴"),
        (0.00099951, "1.00·10⁻³"),
        (1.234e-9, "1.23·10⁻⁹"),
    ],
)
def test_a_number_has_three_digits_or_is_whole_to_ten_thousand(page: Any, value: float | None, text: str) -> None:
    assert page.evaluate("value => numbers.number(value)", value) == text
