from __future__ import annotations

from roll_envs.recent import Recent


def test_the_values_that_were_kept_last_are_known() -> None:
    recent: Recent[str, int] = Recent(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        recent.keep(key, value)
    assert [recent.get(key) for key in "abc"] == [3, None, 4]
    recent.drop("a")
    recent.drop("nothing")
    assert recent.get("a") is None


def test_nothing_is_kept_where_none_may_be() -> None:
    recent: Recent[str, int] = Recent(0)
    recent.keep("a", 1)
    assert recent.get("a") is None
