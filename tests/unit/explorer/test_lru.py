"""The cache of what the explorer computed: the values that were used last stay."""

from jarilab.explorer.subject import LRU, MAX_CACHED


def test_a_value_is_made_once_and_the_one_unused_longest_goes_first():
    made: list[int] = []

    def value(key: int) -> int:
        made.append(key)
        return -key

    cache: LRU[int] = LRU()
    for key in range(MAX_CACHED):
        assert cache.get_or_make(key, lambda key=key: value(key)) == -key
    assert cache.get_or_make(0, lambda: value(0)) == 0
    assert made == list(range(MAX_CACHED))
    cache.get_or_make(99, lambda: value(99))
    assert len(cache) == MAX_CACHED
    assert 0 in cache, "it was used after 1 was"
    assert 1 not in cache
    cache.get_or_make(1, lambda: value(1))
    assert made[-2:] == [99, 1]
