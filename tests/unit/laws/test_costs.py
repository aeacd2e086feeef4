"""What an encoding costs, by times that are made up."""

import pytest

from jarilab.laws import costs


@pytest.mark.parametrize(("spec", "image"), [("alibi", False), ("fire", False), ("alibi2d", True)])
def test_the_cost_is_the_median_of_its_time_over_that_without(monkeypatch, spec, image):
    made, times = {}, iter([9.0, 9.0, 1.0, 2.0, 2.0, 5.0, 1.0, 2.1, 1.0, 100.0, 4.0, 4.0])
    for name in ("_of_text", "_of_image"):
        make = getattr(costs, name)
        monkeypatch.setattr(costs, name, lambda spec, make=make, name=name: made.setdefault((name, spec), make(spec)))
    seconds = costs._seconds

    def counted(step):
        seconds(step)
        return next(times)

    monkeypatch.setattr(costs, "_seconds", counted)
    monkeypatch.setattr(costs, "SECONDS", 0.0)
    # 2, 2.5, 2.1, 100 and 1
    assert costs.cost(spec) == pytest.approx(2.1)
    kind = "_of_image" if image else "_of_text"
    assert list(made) == [(kind, "none"), (kind, spec)]
