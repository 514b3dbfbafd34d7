"""The cache of objects: the newest version wins, what is gone goes, a watch that stays silent is noticed."""

from typing import Any

from docgrid_operator.kinds import DEPLOYMENT, POD, POOL_LABEL, Key, Object
from docgrid_operator.observed import Observed


def obj(version: int, *, name: str = "a", uid: str = "1", **fields: Any) -> Object:
    metadata = {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, **fields}


def pod(version: int, *, name: str, pool: str) -> Object:
    labelled = obj(version, name=name)
    labelled["metadata"]["labels"] = {POOL_LABEL: pool}
    return labelled


def test_the_newest_version_wins_in_whatever_order_they_come() -> None:
    observed = Observed()
    observed.written(DEPLOYMENT, obj(3, spec="ours"))
    observed.tell(DEPLOYMENT, obj(2, spec="late"))
    found = observed.get(DEPLOYMENT, "n", "a")
    assert found is not None
    assert found["spec"] == "ours"


def test_what_was_written_or_listed_before_is_no_news_from_the_watch() -> None:
    observed = Observed()
    assert observed.tell(DEPLOYMENT, obj(1))
    observed.written(DEPLOYMENT, obj(2))
    assert not observed.tell(DEPLOYMENT, obj(2))
    observed.listed(DEPLOYMENT, "n", [obj(3)], since=2)
    assert not observed.tell(DEPLOYMENT, obj(3))
    assert observed.tell(DEPLOYMENT, obj(4))
    assert observed.tell(DEPLOYMENT, obj(4), deleted=True)


def test_the_end_of_an_older_object_of_the_name_does_not_hide_the_newer_one() -> None:
    observed = Observed()
    observed.tell(DEPLOYMENT, obj(5, uid="new"))
    observed.tell(DEPLOYMENT, obj(4, uid="old"), deleted=True)
    assert observed.get(DEPLOYMENT, "n", "a") is not None
    observed.tell(DEPLOYMENT, obj(6, uid="new"), deleted=True)
    assert observed.get(DEPLOYMENT, "n", "a") is None


def test_a_list_removes_what_is_gone_and_keeps_what_is_younger_than_itself() -> None:
    observed = Observed()
    observed.tell(DEPLOYMENT, obj(1, name="gone"))
    since = observed.begin_list(DEPLOYMENT)
    observed.tell(DEPLOYMENT, obj(9, name="born meanwhile"))
    observed.listed(DEPLOYMENT, "n", [obj(1, name="there")], since=since)
    assert {found["metadata"]["name"] for found in observed.all(DEPLOYMENT)} == {"there", "born meanwhile"}


def test_a_list_does_not_bring_back_what_went_while_it_was_under_way() -> None:
    observed = Observed()
    observed.tell(DEPLOYMENT, obj(1))
    since = observed.begin_list(DEPLOYMENT)
    observed.tell(DEPLOYMENT, obj(2), deleted=True)
    observed.listed(DEPLOYMENT, "n", [obj(1)], since=since)
    observed.written(DEPLOYMENT, obj(1))
    assert not observed.all(DEPLOYMENT)
    # The next list begins after it went: what that shows is there.
    since = observed.begin_list(DEPLOYMENT)
    observed.listed(DEPLOYMENT, "n", [obj(3)], since=since)
    assert observed.all(DEPLOYMENT)


def test_an_object_that_lost_its_label_and_got_it_back_is_there() -> None:
    observed = Observed()
    observed.tell(DEPLOYMENT, obj(1))
    observed.tell(DEPLOYMENT, obj(2), deleted=True)  # a watch by label says so
    observed.tell(DEPLOYMENT, obj(3))
    assert observed.all(DEPLOYMENT)


def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    observed = Observed()
    observed.tell(DEPLOYMENT, obj(1))
    observed.listed(DEPLOYMENT, "other", [], since=1)
    assert observed.all(DEPLOYMENT)
    observed.listed(DEPLOYMENT, None, [], since=1)
    assert not observed.all(DEPLOYMENT)


def test_a_watch_that_does_not_tell_until_the_next_list_is_silent_until_it_does() -> None:
    observed = Observed()
    observed.tell(DEPLOYMENT, obj(1))
    observed.listed(DEPLOYMENT, "n", [obj(2)], since=1)
    assert not observed.silent  # it may be on its way
    observed.listed(DEPLOYMENT, "n", [obj(2)], since=2)
    assert observed.silent == {("deployments", "n")}
    observed.tell(DEPLOYMENT, obj(2))
    observed.listed(DEPLOYMENT, "n", [obj(2)], since=2)
    assert not observed.silent


def test_pods_are_found_by_their_pool_also_after_their_label_changed() -> None:
    observed = Observed()
    observed.tell(POD, pod(1, name="a", pool="one"))
    observed.tell(POD, pod(2, name="b", pool="one"))
    assert [found["metadata"]["name"] for found in observed.of_pool(POD, Key("n", "one"))] == ["a", "b"]
    observed.tell(POD, pod(3, name="b", pool="two"))
    observed.tell(POD, pod(4, name="a", pool="one"), deleted=True)
    assert observed.of_pool(POD, Key("n", "one")) == []
    assert [found["metadata"]["name"] for found in observed.of_pool(POD, Key("n", "two"))] == ["b"]


def test_the_bookkeeping_of_server_side_apply_is_not_kept() -> None:
    observed = Observed()
    told = obj(1)
    told["metadata"]["managedFields"] = [{"manager": "x"}]
    observed.tell(DEPLOYMENT, told)
    assert "managedFields" not in observed.all(DEPLOYMENT)[0]["metadata"]
