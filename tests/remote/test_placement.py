"""How many processes go to which nodes."""

from headrace.remote.rules.placement import ClusterNode, Placement, nodes, placed


def node(name, cpus, **more):
    return ClusterNode(name, f"10.0.0.{len(name)}", {"CPU": cpus, **more.pop("resources", {})}, more)


def test_the_largest_nodes_come_first_and_the_own_one_never():
    among = [node("own", 64), node("small", 4), node("large", 20)]
    found = placed(30, among, {}, {}, "own")
    assert found == [
        Placement(8, "large"), Placement(8, "large"), Placement(4, "large"), Placement(4, "small"), Placement(6, None),
    ]  # fmt: skip


def test_no_more_than_was_asked_for():
    assert placed(5, [node("large", 20)], {}, {}, None) == [Placement(5, "large")]


def test_what_resources_and_labels_ask_for_may_be_the_own_node():
    among = [node("own", 8, resources={"cheap": 1.0}), node("other", 8), node("labelled", 8, zone="b")]
    assert placed(8, among, {"cheap": 1.0}, {}, "own") == [Placement(8, "own")]
    assert placed(8, among, {}, {"zone": "b"}, "own") == [Placement(8, "labelled")]
    assert placed(8, among, {"cheap": 2.0}, {}, "own") == [Placement(8, None)]


def test_nodes_that_are_gone_are_left_out():
    told = [
        {
            "NodeID": "a",
            "NodeManagerAddress": "10.0.0.1",
            "Alive": True,
            "Resources": {"CPU": 2.0},
            "Labels": {"x": "y"},
        },
        {"NodeID": "b", "NodeManagerAddress": "10.0.0.2", "Alive": False, "Resources": {}},
    ]
    assert nodes(told) == [ClusterNode("a", "10.0.0.1", {"CPU": 2.0}, {"x": "y"})]
