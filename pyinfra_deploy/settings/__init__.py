"""What the operator writes: inventories and group_vars, read as Ansible reads them, and checked."""

from pyinfra_deploy.settings.fleet import Fleet, FleetHost, load_fleet
from pyinfra_deploy.settings.problems import Problem, SettingsError
from pyinfra_deploy.settings.pyinfra_hosts import pyinfra_inventory
from pyinfra_deploy.settings.schema import Settings
from pyinfra_deploy.settings.secret import Secret

__all__ = [
    "Fleet",
    "FleetHost",
    "Problem",
    "Secret",
    "Settings",
    "SettingsError",
    "load_fleet",
    "pyinfra_inventory",
]
