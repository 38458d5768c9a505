"""vm.max_map_count, which is only ever raised; and settings that are refused unread by any host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab import hosts
from tests.hosts.lab_session import DEBIAN13, shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosts.standin_inventory import Checkout

MINIMUM = 1048576
LIVE = "/proc/sys/vm/max_map_count"

pytestmark = pytest.mark.usefixtures("steady")


def live() -> int:
    return int(shell(DEBIAN13, f"cat {LIVE}"))


def reboot() -> None:
    hosts.kill(DEBIAN13)
    hosts.boot(DEBIAN13)


def test_it_is_raised_and_stays_so(checkout: Checkout) -> None:
    assert live() == MINIMUM
    reboot()
    assert live() == MINIMUM


def test_a_later_file_with_less_is_overcome(checkout: Checkout) -> None:
    """Of two files the later name wins at boot: ours moves behind it."""
    shell(DEBIAN13, "echo vm.max_map_count=65530 > /etc/sysctl.d/90-old.conf")
    checkout.deploy().done().said(f"raise vm.max_map_count to {MINIMUM}")
    reboot()
    assert live() == MINIMUM
    assert checkout.deploy().done().unchanged
    shell(DEBIAN13, "rm /etc/sysctl.d/90-old.conf")


def test_a_higher_value_of_somebody_elses_is_not_lowered(checkout: Checkout) -> None:
    """Also when the other file's name comes before ours, which would then win at boot."""
    shell(
        DEBIAN13,
        "echo vm.max_map_count=2000000 > /etc/sysctl.d/50-admin.conf && "
        "sysctl -q -p /etc/sysctl.d/50-admin.conf",
    )
    checkout.deploy().done()
    assert live() == 2000000
    reboot()
    assert live() == 2000000
    assert checkout.deploy().done().unchanged
    shell(DEBIAN13, "rm /etc/sysctl.d/50-admin.conf")
    checkout.deploy().done().said(f"raise vm.max_map_count to {MINIMUM}")
    assert live() == 2000000


def with_a_tab(checkout: Checkout) -> None:
    path = checkout.inventory / "hosts.yml"
    path.write_text(path.read_text() + "\tbad: tab\n")


def with_an_unknown_key(checkout: Checkout) -> None:
    checkout.write(engine={"drain_secnds": 5})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (with_a_tab, ["inventories/standin/hosts.yml", "tab"]),
        (with_an_unknown_key, ["group_vars/standin.yml", 'did you mean "drain_seconds"?']),
    ],
)
def test_wrong_settings_are_refused_without_a_connection(
    checkout: Checkout, spoil: Callable[[Checkout], None], words: list[str]
) -> None:
    spoil(checkout)
    before = logins()
    ran = checkout.deploy()
    after = logins()
    checkout.write()
    assert ran.code == 1
    ran.said(*words, "Nothing was changed; no host was contacted")
    assert "Traceback" not in ran.log
    assert after == before + 1  # the counting itself


def logins() -> int:
    script = "journalctl --sync; journalctl -o cat -u ssh | grep -c 'Accepted publickey'"
    return int(shell(DEBIAN13, script))
