"""gpu_driver: install: what a run installs, what forbids it, and that it then does nothing else."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys.session import snapshot_request
from pyinfra_deploy.facts.hardware import DriverFailure, Hardware, PciGpu
from pyinfra_deploy.planning import driver_install, host_files, host_plan
from pyinfra_deploy.planning.driver_install import DEFAULT_PACKAGES, DriverStep, plan_driver
from pyinfra_deploy.planning.foresight import Foresight, KnownModel, foresee
from tests.unit.planning import worlds
from tests.unit.planning_compat.hosts import host, ids, settings

if TYPE_CHECKING:
    from pyinfra_deploy.facts.hardware import FailureKind

TODAY = datetime.date(2026, 12, 1)
PINNED: dict[str, Any] = {"gpu_driver": "install", "gpu_driver_packages": ("cuda-drivers-580",)}
CANDIDATE = {"installed": None, "candidate": "580.105.08-1"}
AVAILABLE: Any = {"installed": None, "candidate": "1"}
CUDA_13 = "torch==2.9.0+cu130\nvllm==0.33.0\n"


def sources(
    secure_boot: bool | None = False, module_key: bool | None = None, **packages: Any
) -> Any:
    names = {name.replace("_", "-"): found for name, found in packages.items()}
    return {"packages": names, "secure_boot": secure_boot, "module_key": module_key}


def bare(kind: FailureKind = "not-installed", os_id: str = "debian", **more: Any) -> Hardware:
    return Hardware("gpu01", os_id=os_id, failure=DriverFailure(kind, "nvidia-smi: no"), **more)


def seen(hardware: Hardware, told: Any, **wanted: Any) -> Foresight:
    asked = settings(**(PINNED | wanted))
    return foresee("gpu01", asked, hardware, KnownModel(), CUDA_13, TODAY, sources=told)


def test_a_host_without_a_driver_gets_the_pinned_packages() -> None:
    found = seen(bare(), sources(cuda_drivers_580=CANDIDATE))
    assert found.driver == DriverStep(
        ("cuda-drivers-580",), ("cuda-drivers-580",), version="580.105.08"
    )
    assert found.refused == ()
    (will,) = [one for one in found.findings if one.id == "driver.will-install"]
    assert "run again for the rest" in will.message
    assert "drained" in will.message
    # What GPUs it has is not known before: `fleet plan` says so with its exit code.
    assert found.unknown


@pytest.mark.parametrize("os_id", DEFAULT_PACKAGES)
def test_the_distribution_s_own_where_none_is_named(os_id: str) -> None:
    names = DEFAULT_PACKAGES[os_id]
    told = sources(**dict.fromkeys(names, AVAILABLE))
    found = seen(bare(os_id=os_id), told, gpu_driver_packages=())
    assert found.driver is not None
    assert found.driver.packages == names
    assert set(names) <= set(driver_install.packages_to_ask_for(settings(gpu_driver="install")))


def test_a_driver_that_works_is_left_alone_where_none_is_named() -> None:
    assert plan_driver(settings(gpu_driver="install"), host(), sources()) == (None, ())


@pytest.mark.parametrize("wish", ["check", "hold"])
def test_nothing_without_the_wish(wish: str) -> None:
    found = seen(bare(), sources(cuda_drivers_580=CANDIDATE), gpu_driver=wish)
    assert found.driver is None
    assert ids(found.findings, "refuse") == ["gpu.no-driver"]
    asked = settings(gpu_driver=wish, gpu_driver_packages=("cuda-drivers-580",))
    assert driver_install.packages_to_ask_for(asked) == ()


def test_nothing_on_a_host_that_computes_on_its_cpu() -> None:
    asked = settings(**PINNED, device="cpu", args={}, gpu_host={})
    assert plan_driver(asked, bare(), sources(cuda_drivers_580=CANDIDATE)) == (None, ())


def test_another_branch_is_installed_over_a_working_driver() -> None:
    found = seen(host(driver_version="535.274.02", loaded_module_version="535.274.02",
                      installed_module_version="535.274.02"),
                 sources(cuda_drivers_580=CANDIDATE))  # fmt: skip
    # Too old for CUDA 13, which is what the new one is for.
    assert found.refused == ()
    assert found.driver is not None


def test_a_candidate_that_is_too_old_for_the_runtime_is_refused_before_it_is_installed() -> None:
    old = {"installed": None, "candidate": "535.261.03-1~deb12u1"}
    found = seen(bare(), sources(cuda_drivers_580=old))
    assert found.driver is None
    (refused,) = found.refused
    assert refused.id == "compat.driver-too-old"
    assert "driver 535.261.03 is too old for CUDA 13.0" in refused.message


@pytest.mark.parametrize(
    "told",
    [
        sources(cuda_drivers_580={"installed": None, "candidate": None}),
        sources(cuda_drivers_580=None),
        {"error": "OSError: the program is not installed"},
    ],
)
def test_packages_that_no_source_has_are_the_one_refusal(told: Any) -> None:
    found = seen(bare(), told)
    assert found.driver is None
    (refused,) = found.refused
    assert refused.id == "driver.not-available"
    assert "cuda-drivers-580" in refused.message
    assert "adds no repository" in refused.fix
    assert "non-free" in refused.fix


def test_a_distribution_without_a_default_is_told_to_name_packages() -> None:
    (refused,) = seen(bare(os_id="devuan"), sources(), gpu_driver_packages=()).refused
    assert refused.id == "driver.not-available"
    assert "gpu_driver_packages" in refused.fix


@pytest.mark.parametrize(
    ("on", "key", "refused"),
    [(True, None, True), (True, False, True), (True, True, False), (False, None, False),
     (None, None, False)],
)  # fmt: skip
def test_secure_boot(on: bool | None, key: bool | None, refused: bool) -> None:
    found = seen(bare(), sources(on, key, cuda_drivers_580=CANDIDATE))
    assert ids(found.findings, "refuse") == ["driver.secure-boot"] * refused
    assert (found.driver is None) is refused


def test_secure_boot_takes_modules_that_ubuntu_signed() -> None:
    names = ("linux-modules-nvidia-580-server-generic", "nvidia-utils-580-server")
    told = sources(True, None, **dict.fromkeys(names, AVAILABLE))
    assert seen(bare(), told, gpu_driver_packages=names).driver is not None


INSTALLED = {"installed": "580.105.08-1", "candidate": "580.105.08-1"}


@pytest.mark.parametrize(
    "hardware",
    [
        bare("no-driver", installed_module_version="580.105.08"),
        bare("mismatch", installed_module_version="580.105.08", loaded_module_version="580.65.06"),
        host(installed_module_version="580.105.08"),
    ],
)
def test_an_interrupted_installation_goes_on_with_the_reboot(hardware: Hardware) -> None:
    found = seen(hardware, sources(cuda_drivers_580=INSTALLED))
    assert found.driver == DriverStep(("cuda-drivers-580",), ())
    assert found.driver.reason().startswith("reboot for the driver")
    assert found.refused == ()


def test_what_is_there_and_loaded_is_done() -> None:
    assert seen(host(), sources(cuda_drivers_580=INSTALLED)).driver is None


@pytest.mark.parametrize("kind", ["hang", "gpu-lost", "no-devices", "truncated"])
def test_a_driver_does_not_mend_hardware(kind: FailureKind) -> None:
    found = seen(bare(kind), sources(cuda_drivers_580=CANDIDATE))
    assert found.driver is None
    assert found.refused


def test_gpus_of_virtual_machines_stay_theirs() -> None:
    reserved = bare(pci_gpus=(PciGpu("0000:16:00.0", "vfio-pci"),))
    found = seen(reserved, sources(cuda_drivers_580=CANDIDATE))
    assert ids(found.findings, "refuse") == ["gpu.no-driver"]


def test_facts_that_were_collected_elsewhere_install_nothing() -> None:
    assert ids(seen(bare(), None).findings, "refuse") == ["gpu.no-driver"]


# --- in the plan of the host

STEP = DriverStep(("cuda-drivers-580",), ("cuda-drivers-580",), "580.105.08")


def planned(snapshot: Any, driver: DriverStep | None = STEP) -> host_plan.HostPlan:
    wanted = worlds.settings_with(PINNED)
    artefacts = worlds.artefacts_with(wanted)
    return host_plan.plan_host(
        worlds.HOST, worlds.ALL, wanted, snapshot, artefacts, hardware=host(), driver=driver
    )


def test_the_driver_is_all_that_the_run_does() -> None:
    ordinary = worlds.settings_with()
    artefacts = worlds.artefacts_with(ordinary)
    snapshot = worlds.converged(ordinary, artefacts)
    engine = snapshot["engines"][ordinary.engine.name]
    engine["releases"] = {engine["current"]: {"served_model_name": "as it was named"}}
    plan = planned(snapshot)
    assert plan.reasons() == [
        f"write {driver_install.UNIT_PATH}",
        "install cuda-drivers-580 (driver 580.105.08), hold them, reboot if another driver is "
        "loaded; then run again for the rest",
    ]
    assert plan.serving
    assert plan.driver is not None
    assert plan.driver.live == (engine["current"], "as it was named")


def test_on_a_bare_host_too() -> None:
    plan = planned(worlds.untouched())
    assert plan.driver is not None
    assert (plan.driver.live, plan.serving) == (None, False)
    assert {file.path for file in plan.files} == {
        host_files.SYSUSERS, host_files.TMPFILES, driver_install.UNIT_PATH,
    }  # fmt: skip
    others = (plan.tools, plan.runtime, plan.pull, plan.go_live, plan.nginx, plan.map_count)
    assert not any(others)


def test_the_unit_of_an_installation_that_was_given_up_goes() -> None:
    ordinary = worlds.settings_with()
    snapshot = worlds.converged(ordinary, worlds.artefacts_with(ordinary))
    snapshot["files"][driver_install.UNIT_PATH] = {"sha256": "x"}
    assert planned(snapshot, None).remove == (driver_install.UNIT_PATH,)


def test_the_snapshot_asks_apt_only_where_something_is_to_be_installed() -> None:
    wanted = worlds.settings_with(PINNED)
    request = snapshot_request(wanted, worlds.ALL, worlds.artefacts_with(wanted))
    assert request["driver"] == ["cuda-drivers-580"]
    assert driver_install.UNIT_PATH in request["files"]
    ordinary = worlds.settings_with()
    request = snapshot_request(ordinary, worlds.ALL, worlds.artefacts_with(ordinary))
    assert request["driver"] == []


def test_an_engine_that_an_interrupted_run_has_stopped_has_to_serve_again() -> None:
    ordinary = worlds.settings_with()
    snapshot = worlds.converged(ordinary, worlds.artefacts_with(ordinary))
    unit = f"llm-engine@{ordinary.engine.name}.service"
    snapshot["units"][unit]["active"] = "inactive"
    plan = planned(snapshot)
    assert not plan.serving
    assert plan.driver is not None
    current = snapshot["engines"][ordinary.engine.name]["current"]
    assert plan.driver.live == (current, ordinary.served_model_name)
