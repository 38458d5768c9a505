"""Wheels once for the whole fleet, from its first host; and hosts without internet."""

from __future__ import annotations

import functools
import http.server
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from lab import hosts, lifecycle
from lab.layout import current_layout
from lab.plan import BRIDGE_ADDRESS, Host, address_of
from tests.hosts import host_state, lab_session, mended, pyinfra_run
from tests.hosts.lab_session import shell
from tests.hosts.standin_inventory import NAME, Checkout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIRST, SECOND, THIRD = THREE = ("gpu104", "gpu105", "gpu106")
ENDED_SECONDS = 150.0


@dataclass
class Internet:
    """An index beside the hosts that counts who asks for which wheel."""

    directory: Path
    port: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{BRIDGE_ADDRESS}:{self.port}/simple"

    def wheels(self) -> Counter[str]:
        return Counter(path for _, path in self.asked if path.endswith(".whl"))

    def askers(self) -> set[str]:
        return {address for address, path in self.asked if path.endswith(".whl")}


class CountingHandler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, internet: Internet, **more: Any) -> None:
        self.internet = internet
        super().__init__(*arguments, directory=str(internet.directory), **more)

    def do_GET(self) -> None:
        self.internet.asked.append((str(self.client_address[0]), self.path.rsplit("/", 1)[-1]))
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def three(lab_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """Three fresh hosts of one distribution, and an inventory of these alone."""
    with hosts.exclusive_as_root("up", install=True):
        lab = lifecycle.open_lab(current_layout())
        lab_session.drop(lab, THREE)
        lifecycle.bring_up(lab, [Host(name, "bookworm", ("lab",)) for name in THREE])
        for name in THREE:
            hosts.wait_ssh(name)
    checkout = Checkout(tmp_path_factory.mktemp("three"))
    checkout.write(*THREE)
    yield checkout
    with hosts.exclusive_as_root("down"):
        lab = lifecycle.open_lab(current_layout())
        lab_session.drop(lab, THREE)
        lifecycle.tidy(lab)


@pytest.fixture(scope="module")
def wheels(three: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an operator with internet makes for hosts without."""
    directory = tmp_path_factory.mktemp("wheelhouse") / "wheels"
    command = [str(pyinfra_run.BIN / "fleet"), "runtime", "wheelhouse", NAME, "-o", str(directory)]
    for again in (False, True):
        done = pyinfra_run.run(command, root=three.root)
        assert done.returncode == 0, done.stderr
        assert ("downloaded 0 in" in done.stdout) is again
    return directory


@pytest.fixture(scope="module")
def internet(wheels: Path) -> Iterator[Internet]:
    made = Internet(wheels)
    handler = functools.partial(CountingHandler, internet=made)
    server = http.server.ThreadingHTTPServer((BRIDGE_ADDRESS, 0), handler)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()


def serve_from_first(three: Checkout, internet: Internet) -> None:
    """No wheel from the hub, whose downloads nobody counts: the stand-in's is on the index too."""
    three.write(
        *THREE,
        runtime={
            "wheelhouse": {"serve_from": "first"},
            "index_url": internet.url,
            "find_links": [],
        },
    )


def listens(host: str, port: int = 8471) -> bool:
    return any(line.split()[0].endswith(f":{port}") for line in host_state.listeners(host))


def forget_environments(*names: str) -> None:
    """As on hosts that have everything but what is installed from wheels."""
    for name in names:
        shell(name, "rm -rf /srv/llm/runtimes/* /srv/llm/runtimes/.u* /srv/llm/tools/*")


def test_each_wheel_comes_from_the_internet_once_for_three_hosts(
    three: Checkout, internet: Internet
) -> None:
    serve_from_first(three, internet)
    ran = three.deploy().done()
    for host in THREE:
        assert ran.finished(host)
    counts = internet.wheels()
    assert any(unquote(file).startswith("vllm-0.32.0+standin") for file in counts), counts
    assert {file: count for file, count in counts.items() if count > 1} == {}
    assert internet.askers() == {address_of(FIRST)}
    place = f"http://{address_of(FIRST)}:8471/"
    for host in (SECOND, THIRD):
        specs = shell(host, "cat /srv/llm/jobs/environment/*/spec.json")
        assert specs.count(f'"wheelhouse": "{place}"') == 4  # uv, modelscope, vLLM, the gateway


def test_the_server_ends_by_itself_and_was_for_the_inventory_alone(three: Checkout) -> None:
    lab_session.wait_for(lambda: not listens(FIRST), ENDED_SECONDS)
    allowed = shell(FIRST, "cat '/run/systemd/system/llm-serve@wheels.service.d/hosts.conf'")
    assert sorted(allowed.split()[1:]) == [f"IPAddressAllow={address_of(name)}" for name in THREE]
    figures = host_state.exposures(FIRST)
    assert {"llm-serve@main.service", "llm-wheels@main.service"} <= set(figures)
    assert {name: figure for name, figure in figures.items() if figure > 2.0} == {}


def test_a_host_outside_the_inventory_gets_nothing(three: Checkout) -> None:
    request = {
        "directory": "/srv/llm/wheels",
        "address": address_of(FIRST),
        "port": 8471,
        "idle_seconds": 20,
        "allowed": [address_of(SECOND)],
    }
    shell(FIRST, "/srv/llm/bin/fleet-host wheels serve", input_text=json.dumps(request))
    ask = (
        'python3 -c "import urllib.request; print(len(urllib.request.urlopen('
        f"'http://{address_of(FIRST)}:8471/index.html', timeout=5).read()))\""
    )
    assert int(shell(SECOND, ask)) > 100
    assert shell(THIRD, ask + " 2>/dev/null || echo refused", check=False).split() == ["refused"]
    lab_session.wait_for(lambda: not listens(FIRST), 60)


def test_second_run_changes_nothing(three: Checkout) -> None:
    ran = three.deploy().done()
    assert ran.unchanged, ran.log


def test_the_next_host_serves_while_the_first_is_down(three: Checkout, internet: Internet) -> None:
    forget_environments(SECOND, THIRD)
    internet.asked.clear()
    hosts.kill(FIRST)
    try:
        ran = three.deploy("--limit", SECOND, "--limit", THIRD).done()
        ran.said("does not serve the wheels of this run")
        assert internet.askers() == {address_of(SECOND)}
        assert max(internet.wheels().values()) == 1
    finally:
        hosts.boot(FIRST)
        hosts.wait_ssh(FIRST)


def installing(host: str) -> bool:
    """Whether an environment is being built there: a directory without its record."""
    places = (lab_session.upper_of(host) / "srv/llm" / name for name in ("tools", "runtimes"))
    return any(
        not (path.parent / ".fleet-complete.json").is_file()
        for place in places
        for path in place.glob("*/pyvenv.cfg")
    )


def test_the_serving_host_loses_power_while_others_install_from_it(three: Checkout) -> None:
    """Its server is held still first, so that nobody can be through before; what they had is no
    environment, and the next run completes. One that asks for the wheels only then is served by
    another host."""
    forget_environments(SECOND, THIRD)
    running = three.start("--limit", SECOND, "--limit", THIRD)
    # The first environment is uv's own: its pip takes seconds to be there.
    lab_session.wait_for(lambda: installing(SECOND) or installing(THIRD), 60)
    shell(FIRST, "systemctl kill --signal=STOP llm-serve@wheels.service")
    assert installing(SECOND) or installing(THIRD)
    hosts.kill(FIRST)
    hosts.boot(FIRST)
    ran = running.finish()
    assert ran.code == 1
    # FIRST may be among them: the run asks it for the wheels.
    assert ran.failed & {SECOND, THIRD}
    for host in (SECOND, THIRD):
        mended.assert_nothing_is_half_visible(host)
    three.deploy("--limit", SECOND, "--limit", THIRD).done()
    for host in (SECOND, THIRD):
        mended.assert_nothing_is_half_visible(host)
    assert three.deploy().done().unchanged


@pytest.fixture
def without_internet(three: Checkout) -> Iterator[None]:
    """The default route is gone: only the lab's own network is left, with the hub for the model."""
    route = shell(SECOND, "ip route show default").strip()
    shell(SECOND, "ip route del default")
    yield
    shell(SECOND, f"ip route replace {route}")


@pytest.fixture
def on_the_host(three: Checkout, wheels: Path) -> Iterator[None]:
    """The directory that was made with internet, copied to a host as by a stick."""
    lab_session.put_directory(SECOND, wheels, "/srv/wheels")
    assert (lab_session.upper_of(SECOND) / "srv/wheels/SHA256SUMS").is_file()
    yield
    shell(SECOND, "rm -rf /srv/wheels")


def test_install_from_a_directory_with_the_network_cut(
    three: Checkout, on_the_host: None, without_internet: None
) -> None:
    forget_environments(SECOND)
    three.write(SECOND, runtime={"wheelhouse": {"path": "/srv/wheels"}, "find_links": []})
    ran = three.deploy().done()
    assert ran.finished(SECOND)
    assert three.deploy().done().unchanged


def test_a_tampered_wheel_is_refused_by_name_and_the_engine_serves_on(
    three: Checkout, on_the_host: None
) -> None:
    before = host_state.invocations(SECOND)
    forget_environments(SECOND)
    three.write(SECOND, runtime={"wheelhouse": {"path": "/srv/wheels"}, "find_links": []})
    wheel = "/srv/wheels/vllm-0.32.0+standin-py3-none-any.whl"
    shell(SECOND, f"cp {wheel} /srv/good.whl; printf X | dd of={wheel} bs=1 seek=200 conv=notrunc")
    expected = shell(SECOND, "sha256sum /srv/good.whl").split()[0]
    found = shell(SECOND, f"sha256sum {wheel}").split()[0]
    ran = three.deploy()
    assert SECOND in ran.failed
    ran.said("vllm-0.32.0+standin-py3-none-any.whl", expected, found, "fleet runtime wheelhouse")
    assert host_state.invocations(SECOND) == before
    shell(SECOND, f"cp /srv/good.whl {wheel}")
    three.deploy().done()


def test_a_full_disk_is_refused_with_numbers_and_the_next_run_goes_on(
    three: Checkout, on_the_host: None
) -> None:
    forget_environments(SECOND)
    three.write(SECOND, runtime={"wheelhouse": {"path": "/srv/wheels"}, "find_links": []})
    mount = "mount -t tmpfs -o size=8m,mode=0755,uid=$(id -u llm-build) tmpfs /srv/llm/runtimes"
    shell(SECOND, mount)
    try:
        ran = three.deploy()
        assert SECOND in ran.failed
        ran.said("does not fit", "0.01 GB are free", "/srv/llm/runtimes", "fleet runtime list")
        shell(SECOND, "mount -o remount,size=300m /srv/llm/runtimes")
        fill_once_it_builds(SECOND)
        ran = three.deploy()
        assert SECOND in ran.failed
        ran.said("no space is left", "/srv/llm/runtimes")
        assert shell(SECOND, "ls /srv/llm/runtimes/*/.fleet-complete.json; true") == ""
        shell(SECOND, "rm /srv/llm/runtimes/filler")
        three.deploy().done()
    finally:
        # The engine runs from there by now.
        shell(SECOND, "systemctl stop llm-engine@main; umount -l /srv/llm/runtimes")
    three.deploy().done()


def fill_once_it_builds(host: str) -> None:
    """Somebody else takes all the room, a moment after it was looked at. The build is held still
    for it: the stand-in's is quicker than the disk."""
    units = "llm-environment@*.service"
    script = (
        "while ! ls -d /srv/llm/runtimes/vllm-*/ >/dev/null 2>&1; do sleep 0.01; done; "
        f'systemctl kill --signal=STOP "{units}"; '
        "dd if=/dev/zero of=/srv/llm/runtimes/filler bs=1M; "
        f'systemctl kill --signal=CONT "{units}"'
    )
    shell(host, f"systemd-run --quiet --collect --unit=filler sh -c '{script}'")


def test_space_time_and_users_are_listed(three: Checkout) -> None:
    three.write(*THREE)
    done = pyinfra_run.run(
        [str(pyinfra_run.BIN / "fleet"), "runtime", "list", NAME], root=three.root
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for host in THREE:
        assert f"{host}: " in done.stdout
    assert "built in" in done.stdout
    assert "used by main/" in done.stdout
    assert "[current]" in done.stdout


def test_old_releases_and_runtimes_are_pruned_at_the_end_of_a_deploy(three: Checkout) -> None:
    """A release a deploy; three are kept, and a runtime that nobody uses goes by count."""
    shell(SECOND, "cp -a /srv/llm/runtimes/vllm-0.32.0-* /srv/llm/runtimes/vllm-0.1.0-old")
    time.sleep(1)
    for length in (900, 901, 902, 903):
        three.write(
            SECOND,
            runtime={"keep": 1},
            engine={"args": {"max-model-len": length}, "keep_releases": 3},
        )
        three.deploy().done()
    kept = shell(SECOND, "ls /srv/llm/engines/main/releases").split()
    assert len(kept) == 3
    linked = shell(SECOND, "cd /srv/llm/engines/main; readlink current previous").split()
    assert {path.rsplit("/", 1)[-1] for path in linked} <= set(kept)
    runtimes = shell(SECOND, "ls /srv/llm/runtimes").split()
    assert len(runtimes) == 1
    assert "old" not in runtimes[0]
    assert three.deploy().done().unchanged
