import pytest

from lab.errors import LabError
from lab.plan import address_of, machine_id_of, sort_key, veth_of, wanted_hosts


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("gpu1", "10.213.77.10"),
        ("gpu2", "10.213.77.11"),
        ("gpu120", "10.213.77.129"),
        ("t1", "10.213.77.150"),
        ("t90", "10.213.77.239"),
    ],
)
def test_addresses_follow_from_names(name: str, address: str) -> None:
    assert address_of(name) == address


@pytest.mark.parametrize("name", ["gpu0", "gpu121", "t91", "gpu01", "x1", "gpu1/../..", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(LabError, match="not the name of a lab host"):
        address_of(name)


def test_no_two_hosts_share_an_address() -> None:
    hosts = wanted_hosts(120, "bookworm", 90, ["gpu"])
    assert len({host.address for host in hosts}) == 210


def test_link_names_fit_the_kernel() -> None:
    # IFNAMSIZ is 16 with the final NUL.
    assert all(len(veth_of(host.name)) <= 15 for host in wanted_hosts(120, "bookworm", 90, []))


def test_groups_and_suites() -> None:
    engine, other = wanted_hosts(1, "bookworm", 1, ["gateway"])
    assert (engine.suite, engine.groups) == ("bookworm", ("lab", "gpu", "gateway"))
    assert (other.suite, other.groups) == ("trixie", ("lab", "debian13", "gateway"))
    (trixie,) = wanted_hosts(1, "trixie", 0, [])
    assert trixie.groups == ("lab", "debian13", "gpu", "gateway")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((121, "bookworm", 0, []), "room for 120"),
        ((-1, "bookworm", 0, []), "cannot make -1"),
        ((1, "sid", 0, []), "unknown suite 'sid'"),
        ((1, "bookworm", 1, ["engine"]), "unknown role 'engine'"),
    ],
)
def test_impossible_wishes(arguments: tuple[int, str, int, list[str]], message: str) -> None:
    with pytest.raises(LabError, match=message):
        wanted_hosts(*arguments)


def test_machine_ids_are_stable_and_differ() -> None:
    first = machine_id_of("gpu1", "salt")
    assert first == machine_id_of("gpu1", "salt")
    assert len(first) == 32
    assert len({first, machine_id_of("gpu2", "salt"), machine_id_of("gpu1", "pepper")}) == 3


def test_hosts_sort_by_number() -> None:
    assert sorted(["gpu10", "t1", "gpu2"], key=sort_key) == ["gpu2", "gpu10", "t1"]
