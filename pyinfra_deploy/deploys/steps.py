"""What a role needs, in order. `deploy.py` tells the story with these."""

from pyinfra_deploy.deploys.door import between_hosts
from pyinfra_deploy.deploys.driver import driver
from pyinfra_deploy.deploys.engine import engine
from pyinfra_deploy.deploys.gateway import gateway
from pyinfra_deploy.deploys.gpu_host import gpu_host
from pyinfra_deploy.deploys.model import model
from pyinfra_deploy.deploys.runtime import runtime
from pyinfra_deploy.deploys.session import finish, plan_this_host, take_host
from pyinfra_deploy.deploys.verify import verify

__all__ = [
    "between_hosts",
    "driver",
    "engine",
    "finish",
    "gateway",
    "gpu_host",
    "model",
    "plan_this_host",
    "runtime",
    "take_host",
    "verify",
]
