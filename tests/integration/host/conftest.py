from tests.fakes.argument_host import argument_host
from tests.fakes.bmc import bmc
from tests.fakes.care_host import care_host
from tests.fakes.conda_world import conda_world
from tests.fakes.driver_host import driver_host
from tests.fakes.engine_host import host
from tests.fakes.job_systemd import systemd
from tests.fakes.logging_proxy import logging_proxy
from tests.fakes.nvml import nvml, nvml_library
from tests.fakes.proof_host import proof_host
from tests.fakes.pull_world import world
from tests.fakes.sharing_hosts import sharing_hosts
from tests.fakes.wheel_index import index

__all__ = [
    "argument_host",
    "bmc",
    "care_host",
    "conda_world",
    "driver_host",
    "host",
    "index",
    "logging_proxy",
    "nvml",
    "nvml_library",
    "proof_host",
    "sharing_hosts",
    "systemd",
    "world",
]
