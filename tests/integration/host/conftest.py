from tests.fakes.engine_host import host
from tests.fakes.job_systemd import systemd
from tests.fakes.pull_world import world

__all__ = ["host", "systemd", "world"]
